"""Debian's kcat: producing, reading, metadata, offsets by time, groups, transactions."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any

import pytest

from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.records import iter_batches
from moldau.runtime.connection import Connection
from moldau.runtime.network import AsyncioNetwork
from tests.interop.drivers import DRIVERS, Driver
from tests.interop.samples import BASE_TIMESTAMP_MS, CODECS, Rec
from tests.interop.topics import TopicMaker, fresh_name, wait_decided

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
WAIT_S = 30

pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(bootstrap: str, *arguments: str, lines: bytes = b"") -> bytes:
    """Run kcat; its output when it succeeds."""
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *arguments],
        input=lines,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def read_json(bootstrap: str, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """What a reading kcat prints in JSON, up to the end of the topic."""
    output = kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-J", *arguments)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(bootstrap: str, topic: str, codec: str) -> None:
    # Each is worth compressing alone: librdkafka sends what would grow as it is.
    lines = [b"k%d:%s" % (number, b"value " * (40 + number)) for number in range(50)]
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-z", codec, lines=b"\n".join(lines) + b"\n")
    output = kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-K", ":")
    assert output.splitlines() == lines
    # Older librdkafka compresses only for brokers that look right to it, and says nothing else.
    assert asyncio.run(codecs_in(bootstrap, topic)) == {codec}


async def codecs_in(bootstrap: str, topic: str) -> set[str]:
    """How the batches of a topic's first partition are compressed."""
    host, _, port = bootstrap.rpartition(":")
    connection = await Connection.connect(AsyncioNetwork(), host, int(port))
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[partition])])
    response = await connection.send(request, api_version=12)
    connection.close()
    records = response.responses[0].partitions[0].records
    return {header.codec.name.lower() for _, header in iter_batches(records)}


@pytest.mark.parametrize("writer", DRIVERS, ids=lambda driver: driver.name)
def test_what_the_python_clients_write(bootstrap: str, topic: str, writer: Driver) -> None:
    records = [Rec(b"key %d" % number, b"value", (("h", b"%d" % number),)) for number in range(20)]
    writer.write(bootstrap, topic, records, codec="lz4")
    found = read_json(bootstrap, topic, "-o", "beginning")
    assert [(entry["key"], entry["payload"], entry["headers"]) for entry in found] == [
        (f"key {number}", "value", ["h", str(number)]) for number in range(20)
    ]
    assert [entry["offset"] for entry in found] == list(range(20))
    assert {entry["ts"] for entry in found} == {BASE_TIMESTAMP_MS}


def test_headers_keys_and_nulls(bootstrap: str, topic: str) -> None:
    headers = ["-H", "a=1", "-H", "a=2", "-H", "empty="]
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", *headers, lines=b"k:v\n")
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-Z", lines=b"k:\n")
    for driver in DRIVERS:
        first, second = driver.read(bootstrap, topic, 2)
        assert (first.key, first.value) == (b"k", b"v")
        assert first.headers == (("a", b"1"), ("a", b"2"), ("empty", b""))
        assert (second.key, second.value) == (b"k", None)


def test_metadata_lists_brokers_topics_partitions(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(partitions=3)
    listed = json.loads(kcat(bootstrap, "-L", "-J"))
    assert bootstrap in [broker["name"] for broker in listed["brokers"]]
    assert listed["controllerid"] == 1
    entries = {entry["topic"]: entry for entry in listed["topics"]}
    assert [
        (part["partition"], part["leader"], part["replicas"], part["isrs"])
        for part in entries[topic]["partitions"]
    ] == [(number, 1, [{"id": 1}], [{"id": 1}]) for number in range(3)]


def test_offsets_by_time(bootstrap: str, topic: str) -> None:
    DRIVERS[0].write(
        bootstrap,
        topic,
        [Rec(b"k", b"v", timestamp_ms=BASE_TIMESTAMP_MS + 10 * n) for n in range(10)],
    )

    def query(timestamp_ms: int) -> bytes:
        return kcat(bootstrap, "-Q", "-t", f"{topic}:0:{timestamp_ms}").split()[-1]

    assert query(BASE_TIMESTAMP_MS + 31) == b"4"
    assert query(-2) == b"0"
    assert query(-1) == b"10"


def test_reading_from_a_timestamp_and_from_the_tail(bootstrap: str, topic: str) -> None:
    DRIVERS[0].write(
        bootstrap,
        topic,
        [Rec(b"k", b"%d" % n, timestamp_ms=BASE_TIMESTAMP_MS + n) for n in range(10)],
        codec="snappy",
    )
    from_time = read_json(bootstrap, topic, "-o", f"s@{BASE_TIMESTAMP_MS + 7}")
    assert [entry["payload"] for entry in from_time] == ["7", "8", "9"]
    tail = read_json(bootstrap, topic, "-p", "0", "-o", "-2")
    assert [entry["payload"] for entry in tail] == ["8", "9"]


def test_a_topic_that_is_not_there(bootstrap: str) -> None:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, "-C", "-t", fresh_name(), "-p", "0", "-e", "-X",
         "allow.auto.create.topics=false"],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert b"unknown topic or partition" in done.stderr.lower()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_where_it_stopped(
    trio: str, trio_topics: TopicMaker, protocol: str
) -> None:
    topic = trio_topics.create(partitions=2)
    group = fresh_name("kcat")
    options = ("-X", "auto.offset.reset=earliest", "-q")

    def read_in_group(count: int) -> list[bytes]:
        return sorted(kcat(trio, "-G", group, *options, "-c", str(count), topic).split())

    for partition in ("0", "1"):
        kcat(trio, "-P", "-t", topic, "-p", partition, lines=b"a\nb\n")
    assert read_in_group(4) == [b"a", b"a", b"b", b"b"]
    kcat(trio, "-P", "-t", topic, "-p", "1", lines=b"c\n")
    assert read_in_group(1) == [b"c"]


def test_a_transactional_producer_s_records_and_read_committed(
    trio: str, trio_topics: TopicMaker
) -> None:
    """kcat commits its transaction at the end of its input."""
    topic = trio_topics.create()
    transactional_id = fresh_name("kcat")
    kcat(trio, "-P", "-t", topic, "-X", f"transactional.id={transactional_id}", lines=b"a\nb\n")
    wait_decided(trio, topic)
    read = kcat(trio, "-C", "-t", topic, "-e", "-q", "-X", "isolation.level=read_committed")
    assert read.split() == [b"a", b"b"]
