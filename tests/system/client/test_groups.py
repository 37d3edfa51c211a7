"""Consumers of this client in groups on real nodes: they come and go, in both protocols, beside
librdkafka's, and while the coordinator dies. Whatever happens, everything is consumed, and what is
read twice is only what was never committed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import confluent_kafka
import pytest

from moldau.client import Admin
from moldau.client.consumer.consumer import Consumer
from moldau.client.consumer.core.subscription_state import RebalanceListener
from moldau.client.errors import KafkaError
from moldau.client.records import TopicPartition
from moldau.testing import Cluster
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until_async

CONFIG = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
    "default.replication.factor": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "30000",
    "group.consumer.min.session.timeout.ms": "1000",
}
PARTITION_COUNT = 6
DEADLINE_S = 40.0
PROTOCOLS = ("range", "cooperative-sticky", "consumer")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers, so that a coordinator can go away."""
    with Cluster(brokers=2, config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> Iterator[TopicMaker]:
    with TopicMaker(cluster.bootstrap_server, replication_factor=2) as maker:
        yield maker


@pytest.fixture
def topic(topics: TopicMaker) -> str:
    return topics.create(partitions=PARTITION_COUNT)


class Log(RebalanceListener):
    """Everything a listener heard, and what its consumer owns by that."""

    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []
        self.owned: set[TopicPartition] = set()

    async def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
        await asyncio.sleep(0)
        assert self.owned >= partitions, "revoked what was never assigned"
        self._note("revoked", partitions)

    def on_partitions_assigned(self, partitions: Set[TopicPartition]) -> None:
        assert not self.owned & partitions, "assigned twice"
        self.events.append(("assigned", frozenset(partitions)))
        self.owned |= partitions

    async def on_partitions_lost(self, partitions: Set[TopicPartition]) -> None:
        self._note("lost", partitions)

    def _note(self, what: str, partitions: Set[TopicPartition]) -> None:
        self.events.append((what, frozenset(partitions)))
        self.owned -= partitions

    def names(self) -> list[str]:
        return [what for what, _ in self.events]


class Member:
    """A consumer that is polled by its own task until asked to stop."""

    def __init__(self, consumer: Consumer, seen: Counter[bytes]) -> None:
        self.consumer = consumer
        self.log = Log()
        self.polls = True
        self._seen = seen
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._poll())

    async def pause_polling(self) -> None:
        self.polls = False
        assert self._task is not None
        await self._task

    def resume_polling(self) -> None:
        self.polls = True
        self.start()

    async def leave(self) -> None:
        if self.polls:
            await self.pause_polling()
        await self.consumer.close()

    def check(self) -> None:
        """Its task has not failed."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _poll(self) -> None:
        while self.polls:
            for records in (await self.consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    assert record.topic_partition in self.log.owned, "read what is not owned"
                    self._seen[record.value] += 1


class Group:
    """Members of one group, and what they read together."""

    def __init__(self, cluster: Cluster, topic: str, protocol: str, group_id: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.group_id = group_id
        self.seen: Counter[bytes] = Counter()
        self.members: list[Member] = []
        self._settings: dict[str, Any] = {
            "group_id": self.group_id,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 200,
        }
        if protocol == "consumer":
            self._settings["group_protocol"] = "consumer"
        else:
            self._settings |= {
                "partition_assignment_strategy": protocol,
                "session_timeout_ms": 30_000,
                "heartbeat_interval_ms": 200,
            }

    async def join(self, *, pattern: str | None = None, **settings: Any) -> Member:
        member = Member(
            Consumer(self._cluster.bootstrap_server, **{**self._settings, **settings}), self.seen
        )
        await member.consumer.__aenter__()
        if pattern is None:
            member.consumer.subscribe([self._topic], listener=member.log)
        else:
            member.consumer.subscribe(pattern=pattern, listener=member.log)
        member.start()
        self.members.append(member)
        return member

    async def leave(self, member: Member) -> None:
        self.members.remove(member)
        await member.leave()

    async def until_shared(self, partition_count: int = PARTITION_COUNT) -> None:
        """All partitions are owned, each by one, and no member has two more than another."""

        def shared() -> bool:
            owned = [each for member in self.members for each in member.log.owned]
            counts = [len(member.log.owned) for member in self.members]
            return (
                len(owned) == len(set(owned)) == partition_count
                and max(counts) - min(counts) <= 1
                and all(m.consumer.assignment() == m.log.owned for m in self.members)
            )

        await self.until(shared, "the partitions to be shared")

    async def until_seen(self, values: Set[bytes]) -> None:
        await self.until(lambda: values <= set(self.seen), "everything to be read")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        async def holds() -> bool:
            for member in self.members:
                member.check()
            return condition()

        await until_async(holds, what=what, deadline_s=DEADLINE_S)


@asynccontextmanager
async def group_of(
    cluster: Cluster, topic: str, protocol: str, group_id: str | None = None
) -> AsyncIterator[Group]:
    group = Group(cluster, topic, protocol, group_id or fresh_name("group"))
    async with AsyncExitStack() as stack:
        try:
            yield group
        finally:
            for member in group.members:
                stack.push_async_callback(member.leave)


def produce(cluster: Cluster, topic: str, prefix: str, count: int = 60) -> set[bytes]:
    """Values spread over the partitions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_server})
    values = {f"{prefix}-{number}".encode() for number in range(count)}
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % PARTITION_COUNT)
    assert producer.flush(30) == 0
    return values


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go(cluster: Cluster, topic: str, protocol: str) -> None:
    async def run() -> None:
        async with group_of(cluster, topic, protocol) as group:
            await group.join()
            await group.until_shared()
            values = produce(cluster, topic, "alone")
            await group.until_seen(values)
            await group.join()
            third = await group.join()
            await group.until_shared()
            values |= produce(cluster, topic, "three")
            await group.until_seen(values)
            await group.leave(group.members[0])
            await group.until_shared()
            values |= produce(cluster, topic, "two")
            await group.until_seen(values)
            assert "lost" not in [each for member in group.members for each in member.log.names()]
            if protocol != "range":
                # Cooperative: what a member keeps is never taken from it.
                owned: set[TopicPartition] = set()
                for what, partitions in third.log.events:
                    owned = owned | partitions if what == "assigned" else owned - partitions
                assert owned == third.log.owned
                assert "revoked" not in third.log.names()
            # Members that go say so with their last positions: nothing is read twice.
            assert [value for value, count in group.seen.items() if count > 1] == []

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_is_expected_back(cluster: Cluster, topic: str, protocol: str) -> None:
    async def run() -> None:
        kind = "cooperative-sticky" if protocol == "classic" else protocol
        async with group_of(cluster, topic, kind) as group:
            first = await group.join(group_instance_id="first")
            await group.join(group_instance_id="second")
            await group.until_shared()
            stays = set(group.members[1].log.events)
            mine = set(first.log.owned)
            await group.leave(first)
            await group.join(group_instance_id="first")
            await group.until_shared()
            assert group.members[-1].log.owned == mine
            assert set(group.members[0].log.events) - stays <= {("assigned", frozenset())}

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["range", "consumer"])
def test_who_does_not_poll_is_expelled(cluster: Cluster, topic: str, protocol: str) -> None:
    async def run() -> None:
        async with group_of(cluster, topic, protocol) as group:
            lazy = await group.join(max_poll_interval_ms=1_000)
            await group.until_shared()
            busy = await group.join()
            await group.until_shared()
            await lazy.pause_polling()
            await group.until(
                lambda: len(busy.log.owned) == PARTITION_COUNT, "the other one to take over"
            )
            assert lazy.log.owned, "nothing is taken away between polls"
            lazy.resume_polling()
            await group.until_shared()
            assert "lost" in lazy.log.names()

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["range", "consumer"])
def test_a_pattern_follows_new_topics(cluster: Cluster, topics: TopicMaker, protocol: str) -> None:
    prefix = fresh_name("pattern")
    topics.create(f"{prefix}-1", partitions=2)

    async def run() -> None:
        async with group_of(cluster, "", protocol) as group:
            settings = {"metadata_max_age_ms": 500}
            member = await group.join(pattern=f"{prefix}-[0-9]", **settings)
            await group.until_shared(2)
            await asyncio.to_thread(topics.create, f"{prefix}-2", partitions=3)
            await asyncio.to_thread(topics.create, f"{prefix}-x", partitions=1)
            await group.until_shared(5)
            assert {each.topic for each in member.consumer.assignment()} == {
                f"{prefix}-1",
                f"{prefix}-2",
            }

    asyncio.run(run())


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_together_with_librdkafka(cluster: Cluster, topic: str, strategy: str) -> None:
    group_id = fresh_name("mixed")
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_server,
            "group.id": group_id,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 200,
        }
    )

    async def run() -> None:
        async with group_of(cluster, topic, strategy, group_id) as group:
            await group.join()
            await group.until_shared()
            theirs.subscribe([topic])
            polls, counts = True, [0]

            def poll() -> None:
                # All calls from one thread: `assignment` keeps the interpreter's lock while a
                # rebalance callback waits for it.
                while polls:
                    message = theirs.poll(0.05)
                    counts[0] = len(theirs.assignment())
                    if message is not None and message.error() is None:
                        value = message.value()
                        assert isinstance(value, bytes)
                        group.seen[value] += 1

            thread = asyncio.create_task(asyncio.to_thread(poll))
            try:
                ours = group.members[0].log
                await group.until(lambda: len(ours.owned) == 3 and counts == [3], "halves")
                await group.join()
                await group.until(
                    lambda: (
                        sorted([*counts, *(len(m.log.owned) for m in group.members)]) == [2, 2, 2]
                    ),
                    "thirds",
                )
                await group.until_seen(produce(cluster, topic, "mixed"))
                await group.leave(group.members[0])
                await group.until(lambda: counts == [3], "halves again")
            finally:
                polls = False
                await thread
                await asyncio.to_thread(theirs.close)
            await group.until_shared()

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["cooperative-sticky", "consumer"])
def test_the_coordinator_dies(cluster: Cluster, topic: str, protocol: str) -> None:
    async def run() -> None:
        async with group_of(cluster, topic, protocol) as group:
            await group.join()
            await group.join()
            await group.until_shared()
            values = produce(cluster, topic, "before")
            await group.until_seen(values)
            async with Admin(cluster.bootstrap_server) as admin:
                [described] = (await admin.describe_groups([group.group_id])).values()
            assert not isinstance(described, KafkaError)
            coordinator_id = described.coordinator.node_id
            await asyncio.to_thread(cluster.kill, coordinator_id)
            try:
                values |= await asyncio.to_thread(produce, cluster, topic, "after")
                await group.until_seen(values)
                await group.until_shared()
                for member in group.members:
                    await member.consumer.commit()
            finally:
                await asyncio.to_thread(cluster.restart, coordinator_id)
            await group.until_shared()

    asyncio.run(run())
