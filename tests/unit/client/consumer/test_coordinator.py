"""A consumer in its group, against fake brokers: listeners, commits, assignors of the user's own,
cancelled polls and the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from typing import Any, ClassVar

import pytest

from moldau.client import (
    ClientClosed,
    CommitFailed,
    ConfigurationError,
    Consumer,
    KafkaError,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
)
from moldau.client.consumer.assignors import (
    Assignments,
    ConsumerPartitionAssignor,
    MemberAssignment,
    Subscription,
    Topics,
    make_assignors,
)
from moldau.client.consumer.core.rebalance_steps import GroupRequest
from moldau.client.consumer.group_link import AnswerLost
from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import AnswerError, FakeCluster, Settings, Stall
from tests.kit.loop_reports import heard_reports
from tests.unit.client.faults.harness import MEMBER, ends
from tests.virtual.machine import pass_time

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def cluster_of(partition_count: int = 2) -> FakeCluster:
    cluster = FakeCluster(
        1, topics={"t": partition_count}, settings=Settings(consumer_heartbeat_interval_ms=20)
    )
    for index in range(partition_count):
        cluster.fill("t", [b"%d-%d" % (index, number) for number in range(5)], index)
    return cluster


def consumer_of(cluster: FakeCluster, protocol: str = "classic", **settings: Any) -> Consumer:
    return Consumer(cluster.bootstrap_servers, **{**MEMBER, "group_protocol": protocol, **settings})


async def until_assigned(consumer: Consumer, count: int = 2) -> None:
    async def poll() -> None:
        while len(consumer.assignment()) < count:
            await consumer.getmany(max_records=1, timeout_ms=20)

    await ends(poll(), "joining")


async def until_expelled(cluster: FakeCluster, consumer: Consumer, protocol: str) -> None:
    """The group forgets the member, which hears of it."""
    api_key = ApiKey.HEARTBEAT if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
    cluster.fault(api_key, AnswerError(ErrorCode.UNKNOWN_MEMBER_ID), times=1)
    member_id = consumer.group_metadata().member_id

    await cluster.until(lambda: consumer.group_metadata().member_id != member_id)


class Listener(RebalanceListener):
    """Notes what it hears; may wait, or raise, when asked to revoke."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, set[TopicPartition]]] = []
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.error: Exception | None = None

    async def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
        self.heard.append(("revoked", set(partitions)))
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error

    def on_partitions_assigned(self, partitions: Set[TopicPartition]) -> None:
        self.heard.append(("assigned", set(partitions)))

    def on_partitions_lost(self, partitions: Set[TopicPartition]) -> None:
        self.heard.append(("lost", set(partitions)))

    def names(self) -> list[str]:
        return [what for what, _ in self.heard]


@PROTOCOLS
async def test_a_poll_cancelled_in_a_listener_leaves_it_to_the_next_one(protocol: str):
    async with cluster_of() as cluster, consumer_of(cluster, protocol) as consumer:
        listener = Listener()
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer)
        listener.gate = asyncio.Event()
        consumer.subscribe(["other"], listener=listener)

        async def poll_on() -> None:
            while consumer.assignment() != set():
                await consumer.getmany(timeout_ms=20)

        polling = asyncio.create_task(poll_on())
        await ends(listener.entered.wait(), "the listener")
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert consumer.assignment() == {P0, P1}, "not taken away before the listener is through"
        listener.gate.set()
        await ends(poll_on(), "the poll after it")
        assert listener.names().count("revoked") == 1


@PROTOCOLS
async def test_what_a_listener_raises_comes_out_of_the_poll_and_the_step_is_done(protocol: str):
    async with cluster_of() as cluster, consumer_of(cluster, protocol) as consumer:
        listener = Listener()
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer)
        listener.error = ValueError("mine")
        consumer.subscribe(["other"], listener=listener)

        async def poll_on() -> None:
            while True:
                await consumer.getmany(timeout_ms=20)

        with pytest.raises(ValueError, match="mine"):
            await ends(poll_on(), "the listener's error")
        assert consumer.assignment() == set()
        listener.error = None
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer)


