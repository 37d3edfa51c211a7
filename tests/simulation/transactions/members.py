"""A member of a group: the product's consumer in a simulated process, watched.

Owns: how a consumer is configured for its group, its assignor and its listener, what it hands out
and commits, and how it is closed. Must not: choose what is done with records, or check what went
over the wire (`group_watch` does). Invariants: between two positions exactly the committed records
are handed out, beginning where the group had committed; a call fails only for a reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.client import Consumer
from moldau.client.consumer.assignors import (
    Assignments,
    ConsumerPartitionAssignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
    Topics,
)
from moldau.client.consumer.core.rebalance_steps import Standing
from moldau.client.consumer.core.subscription_state import RebalanceListener
from moldau.client.errors import (
    ClientClosed,
    CommitFailed,
    FencedInstanceId,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnreleasedInstanceId,
    UnsupportedByBroker,
)
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p13_leave_group import LeaveGroupRequest
from moldau.protocol.messages.p68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.runtime.ports import Ports
from tests.kit.seeds import Violation
from tests.simulation.transactions.group_log import Author, Patience, marked
from tests.simulation.transactions.group_watch import GroupWatch, Place
from tests.simulation.transactions.reads import check_read
from tests.simulation.transactions.transactional_producer import keep_open
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

CONSUMER = "consumer"
"""The protocol of KIP-848; all others are assignors of the classic one."""

_ASSIGNORS: Mapping[str, type[ConsumerPartitionAssignor]] = {
    each.name: each
    for each in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}

LONGEST_THOUGHT_MS = 1_500.0
"""The limit for a leader that assigns; less than the rebalance timeout."""

SESSION_MS = 3_000
"""The session of both protocols, as the brokers are configured for that of KIP-848."""

SLOW_LISTENERS = 0.3
NOT_WAITED_FOR, ASIDE = 0.2, 0.4
"""So many commits are not waited for, or by another task."""

CANCELLED = 0.05
EXPRESSIONS = 0.2
CLOSING_MS = 4_000.0

PASSING = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""What a call may say that has had no answer in time, or is not made again."""


class MustEnd(Exception):
    """This consumer can do nothing more."""


