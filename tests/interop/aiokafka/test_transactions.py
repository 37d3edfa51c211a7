"""aiokafka: the transactional producer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced

from tests.interop.topics import TopicMaker, fresh_name, wait_decided
from tests.kit.waiting import until_async

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
PARTITIONS = 3


class ChangedMind(Exception):
    """Ends the block of a transaction."""


@asynccontextmanager
async def transactional(
    bootstrap: str, transactional_id: str, **config: Any
) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=transactional_id, **config
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def write(producer: AIOKafkaProducer, topic: str, values: list[bytes]) -> None:
    """Acknowledged, one partition after the other."""
    for number, value in enumerate(values):
        await producer.send_and_wait(topic, value, partition=number % PARTITIONS)


async def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All that can be read from the beginning on, sorted, once every transaction has ended."""
    await asyncio.to_thread(wait_decided, bootstrap, topic)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    await consumer.start()
    try:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[bytes] = []

        async def is_at_the_end() -> bool:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found.extend(record.value for record in records)
            for partition, end_offset in ends.items():
                if await consumer.position(partition) < end_offset:
                    return False
            return True

        await until_async(is_at_the_end, what="the ends", deadline_s=WAIT_S)
        return sorted(found)
    finally:
        await consumer.stop()


async def test_commit_and_abort(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    async with transactional(trio, fresh_name("aiokafka")) as producer:
        for number in range(4):
            await producer.begin_transaction()
            await write(producer, topic, [b"%d" % number] * PARTITIONS)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        with contextlib.suppress(ChangedMind):
            async with producer.transaction():
                await write(producer, topic, [b"never"])
                raise ChangedMind
        async with producer.transaction():
            await write(producer, topic, [b"last"])
    assert await read(trio, topic) == [b"0"] * 3 + [b"2"] * 3 + [b"last"]
    assert len(await read(trio, topic, "read_uncommitted")) == 14


async def test_a_newer_producer_fences_the_old_one(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    transactional_id = fresh_name("aiokafka")
    zombie = AIOKafkaProducer(bootstrap_servers=trio, transactional_id=transactional_id)
    await zombie.start()
    try:
        await zombie.begin_transaction()
        await write(zombie, topic, [b"zombie"] * PARTITIONS)
        async with transactional(trio, transactional_id) as new, new.transaction():
            await write(new, topic, [b"new"] * PARTITIONS)
        with pytest.raises(ProducerFenced):
            await zombie.commit_transaction()
    finally:
        await zombie.stop()
    assert await read(trio, topic) == [b"new"] * PARTITIONS


async def committed(consumer: AIOKafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
    """Wait until the group has the offsets: this client asks for them without waiting for those of
    a transaction whose markers are on their way.
    """

    async def are_there() -> bool:
        return {each: await consumer.committed(each) for each in offsets} == offsets

    await until_async(are_there, what="the transaction's offsets", deadline_s=WAIT_S)


async def test_consume_transform_produce(trio: str, trio_topics: TopicMaker) -> None:
    """An aborted round is done again by the group's next member, a committed one is not."""
    source = trio_topics.create(partitions=PARTITIONS)
    target = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("aiokafka")
    values = [b"%04d" % number for number in range(90)]
    async with transactional(trio, fresh_name("aiokafka"), linger_ms=1) as producer:
        async with producer.transaction():
            await asyncio.gather(
                *[
                    await producer.send(source, value, partition=number % PARTITIONS)
                    for number, value in enumerate(values)
                ]
            )
        for is_committed in (False, True, False, True):
            consumer = AIOKafkaConsumer(
                source,
                bootstrap_servers=trio,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                heartbeat_interval_ms=200,
            )
            await consumer.start()
            try:
                await producer.begin_transaction()
                records = [
                    await asyncio.wait_for(consumer.getone(), WAIT_S)
                    for _ in range(len(values) // 2)
                ]
                await write(producer, target, [record.value for record in records])
                offsets = {
                    TopicPartition(record.topic, record.partition): record.offset + 1
                    for record in records
                }
                await producer.send_offsets_to_transaction(offsets, group)
                if is_committed:
                    await producer.commit_transaction()
                    await committed(consumer, offsets)
                else:
                    await producer.abort_transaction()
            finally:
                await consumer.stop()
    assert await read(trio, target) == values
