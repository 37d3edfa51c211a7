"""aiokafka: producing and reading by assignment, on asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from tests.interop.drivers import AioKafka
from tests.interop.samples import BASE_TIMESTAMP_MS, Rec
from tests.interop.topics import TopicMaker, fresh_name

WAIT_S = 20.0
LOG_APPEND_TIME = 1


@asynccontextmanager
async def producing(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, **config)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_level(bootstrap: str, topic: str, acks: int | str) -> None:
    driver = AioKafka()
    records = [Rec(b"k", b"%d" % number) for number in range(300)]
    driver.write(bootstrap, topic, records, acks=acks)
    assert driver.read(bootstrap, topic, len(records)) == records


async def test_acknowledgements_say_where_a_record_is(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(partitions=2)
    async with producing(bootstrap) as producer:
        for number in range(3):
            placed = await producer.send_and_wait(
                topic, b"v", partition=1, timestamp_ms=BASE_TIMESTAMP_MS
            )
            assert (placed.topic, placed.partition, placed.offset) == (topic, 1, number)
            assert placed.timestamp == BASE_TIMESTAMP_MS
            assert placed.log_start_offset == 0


async def test_the_broker_may_stamp_the_time(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    async with producing(bootstrap) as producer:
        placed = await producer.send_and_wait(topic, b"v", timestamp_ms=BASE_TIMESTAMP_MS)
    after_ms = int(time.time() * 1000)
    assert placed.timestamp_type == LOG_APPEND_TIME
    assert before_ms <= placed.timestamp <= after_ms
    async with consuming(bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        record = await asyncio.wait_for(consumer.getone(partition), WAIT_S)
        assert record.timestamp_type == LOG_APPEND_TIME
        assert record.timestamp == placed.timestamp


async def test_begin_end_and_seek_by_time(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with producing(bootstrap) as producer:
        for number in range(20):
            await producer.send_and_wait(
                topic, b"%d" % number, timestamp_ms=BASE_TIMESTAMP_MS + 1000 * number
            )
    async with consuming(bootstrap) as consumer:
        consumer.assign([partition])
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 20}
        found = (await consumer.offsets_for_times({partition: BASE_TIMESTAMP_MS + 7001}))[partition]
        assert found is not None
        assert (found.offset, found.timestamp) == (8, BASE_TIMESTAMP_MS + 8000)
        later = await consumer.offsets_for_times({partition: BASE_TIMESTAMP_MS + 99_000})
        assert later[partition] is None
        consumer.seek(partition, found.offset)
        assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"8"
        await consumer.seek_to_end(partition)
        assert await consumer.position(partition) == 20


async def test_an_offset_beyond_the_end_is_out_of_range(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with consuming(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 99)
        with pytest.raises(OffsetOutOfRangeError):
            await asyncio.wait_for(consumer.getone(), WAIT_S)


async def test_a_waiting_consumer_hears_of_new_records(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    async with (
        consuming(bootstrap, fetch_max_wait_ms=10_000) as consumer,
        producing(bootstrap) as producer,
    ):
        consumer.assign([partition])
        consumer.seek(partition, 0)
        waiting = asyncio.create_task(consumer.getone())
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        await producer.send_and_wait(topic, b"news")
        assert (await asyncio.wait_for(waiting, WAIT_S)).value == b"news"


def test_large_messages(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"max.message.bytes": "9000000"})
    driver = AioKafka()
    records = [Rec(b"big", bytes([number]) * 6_000_000) for number in range(2)]
    driver.write(bootstrap, topic, records)
    assert driver.read(bootstrap, topic, 2) == records


async def test_a_message_over_the_topics_limit_is_refused(
    bootstrap: str, topics: TopicMaker
) -> None:
    topic = topics.create(config={"max.message.bytes": "1000"})
    async with producing(bootstrap) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, b"x" * 2000)
        assert (await producer.send_and_wait(topic, b"x" * 500)).offset == 0


async def test_idempotent_batches_arrive_once_and_in_order(bootstrap: str, topic: str) -> None:
    values = [b"%d" % number for number in range(1000)]
    async with producing(bootstrap, enable_idempotence=True, max_batch_size=500) as producer:
        futures = [await producer.send(topic, value, partition=0) for value in values]
        placed = await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
    assert [report.offset for report in placed] == list(range(1000))
    driver = AioKafka()
    read = await asyncio.to_thread(driver.read, bootstrap, topic, 1000)
    assert [rec.value for rec in read] == values


async def test_producing_creates_the_topic(bootstrap: str) -> None:
    topic = fresh_name("auto")
    async with producing(bootstrap) as producer:
        assert (await producer.send_and_wait(topic, b"v")).offset == 0
