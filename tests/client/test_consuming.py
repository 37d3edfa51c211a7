"""Reading by assignment: positions, times, pauses, transactions, memory, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import (
    Admin,
    Consumer,
    NoOffsetForPartition,
    OffsetOutOfRange,
    Producer,
    TopicPartition,
)
from moldau.client.serialization import JsonDeserializer
from tests.client.conftest import MakeTopic
from tests.client.reading import DEADLINE_S, read_some


async def fill(bootstrap: str, topic: str, count: int, *, partitions: int = 1, size: int = 0):
    """Records "0", "1", … by turns, a millisecond apart from 1,700,000,000,000 on."""
    async with Producer(bootstrap, linger_ms=5, batch_size=4_000) as producer:
        for number in range(count):
            await producer.wait_for_room()
            producer.send_nowait(
                topic,
                (b"%d" % number).ljust(size, b" "),
                partition=number % partitions,
                timestamp_ms=1_700_000_000_000 + number,
            )
        await producer.flush()


@pytest.fixture
async def filled(bootstrap: str, make_topic: MakeTopic) -> TopicPartition:
    """A partition of 1,000 records in many batches."""
    topic = await make_topic()
    await fill(bootstrap, topic, 1_000)
    return TopicPartition(topic, 0)


async def test_four_ways_to_poll_give_one_stream(bootstrap: str, filled: TopicPartition):
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([filled])
        offsets = [(await consumer.getone()).offset]
        async for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == 100:
                break
        polled = await consumer.getmany(max_records=50, timeout_ms=10_000)
        offsets += [record.offset for record in polled[filled]]
        assert await consumer.position(filled) == len(offsets)
        while len(offsets) < 1_000:
            batch = await consumer.poll_arrow(max_records=300, timeout_ms=10_000)
            assert batch.num_rows <= 300
            offsets += batch.column("offset").to_pylist()
        assert offsets == list(range(1_000))
        assert consumer.lag(filled) == 0


async def test_positions_can_be_set_and_asked_for(bootstrap: str, filled: TopicPartition):
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([filled])
        consumer.seek(filled, 700)
        assert (await consumer.getone()).offset == 700
        await consumer.seek_to_beginning(filled)
        assert (await consumer.getone()).offset == 0
        await consumer.seek_to_end(filled)
        assert await consumer.position(filled) == 1_000
        await consumer.seek_to_time({filled: 1_700_000_000_123})
        assert (await consumer.getone()).offset == 123
        assert await consumer.beginning_offsets([filled]) == {filled: 0}
        assert await consumer.end_offsets([filled]) == {filled: 1_000}
        found = await consumer.offsets_for_times({filled: 1_700_000_000_500})
        assert found[filled].offset == 500
        later = await consumer.offsets_for_times({filled: 1_800_000_000_000})
        assert later[filled] is None


async def test_a_paused_partition_waits(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic(partitions=2)
    await fill(bootstrap, topic, 400, partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([first, second])
        await consumer.getone()
        consumer.pause(first)
        assert consumer.paused() == {first}
        before = await consumer.position(first)
        found = await read_some(consumer, 100)
        assert {record.partition for record in found} == {1}
        assert await consumer.position(first) == before
        consumer.resume(first)
        rest = await read_some(consumer, 200 - before)
        assert [each.offset for each in rest if each.partition == 0] == list(range(before, 200))


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
async def test_where_it_begins_without_a_position(
    bootstrap: str, filled: TopicPartition, reset: str
):
    async with Consumer(bootstrap, auto_offset_reset=reset) as consumer:
        consumer.assign([filled])
        if reset == "none":
            with pytest.raises(NoOffsetForPartition):
                await consumer.getmany(timeout_ms=10_000)
        else:
            assert await consumer.position(filled) == (0 if reset == "earliest" else 1_000)


async def test_a_position_that_was_deleted(bootstrap: str, filled: TopicPartition):
    async with Admin(bootstrap) as admin:
        await admin.delete_records({filled: 600})
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([filled])
        consumer.seek(filled, 10)
        assert (await consumer.getone()).offset == 600
    async with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([filled])
        consumer.seek(filled, 10)
        with pytest.raises(OffsetOutOfRange):
            await consumer.getmany(timeout_ms=10_000)


async def test_small_limits_and_large_records_get_through(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic()
    await fill(bootstrap, topic, 60, size=50_000)
    async with Consumer(
        bootstrap,
        auto_offset_reset="earliest",
        fetch_max_bytes=10_000,
        max_partition_fetch_bytes=1_000,
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [each.offset for each in await read_some(consumer, 60)] == list(range(60))


async def test_a_cancelled_poll_loses_nothing(bootstrap: str, filled: TopicPartition):
    async with Consumer(bootstrap, auto_offset_reset="earliest", max_poll_records=7) as consumer:
        consumer.assign([filled])
        offsets: list[int] = []
        turn = 0
        async with asyncio.timeout(DEADLINE_S):
            while len(offsets) < 1_000:
                turn += 1
                polling = asyncio.create_task(consumer.getmany(timeout_ms=1_000))
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                if turn % 2 and polling.cancel():
                    await asyncio.gather(polling, return_exceptions=True)
                    if polling.cancelled():
                        continue
                for records in (await polling).values():
                    offsets += [record.offset for record in records]
        assert offsets == list(range(1_000))


async def test_deserializers(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic()
    async with Producer(bootstrap) as producer:
        await producer.send(topic, b'{"delay": 2}')
    async with Consumer(
        bootstrap, auto_offset_reset="earliest", value_deserializer=JsonDeserializer()
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert (await consumer.getone()).value == {"delay": 2}
