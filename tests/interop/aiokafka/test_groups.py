"""aiokafka: consumer groups with each of its assignors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError

from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until_async

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
PARTITIONS = 4
ASSIGNORS = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]


class Revocations(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts rebalances, and does something before partitions are given back."""

    def __init__(self, before: Callable[[], Any] | None = None) -> None:
        self.count = 0
        self._before = before

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.count += 1
        if self._before is not None and revoked:
            await self._before()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        pass


@asynccontextmanager
async def in_group(
    bootstrap: str, group: str, *topics: str, listener: Any = None, **config: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        metadata_max_age_ms=1000,
        **config,
    )
    await consumer.start()
    try:
        if topics:
            consumer.subscribe(topics, listener=listener)
        yield consumer
    finally:
        await consumer.stop()


async def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        await asyncio.gather(
            *[
                await producer.send(topic, value, partition=number % PARTITIONS)
                for number, value in enumerate(values)
            ]
        )
    finally:
        await producer.stop()


async def read(consumer: AIOKafkaConsumer, count: int) -> list[bytes]:
    """So many values, sorted."""
    found: list[bytes] = []

    async def is_read() -> bool:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            found.extend(record.value for record in records)
        return len(found) >= count

    await until_async(is_read, what=f"{count} records", deadline_s=WAIT_S)
    return sorted(found)


async def shared(counts: list[int], *consumers: AIOKafkaConsumer) -> None:
    """Wait until the consumers have so many partitions each, all different."""

    async def is_shared() -> bool:
        for consumer in consumers:
            await consumer.getmany(timeout_ms=20)
        shares = [consumer.assignment() for consumer in consumers]
        return sorted(map(len, shares)) == counts and len(set().union(*shares)) == sum(counts)

    await until_async(is_shared, what=f"{counts} partitions each", deadline_s=WAIT_S)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_two_share_and_one_takes_over(
    trio: str, trio_topics: TopicMaker, assignor: type
) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("aiokafka")
    config = {"partition_assignment_strategy": [assignor]}
    values = [b"%04d" % number for number in range(200)]
    async with in_group(trio, group, topic, **config) as first:
        async with in_group(trio, group, topic, **config) as second:
            await shared([2, 2], first, second)
            await write(trio, topic, values)
            found = await asyncio.gather(read(first, 100), read(second, 100))
            assert sorted(sum(found, [])) == values  # noqa: RUF017
            await second.commit()
            await first.commit()
        await shared([PARTITIONS], first)
        await write(trio, topic, [b"later"] * PARTITIONS)
        assert await read(first, PARTITIONS) == [b"later"] * PARTITIONS


async def test_commits_with_metadata_and_auto_commit(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("aiokafka")
    await write(trio, topic, [b"v"] * 40)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with in_group(trio, group, topic) as consumer:
        await shared([PARTITIONS], consumer)
        await consumer.commit({first: OffsetAndMetadata(4, "four"), second: 10})
        assert await consumer.committed(first) == 4
        assert await consumer.committed(TopicPartition(topic, 2)) is None
    admin = AIOKafkaAdminClient(bootstrap_servers=trio)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(group)
        assert offsets[first] == OffsetAndMetadata(4, "four")
        assert group in [name for name, *_ in await admin.list_consumer_groups()]
        [described] = await admin.describe_consumer_groups([group])
        assert dict(described.to_object()["groups"][0])["state"] == "Empty"
    finally:
        await admin.close()
    async with in_group(trio, group, topic) as consumer:
        assert len(await read(consumer, 26)) == 6 + 20


async def test_a_rebalance_gives_time_to_commit(trio: str, trio_topics: TopicMaker) -> None:
    """What is committed while partitions are given back is not read by the next owner."""
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("aiokafka")
    values = [b"%04d" % number for number in range(40)]
    await write(trio, topic, values)
    async with in_group(trio, group) as first:
        listener = Revocations(before=first.commit)
        first.subscribe([topic], listener=listener)
        assert await read(first, 40) == values
        async with in_group(trio, group, topic) as second:
            await shared([2, 2], first, second)
            assert listener.count >= 2
            await write(trio, topic, [b"new"] * 8)
            assert await read(second, 4) == [b"new"] * 4


async def test_a_member_that_does_not_poll_is_thrown_out(
    trio: str, trio_topics: TopicMaker
) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("aiokafka")
    slow = {"max_poll_interval_ms": 1000, "session_timeout_ms": 2000}
    await write(trio, topic, [b"v"] * 8)
    async with in_group(trio, group, topic, **slow) as first:
        await first.getone()
        async with in_group(trio, group, topic) as second:
            # The first has records it does not ask for, and misses the rebalance.
            await shared([PARTITIONS], second)
            # It may have noticed by now.
            with pytest.raises((CommitFailedError, IllegalStateError)):
                await first.commit({TopicPartition(topic, 0): 1})


async def test_patterns_find_topics_that_come_later(trio: str, trio_topics: TopicMaker) -> None:
    prefix = fresh_name("aiokafka")
    await asyncio.to_thread(trio_topics.create, f"{prefix}-1")
    async with in_group(trio, fresh_name("pattern")) as consumer:
        consumer.subscribe(pattern=f"{prefix}-.*")
        await shared([1], consumer)
        await asyncio.to_thread(trio_topics.create, f"{prefix}-2")
        await shared([2], consumer)
        assert {each.topic for each in consumer.assignment()} == {f"{prefix}-1", f"{prefix}-2"}
