"""Requests as the tests send them, and record batches to put in them."""

from __future__ import annotations

from typing import Any

from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from moldau.protocol.records import Record, decode_records, encode_batch, iter_batches
from tests.unit.broker.harness import topic_id_of

NOW_MS = 1_700_000_000_000


def batch(count: int = 1, *, value: bytes = b"value", **options: Any) -> bytearray:
    """A record batch as a producer sends it."""
    records = [Record(n, NOW_MS + n, b"key-%d" % n, value) for n in range(count)]
    return encode_batch(records, **options)


def produce(
    partitions: dict[tuple[str, int], Any],
    *,
    acks: int = -1,
    api_version: int = 12,
    timeout_ms: int = 1000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A produce request; topics are named by id from v13 on."""
    topics: dict[str, TopicProduceData] = {}
    for (topic, index), records in partitions.items():
        data = topics.get(topic)
        if data is None:
            data = topics[topic] = TopicProduceData(partition_data=[])
            if api_version >= 13:
                data.topic_id = topic_id_of(topic)
            else:
                data.name = topic
        data.partition_data.append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=list(topics.values()),
    )


def fetch(
    partitions: dict[tuple[str, int], int | dict[str, Any]],
    *,
    api_version: int = 12,
    forget: dict[str, list[int]] | None = None,
    partition_max_bytes: int = 1_000_000,
    **fields: Any,
) -> FetchRequest:
    """A fetch request: offsets (or fields of FetchPartition) by partition."""
    topics: dict[str, FetchTopic] = {}
    for (topic, index), asked in partitions.items():
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = FetchTopic(partitions=[])
            if api_version >= 13:
                entry.topic_id = topic_id_of(topic)
            else:
                entry.topic = topic
        wanted = {"fetch_offset": asked} if isinstance(asked, int) else dict(asked)
        wanted.setdefault("partition_max_bytes", partition_max_bytes)
        entry.partitions.append(FetchPartition(partition=index, **wanted))
    forgotten = []
    for topic, indexes in (forget or {}).items():
        gone = ForgottenTopic(partitions=indexes)
        if api_version >= 13:
            gone.topic_id = topic_id_of(topic)
        else:
            gone.topic = topic
        forgotten.append(gone)
    fields.setdefault("max_wait_ms", 0)
    fields.setdefault("min_bytes", 1)
    fields.setdefault("session_epoch", -1)
    return FetchRequest(topics=list(topics.values()), forgotten_topics_data=forgotten, **fields)


def only(response: Any) -> Any:
    """The one partition of a produce or fetch response."""
    (topic,) = response.responses
    (partition,) = getattr(topic, "partition_responses", None) or topic.partitions
    return partition


def fetched_values(partition: Any) -> list[bytes | None]:
    """The values of all records in a fetched partition."""
    data = bytes(partition.records)
    return [
        record.value
        for position, _ in iter_batches(data)
        for record in decode_records(data, position)
    ]
