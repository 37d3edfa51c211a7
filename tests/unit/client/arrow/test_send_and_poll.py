"""Tables through a producer and a consumer: the same records as one by one, whatever goes wrong."""

from __future__ import annotations

import asyncio
import random
from array import array
from typing import Any

import pyarrow as pa
import pytest

from moldau.client import Consumer, Producer, TopicPartition
from moldau.client.arrow import ArrowDelivery
from moldau.client.errors import (
    BufferFull,
    ClientClosed,
    KafkaError,
    RecordTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.records import Codec, murmur2_partition
from tests.fake_broker import AnswerError, FakeCluster, Stall
from tests.unit.client.faults.harness import CONSUMER, PRODUCER, ends
from tests.virtual.machine import pass_time

from .tables import HEADERS, rechunked

KEYS = [None, b"", b"AA", b"UA", b"DL"]


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(cluster.bootstrap_servers, **{**PRODUCER, **settings})


def consumer_of(cluster: FakeCluster, *partitions: TopicPartition, **settings: Any) -> Consumer:
    consumer = Consumer(cluster.bootstrap_servers, **{**CONSUMER, **settings})
    consumer.assign(partitions)
    return consumer


def table_of(count: int, seed: int = 1, *, with_null_keys: bool = True) -> pa.Table:
    source = random.Random(seed)
    keys = KEYS if with_null_keys else KEYS[1:]
    return pa.table(
        {
            "key": pa.array([source.choice(keys) for _ in range(count)], pa.binary()),
            "value": pa.array([f"value {number}".encode() for number in range(count)], pa.binary()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % n}] if n % 3 == 0 else None for n in range(count)],
                HEADERS,
            ),
            "timestamp": pa.array(range(1000, 1000 + count), pa.timestamp("ms", "UTC")),
        }
    )


def contents(cluster: FakeCluster, topic: str = "t") -> list[list[tuple[Any, ...]]]:
    """What lies in each partition."""
    return [
        [(r.timestamp_ms, r.key, r.value, r.headers) for r in cluster.records(topic, partition)]
        for partition in range(len(cluster.topics[topic].partitions))
    ]


def row(table: pa.Table, number: int) -> tuple[Any, ...]:
    found = table.slice(number, 1).to_pylist()[0]
    headers = tuple((header["key"], header["value"]) for header in found.get("headers") or ())
    return 1000 + number, found["key"], found["value"], headers


def counted(delivery: ArrowDelivery) -> int:
    return sum(count for ranges in delivery.partitions.values() for _, count in ranges)


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_table_is_the_same_records_as_one_by_one(codec) -> None:
    table = table_of(300, with_null_keys=False)
    async with (
        FakeCluster(2, topics={"t": 4, "u": 4}) as cluster,
        producer_of(cluster, compression_type=codec.name.lower()) as producer,
    ):
        delivery = await ends(producer.send_arrow("t", rechunked(table, 5)), "send_arrow")
        await asyncio.gather(
            *(
                producer.send("u", value, key=key, headers=headers, timestamp_ms=timestamp_ms)
                for timestamp_ms, key, value, headers in (row(table, n) for n in range(300))
            )
        )
        assert contents(cluster, "t") == contents(cluster, "u")
        assert delivery.row_count == counted(delivery) == 300
        assert delivery.partitions == {
            TopicPartition("t", number): ((0, len(records)),)
            for number, records in enumerate(contents(cluster))
            if records
        }


async def test_columns_say_topic_and_partition() -> None:
    table = table_of(60)
    topics = ["t" if number % 2 else "u" for number in range(60)]
    places = [None if number % 3 == 0 else number % 5 for number in range(60)]
    table = table.append_column("topic", pa.array(topics))
    table = table.append_column("partition", pa.array(places, pa.int64()))
    async with (
        FakeCluster(2, topics={"t": 5, "u": 7}) as cluster,
        producer_of(cluster) as producer,
    ):
        delivery = await ends(producer.send_arrow(None, table), "send_arrow")
        assert delivery.row_count == 60
        for topic, count in (("t", 5), ("u", 7)):
            seen = contents(cluster, topic)
            for number in range(60):
                if topics[number] != topic:
                    continue
                record = row(table, number)
                place = places[number]
                if place is None and record[1] is not None:
                    place = murmur2_partition(record[1], count)
                found = [at for at, records in enumerate(seen) if record in records]
                assert found == [place] if place is not None else len(found) == 1
        # For all rows, over what the columns say.
        await ends(producer.send_arrow("u", table, partition=6), "send_arrow")
        assert len(contents(cluster, "u")[6]) >= 60


