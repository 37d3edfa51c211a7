"""The consumer's promises, on a fake cluster: nothing lost, nothing left behind, bounds kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest

from moldau.client import (
    ConcurrentUse,
    Consumer,
    InvalidSubscription,
    KafkaError,
    NoBrokerAvailable,
    TopicPartition,
    WrongEventLoop,
)
from moldau.client.consumer.core.faults import NotAssigned, RecordDeserializationError
from moldau.client.records import ConsumerRecord
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.records import Record
from tests.fake_broker import KAFKA_2_1, KAFKA_2_8, KAFKA_4_3, AnswerError, FakeCluster
from tests.fake_broker.versions import Versions
from tests.kit.absent import ABSENT
from tests.kit.dice import drawn_seed
from tests.unit.client.faults.harness import CONSUMER, ends
from tests.virtual.machine import pass_time

P0, P1, P2 = (TopicPartition("t", index) for index in range(3))


def filled(cluster: FakeCluster, size: int, partitions: int = 3) -> list[bytes]:
    """`size` records in each partition, in several batches."""
    for index in range(partitions):
        for first in range(0, size, 10):
            last = min(first + 10, size)
            cluster.fill("t", [b"%d-%d" % (index, each) for each in range(first, last)], index)
    return [b"%d-%d" % (index, each) for index in range(partitions) for each in range(size)]


def client_tasks() -> set[str]:
    """The tasks of clients that run at the moment."""
    codes = {task: task.get_coro().cr_code for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    return {task.get_name() for task, code in codes.items() if "moldau/client" in code.co_filename}


async def read_all(consumer: Consumer, total: int) -> list[bytes]:
    """Read by `getmany`, until there are that many."""
    seen: list[bytes] = []
    while len(seen) < total:
        for records in (await ends(consumer.getmany(timeout_ms=5_000), "poll")).values():
            seen += [record.value for record in records]
    return seen


def by_partition(values: list[bytes]) -> list[bytes]:
    """The values in the order of their partitions, keeping the order within."""
    return sorted(values, key=lambda value: value.partition(b"-")[0])


class Ways:
    """Every way to poll, chosen at random; what each has handed out goes into `seen`."""

    def __init__(self, consumer: Consumer, source: random.Random) -> None:
        self.seen: list[bytes] = []
        self._consumer = consumer
        self._source = source

    def poll(self) -> Awaitable[None]:
        ways = (self._many, self._one, self._some, self._arrow)
        return self._source.choice(ways[: 3 if "pyarrow" in ABSENT else 4])()

    def _note(self, records: list[ConsumerRecord]) -> None:
        self.seen += [record.value for record in records]

    async def _many(self) -> None:
        for records in (await self._consumer.getmany(self._limit(), 200)).values():
            self._note(records)

    async def _one(self) -> None:
        self._note([await self._consumer.getone()])

    async def _some(self) -> None:
        async for record in self._consumer:
            self._note([record])
            if self._source.random() < 0.2:
                break

    async def _arrow(self) -> None:
        batch = await self._consumer.poll_arrow(self._limit(), 200)
        self.seen += batch.column("value").to_pylist()

    def _limit(self) -> int:
        return self._source.randint(1, 40)


async def test_ways_of_polling_and_cancelling_anywhere_give_every_record_once():
    """Polls are cancelled after any number of turns of the loop: the next ones go on."""
    seed = drawn_seed()
    source = random.Random(seed)
    async with FakeCluster(2, topics={"t": 3}) as cluster:
        expected = filled(cluster, 120)
        settings = {**CONSUMER, "max_partition_fetch_bytes": 400}
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0, P1, P2])
            ways = Ways(consumer, source)
            while len(ways.seen) < len(expected):
                polling = asyncio.ensure_future(ways.poll())
                for _ in range(source.choice((0, 1, 2, 3, 5, 8, 1_000))):
                    if not polling.done():
                        await asyncio.sleep(0)
                if source.random() < 0.5:
                    polling.cancel()
                await ends(asyncio.wait([polling], timeout=1), "the poll")
                polling.cancel()
                await asyncio.wait([polling])
                assert polling.cancelled() or polling.exception() is None
                if source.random() < 0.1:
                    cluster.move_leader("t", source.randrange(3))
            assert by_partition(ways.seen) == expected
            positions = {name: each.offset for name, each in consumer.positions().items()}
            assert positions == dict.fromkeys((P0, P1, P2), 120)


@pytest.mark.parametrize("versions", [KAFKA_2_1, KAFKA_2_8, KAFKA_4_3])
async def test_closing_leaves_no_task_no_socket_and_no_session(versions: Versions):
    async with FakeCluster(2, topics={"t": 3}, versions=versions) as cluster:
        expected = filled(cluster, 5)
        consumer = Consumer(cluster.bootstrap_servers, **CONSUMER)
        async with consumer:
            consumer.assign([P0, P1, P2])
            assert by_partition(await read_all(consumer, len(expected))) == expected
            await consumer.getmany(timeout_ms=100)
        assert client_tasks() == set()
        tasks = [each.task for node in cluster.nodes.values() for each in node.connections]
        if tasks:
            assert not (await asyncio.wait(tasks, timeout=20))[1]
        assert not any(node.fetch_sessions._sessions for node in cluster.nodes.values())


async def test_a_cancelled_close_closes_all_the_same():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        filled(cluster, 5, 1)
        consumer = Consumer(cluster.bootstrap_servers, **CONSUMER)
        consumer.assign([P0])
        await read_all(consumer, 5)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await ends(consumer.close(), "closing again")
        assert client_tasks() == set()


async def test_what_is_fetched_ahead_stays_within_its_bound():
    async with FakeCluster(1, topics={"t": 3}) as cluster:
        value = b"v" * 10_000
        for index in range(3):
            for _ in range(60):
                cluster.fill("t", [value], index)
        settings = {
            **CONSUMER,
            "fetch_buffer_bytes": 100_000,
            "fetch_max_bytes": 50_000,
            "max_partition_fetch_bytes": 20_000,
        }
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0, P1, P2])
            await ends(consumer.getone(), "the first record")
            memory = consumer._buffer.memory
            seen, highest = 1, 0
            while seen < 180:
                # The fetcher goes on between two polls for as long as it likes.
                await pass_time(1_000)
                highest = max(highest, memory.pinned_bytes)
                for records in (await consumer.getmany(4, timeout_ms=5_000)).values():
                    seen += len(records)
            assert 50_000 < highest <= 100_000 + 50_000 + 11_000
            assert (await consumer.getmany(timeout_ms=0)) == {}
            assert memory.pinned_bytes == 0


async def test_records_larger_than_every_limit_get_through():
    async with FakeCluster(1, topics={"t": 2}) as cluster:
        for index in range(2):
            for size in (10, 50_000, 10, 80_000):
                cluster.fill("t", [b"%d-" % index + b"v" * size], index)
        settings = {
            **CONSUMER,
            "fetch_max_bytes": 1_000,
            "max_partition_fetch_bytes": 100,
            "fetch_buffer_bytes": 1,
        }
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0, P1])
            values = by_partition(await read_all(consumer, 8))
            assert [len(value) for value in values] == [12, 50_002, 12, 80_002] * 2


async def test_sessions_name_only_what_is_new():
    async with FakeCluster(1, topics={"t": 3}) as cluster:
        filled(cluster, 5)
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([P0, P1, P2])
            await read_all(consumer, 15)
            cluster.fill("t", [b"1-x"], 1)
            assert await read_all(consumer, 1) == [b"1-x"]
            await cluster.until(lambda: len(cluster.recorder.of(FetchRequest)) > 3)
            requests = cluster.recorder.of(FetchRequest)
            assert requests[0].session_epoch == 0
            later = [request for request in requests if request.session_epoch > 0]
            assert later
            assert all(
                each.partition == 1
                for request in later[1:]
                for topic in request.topics
                for each in topic.partitions
            )


@pytest.mark.parametrize("buffer_bytes", [1 << 20, 1])
async def test_a_paused_partition_is_neither_fetched_nor_forgotten(buffer_bytes: int):
    """Nor does it keep others from being read, however little may be fetched ahead."""
    async with FakeCluster(1, topics={"t": 2}) as cluster:
        filled(cluster, 20, 2)
        settings = {**CONSUMER, "fetch_buffer_bytes": buffer_bytes}
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0, P1])
            first = await ends(consumer.getone(), "the first")
            other = P1 if first.partition == 0 else P0
            consumer.pause(first.topic_partition)
            assert consumer.paused() == {first.topic_partition}
            values = await read_all(consumer, 20)
            assert {value[:1] for value in values} == {b"%d" % other.partition}
            assert await consumer.getmany(timeout_ms=50) == {}
            cluster.fill("t", [b"new"], other.partition)
            assert await read_all(consumer, 1) == [b"new"]
            consumer.resume(first.topic_partition)
            assert len(await read_all(consumer, 19)) == 19


async def test_positions_by_time_and_by_duration():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        now = cluster.now_ms()
        records = [Record(0, now - age, None, b"%d" % age) for age in (90_000, 60_000, 30_000)]
        cluster.log("t", 0).append_records(records)
        settings = {**CONSUMER, "auto_offset_reset": "by_duration:PT70S"}
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0])
            assert (await ends(consumer.getone(), "the record")).value == b"60000"
            await ends(consumer.seek_to_time({P0: now - 30_000}), "seek")
            assert await consumer.position(P0) == 2
            await ends(consumer.seek_to_time({P0: now + 1}), "seek behind the last")
            assert await consumer.position(P0) == 3
            found = await consumer.offsets_for_times({P0: now - 90_000})
            assert found[P0] is not None
            assert (found[P0].offset, found[P0].timestamp_ms) == (0, now - 90_000)
            assert await consumer.offsets_for_times({P0: now + 1}) == {P0: None}
            assert await consumer.beginning_offsets([P0]) == {P0: 0}
            assert await consumer.end_offsets([P0]) == {P0: 3}
            consumer.seek(P0, 1)
            assert (await consumer.getone()).value == b"60000"
            assert consumer.lag(P0) == 1
        settings["auto_offset_reset"] = "by_duration:PT1S"
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0])
            # Nothing is that young: what comes from now on is read.
            assert await ends(consumer.position(P0), "position") == 3


async def test_a_deserializer_that_fails_names_its_record_and_can_be_passed():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fill("t", [b"1", b"2", b"x", b"4"])
        async with Consumer(
            cluster.bootstrap_servers, value_deserializer=int, **CONSUMER
        ) as consumer:
            consumer.assign([P0])
            assert await read_all(consumer, 2) == [1, 2]
            with pytest.raises(RecordDeserializationError, match="offset 2") as info:
                await ends(consumer.getone(), "the bad record")
            assert isinstance(info.value.__cause__, ValueError)
            consumer.seek(info.value.topic_partition, info.value.offset + 1)
            assert (await ends(consumer.getone(), "the next")).value == 4


async def test_two_polls_at_once_are_refused_and_the_first_goes_on():
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer,
    ):
        consumer.assign([P0])
        first = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentUse, match="one poll at a time"):
            await consumer.getmany()
        cluster.fill("t", [b"late"])
        assert (await ends(first, "the first poll")).value == b"late"


async def test_misuse_raises_an_error_that_names_it():
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer,
    ):
        with pytest.raises(InvalidSubscription, match="assign"):
            await consumer.getmany()
        consumer.assign([P0])
        with pytest.raises(NotAssigned, match="t-1"):
            consumer.pause(P1)
        with pytest.raises(TypeError, match="TopicPartition"):
            consumer.assign(["t"])  # type: ignore[list-item]

        def elsewhere() -> None:
            asyncio.run(consumer.getmany())

        with pytest.raises(WrongEventLoop):
            await asyncio.to_thread(elsewhere)


async def test_a_cluster_that_cannot_be_reached_raises():
    address = "127.0.0.1:1"
    settings = {**CONSUMER, "default_api_timeout_ms": 300, "request_timeout_ms": 200}
    async with Consumer(address, **settings) as consumer:
        consumer.assign([P0])
        with pytest.raises(NoBrokerAvailable, match=address):
            await ends(consumer.getone(), "the poll")


async def test_a_topic_that_may_not_be_read_raises_behind_what_came_before():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fill("t", [b"a"])
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([P0])
            assert (await ends(consumer.getone(), "the record")).value == b"a"
            fault = cluster.fault(
                ApiKey.FETCH, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), times=1
            )
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await ends(consumer.getone(), "the refusal")
            assert fault is not None
            cluster.fill("t", [b"b"])
            assert (await ends(consumer.getone(), "the next record")).value == b"b"