@PROTOCOLS
async def test_offsets_can_be_committed_while_partitions_are_revoked(protocol: str):
    async with cluster_of(1) as cluster, consumer_of(cluster, protocol) as consumer:

        class Commits(RebalanceListener):
            async def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
                await consumer.commit()

        consumer.subscribe(["t"], listener=Commits())
        got: list[Any] = []
        while len(got) < 3:
            for records in (await consumer.getmany(max_records=1, timeout_ms=20)).values():
                got += records
        consumer.subscribe(["other"], listener=Commits())
        while consumer.assignment():
            for records in (await consumer.getmany(max_records=1, timeout_ms=20)).values():
                got += records
        stored = (await consumer.committed([P0]))[P0]
        assert stored is not None
        assert stored.offset == len(got)


@PROTOCOLS
async def test_an_expelled_member_loses_its_partitions_in_the_next_poll(protocol: str):
    async with cluster_of() as cluster, consumer_of(cluster, protocol) as consumer:
        listener = Listener()
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer)
        await until_expelled(cluster, consumer, protocol)
        assert consumer.assignment() == {P0, P1}, "nothing changes between polls"
        with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms"):
            await consumer.commit({P0: OffsetAndMetadata(1)})
        while listener.names()[-1] != "assigned" or "lost" not in listener.names():
            await consumer.getmany(timeout_ms=20)
        assert listener.heard[-2:] == [("lost", {P0, P1}), ("assigned", {P0, P1})]


@PROTOCOLS
async def test_commits_carry_the_generation_they_were_asked_for_in(protocol: str):
    async with cluster_of() as cluster, consumer_of(cluster, protocol) as consumer:
        consumer.subscribe(["t"])
        await until_assigned(consumer)
        await consumer.commit({P0: OffsetAndMetadata(1)})
        known = consumer.group_metadata()
        [commit] = [
            each.message
            for each in cluster.recorder.requests
            if each.api_key is ApiKey.OFFSET_COMMIT
        ]
        assert commit.generation_id_or_member_epoch == known.generation_id
        assert commit.member_id == known.member_id


async def test_callbacks_of_commits_run_in_later_polls_in_order():
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.subscribe(["t"])
        await until_assigned(consumer)
        heard: list[tuple[int, KafkaError | None]] = []
        for offset in (1, 2, 3):
            consumer.commit_nowait(
                {P0: OffsetAndMetadata(offset)},
                lambda offsets, error: heard.append((offsets[P0].offset, error)),
            )
        await cluster.until(lambda: cluster.recorder.count(ApiKey.OFFSET_COMMIT) >= 1)
        assert heard == []

        async def poll_on() -> None:
            while len(heard) < 3:
                await consumer.getmany(max_records=1, timeout_ms=20)

        await ends(poll_on(), "the callbacks")
        assert heard == [(1, None), (2, None), (3, None)]
        stored = (await consumer.committed([P0]))[P0]
        assert stored is not None
        assert stored.offset == 3


async def test_a_commit_waits_for_those_before_it():
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.subscribe(["t"])
        await until_assigned(consumer)
        heard: list[KafkaError | None] = []
        cluster.fault(
            ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), times=1
        )
        consumer.commit_nowait({P0: OffsetAndMetadata(1)}, lambda _, error: heard.append(error))
        await consumer.commit({P1: OffsetAndMetadata(2)})
        assert len(heard) == 1
        assert isinstance(heard[0], KafkaError), "in the background nothing is tried again"
        assert heard[0].retriable
        stored = await consumer.committed([P0, P1])
        assert stored == {P0: None, P1: OffsetAndMetadata(2)}


@PROTOCOLS
async def test_unsubscribing_calls_the_listener_in_the_next_poll(protocol: str):
    async with cluster_of() as cluster, consumer_of(cluster, protocol) as consumer:
        listener = Listener()
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer)
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.assign([P0])
        await consumer.getmany(timeout_ms=20)
        assert listener.heard[-1] == ("revoked", {P0, P1})
        consumer.unsubscribe()
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer)


