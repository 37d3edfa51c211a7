"""What the tests of pipelines have in common: running a file's text, filling and reading topics.

Owns no cluster and no session. Must not know single jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from moldau.client import OffsetSpec, TopicPartition
from moldau.client.sync import Admin, Consumer, Producer
from moldau.spark_connector.pipelines.pipeline_file import parse_pipelines
from moldau.spark_connector.pipelines.runner import RunOptions, StopRequest, run_pipelines
from moldau.spark_connector.pipelines.running import BatchProgress
from tests.spark.sink.plain_sink import wait_for_markers

POLL_MS = 1_000


class Record(NamedTuple):
    """A record as a client sent or read it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def run(text: str, directory: Path, stop: StopRequest | None = None) -> list[BatchProgress]:
    """Run a file's text to its end in the session that exists; the batches it reported."""
    told: list[BatchProgress] = []
    file = parse_pipelines(text, "test.yaml", str(directory), {})
    run_pipelines(file, RunOptions(observer=told.append), stop)
    return told


def fill(bootstrap: str, topic: str, records: Mapping[int, Sequence[Record]]) -> None:
    """Send records into partitions."""
    with Producer(bootstrap) as producer:
        for partition, wanted in records.items():
            for record in wanted:
                producer.send_nowait(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                )
        producer.flush()


def send(bootstrap: str, topic: str, pairs: Iterable[tuple[bytes | None, bytes]]) -> None:
    """Send keys and values, each where its key belongs."""
    with Producer(bootstrap) as producer:
        for key, value in pairs:
            producer.send_nowait(topic, value, key=key)
        producer.flush()


def read(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """Everything that is committed in a topic, by partition and in its order; nothing is open."""
    with Admin(bootstrap) as admin:
        wait_for_markers(admin)
        count = len(admin.describe_topics([topic])[topic].partitions)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        specs: dict[TopicPartition, int] = dict.fromkeys(partitions, OffsetSpec.LATEST)
        written = admin.list_offsets(specs)
        stable = admin.list_offsets(specs, read_committed=True)
    ends = {each: written[each].offset for each in partitions}
    assert {each: stable[each].offset for each in partitions} == ends, "a transaction is open"
    found: dict[int, list[Record]] = {number: [] for number in range(count)}
    with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any(consumer.position(each) < ends[each] for each in partitions):
            for partition, records in consumer.getmany(timeout_ms=POLL_MS).items():
                found[partition.partition] += [
                    Record(each.key, each.value, tuple(each.headers), each.timestamp_ms)
                    for each in records
                ]
    return found


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    """All committed values, sorted."""
    found = [record.value for records in read(bootstrap, topic).values() for record in records]
    return sorted(found, key=lambda each: (each is None, each))