async def test_order_is_that_of_the_calls_among_tables_and_records() -> None:
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, linger_ms=1000) as producer,
    ):
        first = producer.send_nowait("t", b"first")
        await ends(producer.send_arrow("t", pa.table({"value": [b"1", b"2"]})), "send_arrow")
        last = producer.send_nowait("t", b"last")
        await ends(producer.flush(), "flush")
        assert (first.result().offset, last.result().offset) == (0, 3)
        assert cluster.values("t") == [b"first", b"1", b"2", b"last"]


async def test_batches_are_as_large_as_a_request_may_be_and_no_larger() -> None:
    table = pa.table({"value": pa.array([bytes(1000)] * 5000)})
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, max_request_size=100_000) as producer,
    ):
        delivery = await ends(producer.send_arrow("t", table), "send_arrow")
        assert delivery.partitions == {TopicPartition("t", 0): ((0, 5000),)}
        # 98 rows fill a request: not one of 16 KB (batch.size) each.
        assert 51 <= cluster.recorder.count(ApiKey.PRODUCE) <= 60


async def test_memory_stays_below_its_limit_while_the_broker_is_slow() -> None:
    table = pa.table({"value": pa.array([bytes(1000)] * 3000)})
    limit = 256 * 1024
    async with (
        FakeCluster(1, topics={"t": 3}) as cluster,
        producer_of(cluster, buffer_memory=limit) as producer,
    ):
        accumulator = producer._accumulator
        least = limit
        sending = asyncio.create_task(producer.send_arrow("t", table))
        while not sending.done():
            least = min(least, accumulator.free_bytes)
            await pass_time(0.01)
        assert sending.result().row_count == 3000
        assert 0 <= least < limit // 2, "memory was used, and never more than there is"
        assert accumulator.free_bytes == limit


async def test_without_room_in_time_it_ends_with_buffer_full() -> None:
    table = pa.table({"value": pa.array([bytes(1000)] * 3000)})
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
        producer = producer_of(
            cluster,
            buffer_memory=256 * 1024,
            max_block_ms=100,
            request_timeout_ms=150,
            delivery_timeout_ms=300,
        )
        async with producer:
            with pytest.raises((BufferFull, KafkaError)):
                await ends(producer.send_arrow("t", table), "send_arrow")
            await producer.close(0)


async def test_a_retry_neither_doubles_nor_reorders() -> None:
    table = pa.table({"value": [f"{number}".encode() for number in range(2000)]})
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, max_request_size=1000) as producer,
    ):
        for nth in (1, 4, 9):
            cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), nth=nth)
            cluster.fault(
                ApiKey.PRODUCE,
                AnswerError(ErrorCode.REQUEST_TIMED_OUT, after_apply=True),
                nth=nth + 1,
            )
        delivery = await ends(producer.send_arrow("t", table), "send_arrow")
        assert cluster.values("t") == table.column("value").to_pylist()
        assert delivery.row_count == 2000


async def test_a_batch_too_large_for_the_topic_is_split() -> None:
    table = pa.table({"value": [f"{number}".encode() for number in range(1000)]})
    async with FakeCluster(1, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.MESSAGE_TOO_LARGE))
        delivery = await ends(producer.send_arrow("t", table), "send_arrow")
        assert cluster.values("t") == table.column("value").to_pylist()
        assert delivery.partitions == {TopicPartition("t", 0): ((0, 1000),)}


async def test_what_is_refused_for_good_is_raised_when_all_has_ended() -> None:
    table = pa.table({"value": [b"x" * 100] * 100})
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, max_request_size=2000) as producer,
    ):
        cluster.fault(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), nth=2)
        with pytest.raises(KafkaError) as caught:
            await ends(producer.send_arrow("t", table), "send_arrow")
        assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not producer._accumulator.incomplete
        assert 0 < len(cluster.values("t")) < 100