async def test_topics_of_a_pattern_are_learned_between_polls_that_do_not_wait():
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.subscribe(pattern="t.*")
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=0)
            await pass_time(10)
        assert consumer.assignment() == {P0, P1}


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_topics_of_a_pattern_that_the_first_poll_did_not_learn_are_asked_for_again(
    is_cancelled: bool,
):
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        cluster.fault(ApiKey.METADATA, Stall())
        consumer.subscribe(pattern="t.*")
        if is_cancelled:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await consumer.getmany(timeout_ms=10_000)
        else:
            assert await consumer.getmany(timeout_ms=100) == {}
        cluster.faults.clear()
        await until_assigned(consumer)


async def test_a_pattern_is_forgotten_before_its_topics_are_known():
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        consumer.subscribe(pattern="t.*")
        await consumer.getmany(timeout_ms=0)
        consumer.unsubscribe()
        consumer.assign([P0])
        await consumer.getmany(timeout_ms=1_000)
        await pass_time(1_000)
        await consumer.getmany(timeout_ms=0)
        assert cluster.recorder.count(ApiKey.JOIN_GROUP) == 0
        assert consumer.assignment() == {P0}


@PROTOCOLS
async def test_a_member_leaves_when_it_was_not_polled_for_the_interval(protocol: str):
    """What the last poll has handed out does not lengthen the interval."""
    goodbye = ApiKey.LEAVE_GROUP if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
    loop = asyncio.get_running_loop()
    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, protocol, max_poll_interval_ms=2_000) as consumer,
    ):
        consumer.subscribe(["t"])
        await until_assigned(consumer, 1)
        await consumer.getmany(max_records=1, timeout_ms=5_000)
        polled_at = loop.time()
        await cluster.until(
            lambda: any(
                each.api_key == goodbye and getattr(each.message, "member_epoch", -1) == -1
                for each in cluster.recorder.requests
            )
        )
        assert 2 <= loop.time() - polled_at < 2.1


@PROTOCOLS
async def test_taking_records_one_by_one_is_polling(protocol: str):
    """Each takes almost as long as the interval; the first ones come of one poll."""
    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, protocol, max_poll_interval_ms=2_000) as consumer,
    ):
        consumer.subscribe(["t"])
        epochs = set()
        async for record in consumer:
            epochs.add(consumer.group_metadata().generation_id)
            await pass_time(1_900)
            if record.offset == 4:
                break
        assert len(epochs) == 1


@PROTOCOLS
async def test_closing_commits_calls_the_listener_and_leaves(protocol: str):
    async with cluster_of(1) as cluster:
        consumer = consumer_of(cluster, protocol, enable_auto_commit=True)
        listener = Listener()
        consumer.subscribe(["t"], listener=listener)
        position = 0
        while position < 2:
            position += len((await consumer.getmany(max_records=1, timeout_ms=20)).get(P0, ()))
        await ends(consumer.close(), "closing")
        assert listener.heard[-1] == ("revoked", {P0})
        last = cluster.recorder.requests[-1]
        requests = [each.api_key for each in cluster.recorder.requests]
        goodbye = ApiKey.LEAVE_GROUP if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
        assert goodbye in requests[requests.index(ApiKey.OFFSET_COMMIT) :], last
        async with consumer_of(cluster, protocol) as other:
            stored = (await other.committed([P0]))[P0]
            assert stored is not None
            assert stored.offset == position


