"""Reading whole topics in tests, with a deadline instead of patience."""

from __future__ import annotations

import asyncio

from moldau.client import Consumer, ConsumerRecord, TopicPartition

DEADLINE_S = 30.0


async def read_topic(
    bootstrap: str, topic: str, *, isolation_level: str = "read_uncommitted"
) -> list[ConsumerRecord]:
    """Everything up to the present end of every partition, in order within each."""
    async with (
        asyncio.timeout(DEADLINE_S),
        Consumer(
            bootstrap, isolation_level=isolation_level, auto_offset_reset="earliest"
        ) as consumer,
    ):
        places = [TopicPartition(topic, each) for each in await consumer.partitions_for(topic)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        found: list[ConsumerRecord] = []
        while True:
            reached = [await consumer.position(place) >= ends[place] for place in places]
            if all(reached):
                return found
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found.extend(records)


async def read_some(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """The next `count` records (or some more) of a consumer that is assigned or subscribed."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found.extend(records)
    return found