class GroupMember(RebalanceListener):
    """One consumer of one process."""

    def __init__(
        self,
        world: TransactionWorld,
        process: Process,
        host: str,
        random: Random,
        group: str,
        protocol: str,
        *,
        instance_id: str | None,
        topics: list[str],
        commits_automatically: bool,
    ) -> None:
        self.world = world
        self.process = process
        self.random = random
        self.protocol = protocol
        self.topics = topics
        self.commits_automatically = commits_automatically
        self.commits = 0
        self._uses_expressions = random.random() < EXPRESSIONS
        poll_ms = random.choice((2_000, 3_000, 6_000))
        self.watch = GroupWatch(
            *(world, process.name, group, instance_id),
            is_classic=protocol != CONSUMER,
            patience=Patience(SESSION_MS / 1000, poll_ms / 1000),
        )
        own = {"group_protocol": CONSUMER}
        if protocol != CONSUMER:
            own = {
                "partition_assignment_strategy": [_thoughtful(_ASSIGNORS[protocol], self)],
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": 300,
            }
        self.consumer: Consumer[bytes, bytes] = Consumer(
            ",".join(f"{host}:{port}" for _, host, port in world.broker_addresses),
            ports=Ports(
                VirtualClock(world.loop),
                world.fabric.port_of(process, host),
                Random(random.getrandbits(64)),
            ),
            client_id=process.name,
            group_id=group,
            group_instance_id=instance_id,
            max_poll_interval_ms=poll_ms,
            enable_auto_commit=commits_automatically,
            auto_commit_interval_ms=random.choice((100, 700)),
            **(_drawn_settings(random) | own),  # type: ignore[arg-type]
        )
        keep_open(self.consumer)
        membership = self._coordinator._membership
        polls, clock = membership.watch, self.consumer._clock
        self.watch.is_overdue = lambda: polls.deadline_ms <= clock.monotonic_ms()
        self.watch.attach(membership._link)
        self._positions: dict[Place, int] = {}
        """Where it stands, in what it has handed out something of since it was assigned."""

    def __repr__(self) -> str:
        return f"{self.protocol} {self.watch}"

    @property
    def _coordinator(self) -> Any:
        return self.consumer._group

    @property
    def _standing(self) -> Standing:
        """As the consumer sees it."""
        standing: Standing = self._coordinator._membership.member.standing()
        return standing

    @property
    def member_id(self) -> str:
        """The id by which its coordinator knows it."""
        return self.watch.member_id

    @property
    def mine(self) -> list[Place]:
        """What it reads, as a member."""
        return self.watch.mine

    @property
    def is_settled(self) -> bool:
        """Whether it is a member, and has not to join again."""
        return self.watch.is_member and bool(self._coordinator._membership.member.is_settled)

    # -- its listener ----------------------------------------------------------------------------

    def on_partitions_assigned(self, partitions: Set[TopicPartition]) -> None:
        self.world.guard(self.watch.assigned, [tuple(each) for each in sorted(partitions)])

    async def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
        if partitions and self.random.random() < SLOW_LISTENERS:
            self.world.counts["slow_revocations"] += 1
            await self.world.loop.elapse(self.random.uniform(100.0, 1_200.0))
        self._gave_up(partitions)

    def on_partitions_lost(self, partitions: Set[TopicPartition]) -> None:
        self._gave_up(partitions)
        self.world.counts["partitions_lost"] += len(partitions)

    def _gave_up(self, partitions: Set[TopicPartition]) -> None:
        places: list[Place] = [tuple(each) for each in sorted(partitions)]
        for place in places:
            self._positions.pop(place, None)
        self.world.guard(self.watch.gave_up, places)

    def thinks(self) -> None:
        """Some leaders take their time to assign partitions; one of a held group until it is let
        go, or its time is over. The process does nothing else.
        """
        world, group = self.world, self.watch.group
        if group in world.held_groups:
            world.thinking[group] = self.process
            self.process.stop_for(LONGEST_THOUGHT_MS)
        elif self.random.random() < world.slow_assignments:
            self.process.stop_for(self.random.uniform(50.0, LONGEST_THOUGHT_MS))

    # -- calls -----------------------------------------------------------------------------------

    def subscribe(self, *others: str) -> None:
        """Subscribe to its topics and others, by their names or by an expression."""
        topics = [*self.topics, *others]
        if self._uses_expressions:
            pattern = "(" + "|".join(f"{name[:2]}.*" for name in topics) + ")"
            self.consumer.subscribe(pattern=pattern, listener=self)
        else:
            self.consumer.subscribe(topics, listener=self)

    async def getmany(self, timeout_ms: float) -> dict[Place, dict[int, bytes | None]]:
        """Records by partition and offset; {} when there were none in time. Raises MustEnd."""
        limit = self.random.choice((None, 1, 5))
        found = await self.called(
            lambda: self.consumer.getmany(limit, timeout_ms=timeout_ms), "poll"
        )
        if not found:
            return {}
        standing = self.consumer.positions()
        got: dict[Place, dict[int, bytes | None]] = {}
        for place, records in found.items():
            got[tuple(place)] = {each.offset: each.value for each in records}
            self.world.guard(self._took, place, got[tuple(place)], standing[place])
        return got

    async def poll_nothing(self, timeout_ms: float) -> None:
        """What polls do about the group, while it has not gone back yet. Raises MustEnd."""
        self.consumer.pause(*self.consumer.assignment())
        await self.called(lambda: self.consumer.getmany(timeout_ms=timeout_ms), "poll")
        self.consumer.resume(*self.consumer.paused())

    def signs(self, metadata: str, identity: ConsumerGroupMetadata) -> None:
        """Offsets with these metadata are committed by this membership."""
        author = Author(identity.member_id, identity.generation_id, identity.group_instance_id)
        self.world.data.group_log.authors[metadata] = author

    def _took(
        self, partition: TopicPartition, got: dict[int, bytes | None], position: OffsetAndMetadata
    ) -> None:
        place: Place = tuple(partition)
        data, who = self.world.data, self.process.name
        if place not in self.watch.reported:
            raise Violation("read-unassigned", f"{who}: {place}: {list(got)}")
        if place[0] in data.recreated:
            self._check_recreated(place, got)
            return
        starts = self.watch.committed.get(place, [])
        if place in self._positions:
            starts = [self._positions[place]]
        self._positions[place] = position.offset
        if not starts and not data.is_spoilt:
            raise Violation("read-from-anywhere", f"{who}: {place}: {list(got)}")
        # Of several answers the consumer has used one.
        start = max((each for each in starts if each <= min(got)), default=starts[-1])
        check_read(self.world, who, partition, (start, position.offset), got, True)

    def _check_recreated(self, place: Place, got: Mapping[int, bytes | None]) -> None:
        """What was handed out is committed in one of the topics that have had the name."""
        data = self.world.data
        streams = [
            data.stream(truth.name)
            for (topic_id, index), truth in data.partitions.items()
            if (data.topic_names.get(topic_id), index) == place
        ]
        for offset, value in got.items():
            is_committed = any(
                placed.record.value == value and placed.outcome is not False
                for stream in streams
                for placed in stream.between(offset, offset + 1)
            )
            if not (
                is_committed or data.is_spoilt or self._is_in_deleted_topic(place, offset, value)
            ):
                raise Violation("read-nowhere", f"{self.process.name}: {place}: {offset} {value!r}")

    def _is_in_deleted_topic(self, place: Place, offset: int, value: bytes | None) -> bool:
        """Whether a leader has written this there in a topic that is deleted. One that has not
        heard of the deletion commits and serves for a while; the ledger looks at that no more.
        """
        data = self.world.data
        deleted = {
            truth.name
            for (topic_id, index), truth in data.partitions.items()
            if (data.topic_names.get(topic_id), index) == place and truth.allows_unclean
        }
        return any(
            (record.offset, record.value) == (offset, value)
            for (name, _offset, _epoch), content in data.contents.items()
            if name in deleted
            for record in content.records
        )

    async def look_up(self) -> None:
        """What is committed, as the consumer reports it, is what its coordinator has answered.
        Raises MustEnd, Violation.
        """
        partitions = sorted(self.consumer.assignment())
        found = await self.called(lambda: self.consumer.committed(partitions), "committed")
        for partition, each in (found or {}).items():
            told = self.watch.committed.get(tuple(partition))
            if told is not None and (0 if each is None else each.offset) not in told:
                self._fail("reported-otherwise", f"{partition}: {each}, it was told {told}")

    def positions(self, metadata: str | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where it stands; with the metadata of a commit."""
        standing = self.consumer.positions()
        if metadata is None:
            return standing
        return {
            partition: replace(
                each,
                metadata=marked(metadata, each.topic_id)
                if partition.topic in self.world.data.recreated
                else metadata,
            )
            for partition, each in standing.items()
        }

    async def commit(self) -> None:
        """Where it stands, and wait for it, mostly. Raises MustEnd, Violation."""
        self.commits += 1
        offsets = self.positions(f"{self.process.name}:{self.commits}")
        chance = self.random.random()
        if not offsets:
            return
        if chance < NOT_WAITED_FOR:
            was_settled = self.is_settled
            self.consumer.commit_nowait(
                offsets, lambda done, error: self._nowait_ended(done, error, was_settled)
            )
        elif chance < NOT_WAITED_FOR + ASIDE:
            self.process.spawn(self._commit_aside(offsets))
        else:
            await self._commit(offsets)

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if await self.called(lambda: self.consumer.commit(offsets), "commit"):
            self._reported(offsets)

    async def _commit_aside(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit in another task, which may have to try again while the first one goes on."""
        try:
            await self._commit(offsets)
        except MustEnd:
            self.world.counts["ends_seen_aside"] += 1

    def _nowait_ended(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        error: KafkaError | None,
        was_settled: bool,
    ) -> None:
        if error is None:
            self._reported(offsets)
        else:
            self._meaning("commit", error, was_settled=was_settled)

    def _reported(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        data = self.world.data
        for partition, each in offsets.items():
            if each.topic_id not in (None, data.topic_id_of(partition.topic)):
                continue  # of a topic that is no more, which is left out
            key = (self.watch.group, *partition)
            self.world.guard(data.commit_reported, key, each.metadata)

    async def go_back(self) -> bool:
        """Go back to what is committed, as after an aborted transaction; whether there is one.
        Raises MustEnd.
        """
        self._positions.clear()
        self.watch.committed.clear()
        return bool(await self.called(self.consumer.seek_to_committed, "seek"))

    async def close(self) -> None:
        """Leave, in good order. Raises Violation."""
        watch = self.watch
        uncommitted = self._uncommitted() if self.commits_automatically else {}
        # One that was not polled for too long is leaving by now.
        must_leave = self._standing is not Standing.OUT
        must_leave &= watch.must_leave(self._coordinator._membership.member.member_id)
        watch.asked.clear()
        watch.is_closing, watch.was_put_out = True, False
        try:
            await self.called(lambda: self.consumer.close(CLOSING_MS), "close")
        except MustEnd:
            self.world.counts["closed_after_an_end"] += 1
        # An answer to a heartbeat that was under way may have put it out before.
        if uncommitted and OffsetCommitRequest not in watch.asked and not watch.was_put_out:
            self._fail("closed-uncommitted", f"{uncommitted}")
        kind = LeaveGroupRequest if watch.is_classic else ConsumerGroupHeartbeatRequest
        if must_leave and not watch.was_put_out and kind not in watch.asked:
            self._fail("closed-and-stayed", f"{watch}")
        if watch.reported:
            self._fail("closed-unrevoked", f"{watch}")

    def _uncommitted(self) -> dict[Place, int]:
        """What was handed out and is not known to be committed, where that can be mended."""
        if self._standing is not Standing.MEMBER:
            return {}
        return {
            tuple(partition): each.offset
            for partition, each in self.consumer.positions().items()
            if self._positions.get(tuple(partition)) is not None
            and each.offset not in self.watch.committed.get(tuple(partition), ())
        }

    def _fail(self, kind: str, details: str) -> None:
        """Raises Violation, which ends the run."""
        violation = Violation(kind, f"{self.process.name}: {details}")
        self.world.violation = self.world.violation or violation
        raise violation

    async def called(self, call: Callable[[], Awaitable[Any]], what: str) -> Any:
        """What a call returns, True for nothing; False when it has failed for a reason, or was
        cancelled. Raises MustEnd, Violation.
        """
        if self._standing is Standing.OUT:
            self.watch.perhaps_lapsed()
        is_cancelled = self.random.random() < CANCELLED and what != "close"
        limit_s = self.random.uniform(0.001, 0.3) if is_cancelled else None
        try:
            async with asyncio.timeout(limit_s):
                value = await call()
                return True if value is None else value
        except RemoteProtocolError as error:
            # The leader cannot read what a faulty member says.
            if not self.world.faulty_clients:
                self._fail("unexpected-error", repr(error))
            self.world.counts["unreadable_members"] += 1
        except KafkaError as error:
            self._meaning(what, error)
        except TimeoutError:
            self.world.counts[f"{what}_cancelled"] += 1
        return False

    def _meaning(self, what: str, error: KafkaError, *, was_settled: bool = True) -> None:
        """What is to be done about an error; `was_settled` is of the time of a call that was
        answered later. Raises MustEnd, Violation.
        """
        world, refusals = self.world, self.watch.refusals
        world.counts[f"{what} {type(error).__name__} {error.code.name}"] += 1
        if isinstance(error, CommitFailed):
            # One that was not polled for too long may be about to say so.
            watch = self.watch
            is_lawful = bool(refusals) or not (watch.is_member and was_settled)
            is_lawful |= watch.is_overdue()
        elif isinstance(error, RebalanceInProgress):
            is_lawful = ErrorCode.REBALANCE_IN_PROGRESS in refusals
            is_lawful |= not (self.is_settled and was_settled)
        elif isinstance(error, FencedInstanceId | UnreleasedInstanceId | InconsistentGroupProtocol):
            is_lawful = error.code in refusals
        elif isinstance(error, ClientClosed):
            is_lawful = self.watch.is_closing
        elif isinstance(error, UnsupportedByBroker):
            is_lawful = world.draws.levels
        else:
            is_lawful = error.code in PASSING or error.code in refusals
        if not is_lawful and not world.data.is_spoilt:
            self._fail("unexpected-error", f"{what}: {error!r}, {refusals}, {self.watch}")
        if not error.retriable and not isinstance(error, CommitFailed | RebalanceInProgress):
            raise MustEnd(str(error))


def _thoughtful(
    kind: type[ConsumerPartitionAssignor], member: GroupMember
) -> ConsumerPartitionAssignor:
    """An assignor that may take its time."""

    class Thoughtful(kind):  # type: ignore[valid-type, misc]
        def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
            member.thinks()
            return super().assign(topics, subscriptions)

    return Thoughtful()


def _drawn_settings(random: Random) -> dict[str, Any]:
    return {
        "isolation_level": "read_committed",
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 200,
        "fetch_max_bytes": random.choice((1, 1_000, 1_000_000)),
        "max_poll_records": random.choice((1, 5, 500)),
        "client_rack": random.choice(("", "rack-1", "rack-2")),
        "request_timeout_ms": random.choice((1_000, 2_500)),
        "default_api_timeout_ms": 6_000,
        "retry_backoff_ms": random.choice((10, 100)),
        "retry_backoff_max_ms": 500,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 300,
        "socket_connection_setup_timeout_ms": 800,
        "socket_connection_setup_timeout_max_ms": 1_500,
        "metadata_max_age_ms": random.choice((500, 2_000)),
    }