@PROTOCOLS
async def test_closing_leaves_the_group_after_the_listener_which_may_commit(protocol: str):
    """Others get the partitions when the group is left: not before the listener is through."""
    goodbye = ApiKey.LEAVE_GROUP if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT
    async with cluster_of(1) as cluster:
        consumer = consumer_of(cluster, protocol)

        class Commits(Listener):
            async def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
                await consumer.commit({P0: 3})
                await super().on_partitions_revoked(partitions)

        listener = Commits()
        listener.gate = asyncio.Event()
        consumer.subscribe(["t"], listener=listener)
        await until_assigned(consumer, 1)
        closing = asyncio.create_task(consumer.close())
        await ends(listener.entered.wait(), "the listener")
        assert cluster.groups.committed(MEMBER["group_id"], "t") == 3
        heard = cluster.recorder.count(goodbye)
        if protocol == "classic":
            await cluster.until(lambda: cluster.recorder.count(ApiKey.HEARTBEAT) > 1)
            assert heard == cluster.recorder.count(goodbye) == 0, "a member until it is through"
        listener.gate.set()
        await ends(closing, "closing")
        assert cluster.recorder.count(goodbye) > heard
        assert listener.names() == ["assigned", "revoked"]


async def test_a_join_that_is_not_written_yet_is_not_sent_after_leaving():
    """It would make a new member, which the group's next rebalance waits for."""
    async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
        consumer.subscribe(["t"])
        await until_assigned(consumer, 1)
        membership = consumer._group._membership
        membership.member.request_rejoin("test")
        membership.member.revoked(membership.member.owned, 0.0)
        joins = cluster.recorder.count(ApiKey.JOIN_GROUP)
        membership._send_due(consumer._clock.monotonic_ms())
        consumer.unsubscribe()
        await cluster.until(lambda: cluster.recorder.count(ApiKey.LEAVE_GROUP) == 1)
        assert cluster.recorder.count(ApiKey.JOIN_GROUP) == joins