async def test_a_cancelled_sending_appends_nothing_more() -> None:
    table = pa.table({"value": pa.array([bytes(1000)] * 3000)})
    async with (
        FakeCluster(1, topics={"t": 1}) as cluster,
        producer_of(cluster, buffer_memory=128 * 1024) as producer,
    ):
        sending = asyncio.create_task(producer.send_arrow("t", table))
        await cluster.until(lambda: cluster.values("t"))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await ends(producer.flush(), "flush")
        stored = len(cluster.values("t"))
        assert 0 < stored < 3000
        await ends(producer.send("t", b"next"), "send")
        assert len(cluster.values("t")) == stored + 1


async def test_tables_in_transactions_are_seen_when_committed_and_never_when_aborted() -> None:
    async with FakeCluster(2, topics={"t": 2}) as cluster:
        async with producer_of(cluster, transactional_id="x") as producer:
            await ends(producer.init_transactions(), "init_transactions")
            producer.begin_transaction()
            await ends(producer.send_arrow("t", pa.table({"value": [b"no"] * 50})), "send_arrow")
            await ends(producer.abort_transaction(), "abort_transaction")
            async with producer.transaction():
                delivery = await ends(
                    producer.send_arrow("t", pa.table({"value": [b"yes"] * 50})), "send_arrow"
                )
            assert delivery.row_count == 50
        partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
        async with consumer_of(cluster, *partitions, isolation_level="read_committed") as consumer:
            seen: list[bytes] = []
            while len(seen) < 50:
                batch = await ends(consumer.poll_arrow(timeout_ms=5000), "poll_arrow")
                seen += batch.column("value").to_pylist()
            assert seen == [b"yes"] * 50
            assert (await consumer.poll_arrow(timeout_ms=100)).num_rows == 0


@pytest.mark.parametrize(
    ("data", "error", "word"),
    [
        (pa.table({"value": [1]}), SerializationError, "int64"),
        ([b"value"], SerializationError, "holds no Arrow data"),
        (pa.table({"value": [bytes(200_000)]}), RecordTooLarge, "max.request.size"),
        (pa.table({"value": [b""], "partition": [3]}), UnknownTopicOrPartition, "3"),
    ],
)
async def test_what_cannot_be_sent_is_one_clear_error(data, error, word) -> None:
    async with (
        FakeCluster(1, topics={"t": 2}) as cluster,
        producer_of(cluster, max_request_size=100_000, max_block_ms=800) as producer,
    ):
        with pytest.raises(error, match=word):
            await ends(producer.send_arrow("t", data), "send_arrow")
        assert cluster.values("t") == []
    with pytest.raises(ClientClosed):
        await producer.send_arrow("t", pa.table({"value": [b""]}))


async def test_polls_give_every_record_once_however_they_are_limited_and_mixed() -> None:
    source = random.Random(11)
    table = table_of(500)
    async with FakeCluster(2, topics={"t": 3}) as cluster:
        async with producer_of(cluster, max_request_size=4000) as producer:
            await ends(producer.send_arrow("t", table), "send_arrow")
        partitions = [TopicPartition("t", number) for number in range(3)]
        async with consumer_of(cluster, *partitions) as consumer:
            seen: list[list[tuple[Any, ...]]] = [[], [], []]
            while sum(map(len, seen)) < 500:
                limit = source.randint(1, 60)
                if source.random() < 0.5:
                    batch = await ends(consumer.poll_arrow(limit, timeout_ms=5000), "poll_arrow")
                    assert 0 < batch.num_rows <= limit
                    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
                    for each, time_us in zip(batch.to_pylist(), times, strict=True):
                        assert each["offset"] == len(seen[each["partition"]])
                        headers = tuple((h["key"], h["value"]) for h in each["headers"] or ())
                        seen[each["partition"]].append(
                            (time_us // 1000, each["key"], each["value"], headers)
                        )
                else:
                    found = await ends(consumer.getmany(limit, timeout_ms=5000), "getmany")
                    for partition, records in found.items():
                        for r in records:
                            assert r.offset == len(seen[partition.partition])
                            seen[partition.partition].append(
                                (r.timestamp_ms, r.key, r.value, r.headers)
                            )
            assert seen == contents(cluster)
            assert (await consumer.poll_arrow(timeout_ms=0)).num_rows == 0
            consumer.seek(partitions[0], 3)
            batch = await ends(consumer.poll_arrow(2, timeout_ms=5000), "poll_arrow")
            assert list(array("q", batch.column("offset").to_pylist())) == [3, 4]
