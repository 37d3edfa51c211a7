"""Groups in both protocols: sharing, commits, listeners, members that come, go and fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from moldau.client import (
    CommitFailed,
    Consumer,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from tests.client.conftest import MakeTopic
from tests.client.reading import DEADLINE_S, read_some

PROTOCOLS = ("classic", "consumer")


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """`group.protocol`."""
    return str(request.param)


async def fill(bootstrap: str, topic: str, count: int, partitions: int) -> None:
    """Records "0", "1", … by turns."""
    async with Producer(bootstrap, linger_ms=5) as producer:
        for number in range(count):
            producer.send_nowait(topic, b"%d" % number, partition=number % partitions)
        await producer.flush()


async def settled(consumers: list[Consumer], topic: str, partitions: int) -> None:
    """Wait until every partition has exactly one of them, and none has two more than another:
    before that partitions may still be on their way.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await asyncio.gather(*(each.getmany(timeout_ms=100) for each in consumers))
            owned = [place for each in consumers for place in each.assignment()]
            counts = [len(each.assignment()) for each in consumers]
            if len(owned) == len(set(owned)) == partitions and max(counts) - min(counts) <= 1:
                return


class Diary(RebalanceListener):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.mine: set[TopicPartition] = set()
        self.heard: list[str] = []

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        assert not self.mine & set(partitions)
        self.mine |= set(partitions)
        self.heard.append("assigned")

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        assert self.mine >= set(partitions)
        self.mine -= set(partitions)
        self.heard.append("revoked")

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.mine -= set(partitions)
        self.heard.append("lost")


async def test_what_is_committed_is_where_the_next_one_begins(
    bootstrap: str, make_topic: MakeTopic, fresh: str, protocol: str
):
    topic = await make_topic(partitions=2)
    await fill(bootstrap, topic, 200, 2)
    place = TopicPartition(topic, 0)
    settings = {"group_id": fresh, "group_protocol": protocol, "enable_auto_commit": False}
    async with Consumer(bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe([topic])
        await read_some(consumer, 200)
        await consumer.commit({place: OffsetAndMetadata(40, metadata="forty")})
        committed = await consumer.committed([place, TopicPartition(topic, 1)])
        assert committed[place] is not None
        assert (committed[place].offset, committed[place].metadata) == (40, "forty")
        assert committed[TopicPartition(topic, 1)] is None
    async with Consumer(bootstrap, auto_offset_reset="latest", **settings) as consumer:
        consumer.subscribe([topic])
        found = await read_some(consumer, 60)
        assert [(each.partition, each.offset) for each in found] == [(0, n) for n in range(40, 100)]
        await consumer.commit()
        assert (await consumer.committed([place]))[place].offset == 100


async def test_automatic_commits_cover_what_was_handed_out(
    bootstrap: str, make_topic: MakeTopic, fresh: str, protocol: str
):
    topic = await make_topic()
    await fill(bootstrap, topic, 100, 1)
    settings = {"group_id": fresh, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    async with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe([topic])
        taken = 0
        async for _record in consumer:
            taken += 1
            if taken == 30:
                break
    async with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe([topic])
        # Asking for the next record says that the last one is done; closing says it of all.
        assert (await consumer.getone()).offset in (29, 30)


async def test_members_share_and_take_over(
    bootstrap: str, make_topic: MakeTopic, fresh: str, protocol: str
):
    topic = await make_topic(partitions=6)
    diaries = [Diary(), Diary(), Diary()]
    config = {"group.id": fresh, "group.protocol": protocol, "auto.offset.reset": "earliest"}
    if protocol == "classic":
        config["partition.assignment.strategy"] = "cooperative-sticky"
    consumers = [Consumer(bootstrap, config=config) for _ in diaries]
    try:
        for number, (consumer, diary) in enumerate(zip(consumers, diaries, strict=True), 1):
            consumer.subscribe([topic], listener=diary)
            await settled(consumers[:number], topic, 6)
        assert [len(each.assignment()) for each in consumers] == [2, 2, 2]
        await fill(bootstrap, topic, 600, 6)
        found = await asyncio.gather(*(read_some(each, 200) for each in consumers))
        assert sorted(int(each.value or b"") for some in found for each in some) == list(range(600))
        await consumers[0].close()
        await settled(consumers[1:], topic, 6)
        assert diaries[0].mine == set()
        for consumer, diary in zip(consumers[1:], diaries[1:], strict=True):
            assert diary.mine == consumer.assignment()
    finally:
        for consumer in consumers:
            await consumer.close()


async def test_a_pattern_finds_topics_that_come_later(
    bootstrap: str, make_topic: MakeTopic, fresh: str, protocol: str
):
    first = await make_topic()
    async with Consumer(
        bootstrap,
        group_id=fresh,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        metadata_max_age_ms=300,
    ) as consumer:
        consumer.subscribe(pattern="client-.*")
        await fill(bootstrap, first, 1, 1)
        seen: set[str] = set()
        second = ""
        async with asyncio.timeout(DEADLINE_S):
            while second not in seen:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    seen |= {each.topic for each in records}
                if first in seen and not second:
                    second = await make_topic()
                    await fill(bootstrap, second, 1, 1)
        assert {first, second} <= seen


async def test_a_member_that_never_polls_is_put_out(
    bootstrap: str, make_topic: MakeTopic, fresh: str, protocol: str
):
    topic = await make_topic(partitions=2)
    diary = Diary()
    settings = {"group_id": fresh, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    async with (
        Consumer(bootstrap, max_poll_interval_ms=6_500, **settings) as silent,
        Consumer(bootstrap, **settings) as other,
    ):
        silent.subscribe([topic], listener=diary)
        await settled([silent], topic, 2)
        other.subscribe([topic])
        async with asyncio.timeout(DEADLINE_S):
            while len(other.assignment()) < 2:
                await other.getmany(timeout_ms=200)
        with pytest.raises(CommitFailed):
            await silent.commit({TopicPartition(topic, 0): OffsetAndMetadata(0)})
        await settled([silent, other], topic, 2)
        assert diary.heard[:2] == ["assigned", "lost"]


async def test_a_static_member_keeps_its_partitions_over_a_restart(
    bootstrap: str, make_topic: MakeTopic, fresh: str, protocol: str
):
    topic = await make_topic(partitions=4)
    settings = {"group_id": fresh, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    first = Consumer(bootstrap, group_instance_id="one", **settings)
    diary = Diary()
    try:
        async with Consumer(bootstrap, group_instance_id="two", **settings) as second:
            first.subscribe([topic])
            second.subscribe([topic], listener=diary)
            await settled([first, second], topic, 4)
            before, heard = first.assignment(), len(diary.heard)
            await first.close()
            first = Consumer(bootstrap, group_instance_id="one", **settings)
            first.subscribe([topic])
            await settled([first, second], topic, 4)
            assert first.assignment() == before
            assert len(diary.heard) == heard
    finally:
        await first.close()