async def test_closing_ends_a_poll_that_waits_for_the_group():
    async with cluster_of() as cluster:
        cluster.fault(ApiKey.JOIN_GROUP, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        consumer = consumer_of(cluster)
        consumer.subscribe(["t"])
        polling = asyncio.create_task(consumer.getmany(timeout_ms=60_000))
        await cluster.until(lambda: cluster.recorder.count(ApiKey.JOIN_GROUP) >= 1)
        await ends(consumer.close(), "closing")
        with pytest.raises(ClientClosed):
            await ends(polling, "the poll")


async def test_a_topic_that_is_made_after_the_first_assignment_is_assigned_soon():
    """The leader assigned nothing, for it knew no such topic; it notices by itself."""
    async with (
        cluster_of() as cluster,
        consumer_of(cluster, allow_auto_create_topics=False) as consumer,
    ):
        listener = Listener()
        consumer.subscribe(["late"], listener=listener)
        while not listener.heard:
            await consumer.getmany(timeout_ms=20)
        assert listener.heard == [("assigned", set())]
        cluster.create_topic("late", 2)
        await until_assigned(consumer)
        assert {each.topic for each in consumer.assignment()} == {"late"}


async def test_a_topic_that_is_created_again_is_read_when_the_coordinator_has_assigned_it():
    """It may have assigned the partition to another member, which reads and commits it."""
    async with (
        cluster_of(1) as cluster,
        consumer_of(cluster, "consumer", enable_auto_commit=False) as consumer,
    ):
        listener = Listener()
        consumer.subscribe(["t"], listener=listener)
        assert len((await consumer.getmany(timeout_ms=1_000))[P0]) == 5
        silence = cluster.fault(ApiKey.CONSUMER_GROUP_HEARTBEAT, Stall())
        await ends(silence.fired(), "the heartbeat that the coordinator does not answer")
        cluster.delete_topic("t")
        cluster.create_topic("t")
        cluster.fill("t", [b"new"])
        asked = cluster.recorder.count(ApiKey.OFFSET_FETCH)
        assert await consumer.getmany(timeout_ms=5_000) == {}
        assert consumer._subscription.state_of(P0).is_of_another_topic, "the client knows"
        await consumer.commit()
        consumer.seek(P0, 0)
        assert await consumer.getmany(timeout_ms=1_000) == {}
        await consumer.commit()
        assert cluster.groups.committed(MEMBER["group_id"], "t") is None
        assert cluster.recorder.count(ApiKey.OFFSET_FETCH) == asked
        cluster.faults.remove(silence)
        silence.release()
        got = await consumer.getmany(timeout_ms=60_000)
        assert [each.value for each in got[P0]] == [b"new"]
        await consumer.commit()
        assert cluster.groups.committed(MEMBER["group_id"], "t") == 1
        assert listener.names() == ["assigned", "revoked", "assigned"]


async def test_a_request_that_fails_as_the_consumer_closes_is_not_reported():
    """The task has failed, and its callback runs after `close` has begun."""

    async def answer_lost() -> None:
        raise AnswerLost("cut")

    async def fail_after_the_end() -> None:
        async with cluster_of() as cluster, consumer_of(cluster) as consumer:
            consumer.subscribe(["t"])
            await until_assigned(consumer)
        assert consumer._group is not None
        exchange = asyncio.create_task(answer_lost())
        await asyncio.wait([exchange])
        consumer._group._membership._ended(exchange, GroupRequest.HEARTBEAT, 0)

    with heard_reports() as reports:
        await fail_after_the_end()
    assert reports == []


async def test_more_partitions_are_noticed_by_the_leader():
    async with cluster_of() as cluster, consumer_of(cluster, metadata_max_age_ms=50) as consumer:
        consumer.subscribe(["t"])
        await until_assigned(consumer)
        cluster.grow_topic("t", 3)
        await until_assigned(consumer, 3)
        assert TopicPartition("t", 2) in consumer.assignment()


class EverythingToOne(ConsumerPartitionAssignor):
    """An assignor as a user writes it."""

    name: ClassVar[str] = "everything-to-one"

    def __init__(self) -> None:
        self.told: list[MemberAssignment] = []

    def subscription_user_data(self, topics: frozenset[str]) -> bytes | None:
        return b"hello"

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        first = min(subscriptions)
        assert subscriptions[first].user_data == b"hello"
        return {first: [TopicPartition(t, p) for t in topics for p in range(len(topics[t]))]}

    def assignment_user_data(self, member_id: str) -> bytes | None:
        return member_id.encode()

    def on_assignment(self, assignment: MemberAssignment) -> None:
        self.told.append(assignment)


async def test_an_assignor_of_the_users_own():
    assignor = EverythingToOne()
    async with (
        cluster_of() as cluster,
        consumer_of(cluster, partition_assignment_strategy=[assignor]) as consumer,
    ):
        consumer.subscribe(["t"])
        await until_assigned(consumer)
        known = consumer.group_metadata()
        assert assignor.told == [
            MemberAssignment(
                partitions=(P0, P1),
                user_data=known.member_id.encode(),
                generation_id=known.generation_id,
            )
        ]


class Broken(ConsumerPartitionAssignor):
    """Raises; or gives a partition to two."""

    name: ClassVar[str] = "broken"

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        raise ZeroDivisionError("mine")


class Unfair(ConsumerPartitionAssignor):
    name: ClassVar[str] = "unfair"

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        return {"nobody": [P0]}


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [(Broken, ZeroDivisionError, "mine"), (Unfair, ValueError, "nobody is no member")],
)
async def test_an_assignor_that_fails_is_raised_by_the_poll(
    kind: type[ConsumerPartitionAssignor], error: type[Exception], text: str
):
    async with (
        cluster_of() as cluster,
        consumer_of(cluster, partition_assignment_strategy=[kind]) as consumer,
    ):
        consumer.subscribe(["t"])
        with pytest.raises(error, match=text):
            await until_assigned(consumer)


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (["rnge"], "none of range, roundrobin, sticky, cooperative-sticky"),
        (["range", "range"], "twice"),
        ([int], "no ConsumerPartitionAssignor"),
    ],
)
def test_strategies_that_are_none(strategy: list[Any], text: str):
    with pytest.raises(ConfigurationError, match=text):
        make_assignors(strategy)
