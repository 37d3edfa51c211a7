"""A full disk: producers hear of it, consumers read on, and with room it works again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, encode_batch
from moldau.testing import Cluster
from tests.interop.raw.probe import connected, produce_raw, topic_metadata
from tests.interop.samples import BASE_TIMESTAMP_MS
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until, until_async
from tests.system.conftest import SmallDisk
from tests.system.processes import Writer, read_all


def test_a_full_disk_loses_nothing_and_passes(small_disk: SmallDisk, tmp_path: Path) -> None:
    config = {"log.dirs": str(small_disk.path / "data"), "log.index.size.max.bytes": "65536"}
    with Cluster(directory=tmp_path / "cluster", config=config) as cluster:
        bootstrap = cluster.bootstrap_server
        topic = TopicMaker(bootstrap).create()
        writer = Writer(bootstrap, topic)
        writer.send(500)
        writer.flush()
        small_disk.fill()
        codes = asyncio.run(produce_until_refused(bootstrap, topic))
        assert codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
        accepted_count = len(codes) - 1
        assert len(read_all(bootstrap, topic)) == 500 + accepted_count, "consumers read on"
        small_disk.free()
        more = asyncio.run(produce_when_possible(bootstrap, topic))
        assert more == 500 + accepted_count, "the next free offset: nothing half written"
        later = Writer(bootstrap, topic)
        later.send(100)
        later.flush()
        assert later.refused == []
        count = 500 + accepted_count + 101
        assert len(read_all(bootstrap, topic)) == count
        cluster.kill()
        cluster.restart()
        values = read_all(bootstrap, topic)
        assert len(values) == count
        assert values[:500] == sorted(writer.acknowledged, key=writer.acknowledged.__getitem__)


def test_a_producer_waits_a_full_disk_out(small_disk: SmallDisk, tmp_path: Path) -> None:
    config = {"log.dirs": str(small_disk.path / "data"), "log.index.size.max.bytes": "65536"}
    with Cluster(directory=tmp_path / "cluster", config=config) as cluster:
        topic = TopicMaker(cluster.bootstrap_server).create()
        writer = Writer(cluster.bootstrap_server, topic, **{"retry.backoff.ms": 50})
        writer.send(100)
        writer.flush()
        small_disk.fill()
        writer.send(300, size_bytes=1000)
        until(lambda: writer.poll() and says_full(cluster), what="the node says it is full")
        small_disk.free()
        writer.flush()
        assert writer.refused == []
        values = read_all(cluster.bootstrap_server, topic)
        assert [int(value.split(b":")[0]) for value in values] == list(range(400))


def says_full(cluster: Cluster) -> bool:
    """Whether the node's log names the full disk."""
    return "no space left" in cluster.node().log_path.read_text().lower()


async def produce_until_refused(bootstrap: str, topic: str) -> list[int]:
    """Error codes of batches of 100 kB, up to the first that is refused."""
    codes: list[int] = []
    async with connected(bootstrap) as connection:
        await topic_metadata(connection, topic)
        batch = encode_batch([Record(0, BASE_TIMESTAMP_MS, None, bytes(100_000))])
        while not codes or codes[-1] == ErrorCode.NONE:
            assert len(codes) < 400, "the disk should be full"
            codes.append((await produce_raw(connection, topic, batch)).error_code)
    return codes


async def produce_when_possible(bootstrap: str, topic: str) -> int:
    """The offset of one batch, tried until the node takes it."""
    async with connected(bootstrap) as connection:
        batch = encode_batch([Record(0, BASE_TIMESTAMP_MS, None, b"after")])
        accepted: list[int] = []

        async def is_taken() -> bool:
            answer = await produce_raw(connection, topic, batch)
            if answer.error_code == ErrorCode.NONE:
                accepted.append(int(answer.base_offset))
            return bool(accepted)

        await until_async(is_taken, what="the node takes records again")
    return accepted[0]
