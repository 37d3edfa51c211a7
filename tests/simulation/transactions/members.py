"""Members of groups: the classic protocol with its range assignor on the leader's side.

Owns: one membership (id, generation, what is owned) and the offsets of the group. Must not: choose
what is done with records. Invariants: a member gives up everything before it joins again (eager);
what it owns is what its last generation gave it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import consumer_protocol as assignments
from moldau.protocol.messages import p08_offset_commit as committing
from moldau.protocol.messages import p09_offset_fetch as fetching
from moldau.protocol.messages import p11_join_group as joining
from moldau.protocol.messages import p13_leave_group as leaving
from moldau.protocol.messages import p14_sync_group as syncing
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
)
from moldau.protocol.messages.consumer_protocol import (
    OwnedTopic as OwnedPartitions,
)
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.types import ZERO_UUID
from tests.kit.seeds import Violation
from tests.simulation.transactions.coordinator_link import ELSEWHERE, GROUP, CoordinatorLink
from tests.simulation.transactions.group_log import Author, assigned, marked

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

Place = tuple[str, int]

LONGEST_THOUGHT_MS = 1_500.0
"""Less than the rebalance timeout."""

VERSION = 2
FIRST_WITH_TOPIC_IDS = 10
_VERSION = Struct(">h")

RETRIED = ELSEWHERE | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
OUT = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }
)


class Membership:
    """What both protocols have in common. `epoch`: the generation, or the member epoch."""

    offset_commit_version = 9
    offset_fetch_version = 9

    def __init__(
        self,
        world: TransactionWorld,
        link: CoordinatorLink,
        group: str,
        instance_id: str | None,
        topics: list[str],
        *,
        has_topic_ids: bool = False,
    ) -> None:
        """`has_topic_ids`: offsets are committed and fetched by the ids of topics."""
        self.world = world
        self.link = link
        self.group = group
        self.instance_id = instance_id
        self.topics = topics
        self.has_topic_ids = has_topic_ids
        if has_topic_ids:
            self.offset_commit_version = self.offset_fetch_version = FIRST_WITH_TOPIC_IDS
        self.member_id = ""
        self.epoch = -1
        self.mine: list[Place] = []
        self.is_member = False
        self.must_join = False
        """Whether it has to join again, and keeps what it owns until then."""
        self.has_changed = False
        """Whether what it owns has changed since somebody asked."""
        self._asked_at = 0.0
        """When its newest request was sent."""

    @property
    def label(self) -> str:
        """Who this is, for the ledger."""
        return self.link.process.name

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.member_id} in {self.epoch} has {self.mine}"

    @property
    def identity(self) -> tuple[str, str | None, int]:
        """For commits of offsets."""
        return (self.member_id, self.instance_id, self.epoch)

    def signs(self, metadata: str) -> None:
        """Commits with these metadata are this member's, of the epoch it is in."""
        author = Author(self.member_id, self.epoch, self.instance_id)
        self.world.data.group_log.authors[metadata] = author

    async def join(self) -> None:
        """Until it is a member. Raises Violation."""
        raise NotImplementedError

    async def heartbeat(self) -> None:
        """Say that it is there; learn what has changed."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave in good order."""
        raise NotImplementedError

    def owns(
        self, places: dict[Place, Any], sent_at: float, limit_ms: float, *, is_classic: bool
    ) -> None:
        """Tell the ledger what it reads from now on. Raises Violation."""
        data = self.world.data
        self.world.guard(
            lambda: data.owned(
                self.group,
                self.label,
                places,
                sent_at,
                limit_ms,
                self.instance_id,
                is_classic=is_classic,
            )
        )

    def drop(self) -> None:
        """It is a member no more, as far as it knows."""
        self.is_member = self.must_join = False
        self.mine = []
        self.world.data.released(self.group, self.label)
        self.world.data.may_go(self.group, self.member_id)

    def rebalances(self) -> None:
        """Its group rebalances: an eager member gives up what it has at once."""
        self.drop()

    async def ask(self, request: Any, what: str, api_version: int, timeout_ms: float | None = None):
        """One question to the coordinator; (REQUEST_TIMED_OUT, None) without an answer."""
        broker_id = await self.link.find(GROUP, self.group)
        if broker_id is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        self._asked_at = self.world.loop.time()
        try:
            response = await self.link.ask(
                broker_id, request, api_version=api_version, timeout_ms=timeout_ms
            )
        except (OSError, TimeoutError):
            self.link.forget(GROUP, self.group)
            return ErrorCode.REQUEST_TIMED_OUT, None
        error = ErrorCode.of(getattr(response, "error_code", 0))
        return self.judge(error, what), response

    def judge(self, error: ErrorCode, what: str) -> ErrorCode:
        """Count an error, and do what belongs to it. Raises Violation."""
        is_refused = (
            error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            and self.group in self.world.changing_groups
        )
        is_refused |= error is ErrorCode.UNKNOWN_TOPIC_ID and self.has_topic_ids
        is_refused |= error is ErrorCode.UNSUPPORTED_VERSION and self.world.draws.levels
        if error not in RETRIED | OUT | {ErrorCode.NONE} and not is_refused:
            raise Violation("unexpected-error", f"{self.label}: {what}: {error.name}")
        may_refuse = self.world.data.is_spoilt or self.group in self.world.changing_groups
        may_refuse |= self.world.draws.groups or self.world.draws.levels
        if error is ErrorCode.GROUP_ID_NOT_FOUND and not may_refuse:
            # A group without members and offsets is removed: whoever comes late finds none.
            if not self.world.data.may_be_lost(self.group, self.label, self._asked_at):
                raise Violation("group-lost", f"{self.label}: {what} in {self.group}")
            self.world.counts["groups_gone"] += 1
        if error is not ErrorCode.NONE:
            self.world.counts[f"{what} {error.name}"] += 1
        if error in ELSEWHERE:
            self.link.forget(GROUP, self.group)
        return error

    # -- offsets ---------------------------------------------------------------------------------

    async def positions(self, places: list[Place]) -> dict[Place, int] | None:
        """What is committed, stable; None when it is to be asked again. Raises Violation."""
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        ids = await self._topic_ids(topics)
        if ids is None:
            return None
        names = {ids[name]: name for name in topics}
        request = fetching.OffsetFetchRequest(
            groups=[
                fetching.OffsetFetchRequestGroup(
                    group_id=self.group,
                    topics=[
                        fetching.OffsetFetchRequestTopics(
                            name=name, topic_id=ids[name], partition_indexes=indexes
                        )
                        for name, indexes in topics.items()
                    ],
                )
            ],
            require_stable=True,
        )
        asked_at = self.world.loop.time()
        broker_id = await self.link.find(GROUP, self.group)
        was_leader = self.world.is_coordinator(self.group, broker_id)
        error, response = await self.ask(request, "offset_fetch", self.offset_fetch_version)
        if response is None:
            return None
        found = response.groups[0]
        if self.judge(ErrorCode.of(found.error_code), "offset_fetch") is not ErrorCode.NONE:
            return None
        is_leader = was_leader and self.world.is_coordinator(self.group, broker_id)
        result = {}
        for topic in found.topics:
            name = names[topic.topic_id] if self.has_topic_ids else topic.name
            for partition in topic.partitions:
                error = self.judge(ErrorCode.of(partition.error_code), "offset_fetch")
                if error is ErrorCode.UNKNOWN_TOPIC_ID:
                    await self.link.refresh(name)
                if error is not ErrorCode.NONE:
                    return None
                key = (self.group, name, partition.partition_index)
                self.world.guard(
                    lambda key=key, partition=partition: self.world.data.offset_fetched(
                        key,
                        partition.committed_offset,
                        partition.metadata or "",
                        asked_at,
                        is_leader=is_leader,
                        topic_id=ids[key[1]] if self.has_topic_ids else None,
                    )
                )
                place = (name, partition.partition_index)
                result[place] = max(partition.committed_offset, 0)
        return result

    async def _topic_ids(self, topics: Iterable[str]) -> dict[str, Any] | None:
        """What this client takes for the topics of those names; None when it has to ask again."""
        if not self.has_topic_ids:
            return dict.fromkeys(topics, ZERO_UUID)
        for name in topics:
            if name not in self.link.topic_ids:
                await self.link.refresh(name)
        ids = {name: self.link.topic_ids.get(name) for name in topics}
        return None if None in ids.values() else ids

    async def commit(self, positions: dict[Place, int], metadata: str) -> bool:
        """OffsetCommit of this generation, until its outcome is known; whether it was taken."""
        ids = await self._topic_ids({topic for topic, _index in positions})
        if ids is None:
            return False
        marks = {
            topic: marked(metadata, topic_id) if self.has_topic_ids else metadata
            for topic, topic_id in ids.items()
        }
        for mark in marks.values():
            self.signs(mark)
        request = committing.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            topics=[
                committing.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=ids[topic],
                    partitions=[
                        committing.OffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            committed_metadata=marks[topic],
                        )
                    ],
                )
                for (topic, index), offset in positions.items()
            ],
        )
        deadline = self.world.loop.time() + 6
        while self.world.loop.time() < deadline:
            _error, response = await self.ask(request, "offset_commit", self.offset_commit_version)
            found = [ErrorCode.REQUEST_TIMED_OUT]
            if response is None:
                for (topic, index), offset in positions.items():
                    key = (self.group, topic, index)
                    self.world.data.group_log.asked_again.setdefault(key, set()).add(offset)
            else:
                found = [
                    self.judge(ErrorCode.of(each.error_code), "offset_commit")
                    for topic in response.topics
                    for each in topic.partitions
                ]
            if all(error is ErrorCode.NONE for error in found):
                for topic, index in positions:
                    data = self.world.data
                    mark = marks[topic]
                    self.world.guard(data.offset_answered, self.group, topic, index, mark)
                return True
            if ErrorCode.UNKNOWN_TOPIC_ID in found:
                for topic in ids:
                    await self.link.refresh(topic)
                return False
            if OUT.intersection(found):
                if ErrorCode.REBALANCE_IN_PROGRESS in found:
                    self.rebalances()
                elif ErrorCode.STALE_MEMBER_EPOCH not in found:
                    self.drop()
                return False
            await self.link.pause()
        return False


class ClassicMembership(Membership):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup; eager."""

    protocol = "range"
    session_ms = 3_000
    rebalance_ms = 2_000
    is_leader = False

    async def join(self) -> None:
        self.rebalances()
        while True:
            request = joining.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.session_ms,
                rebalance_timeout_ms=self.rebalance_ms,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocols=[
                    joining.JoinGroupRequestProtocol(
                        name=self.protocol,
                        metadata=subscription(self.topics, self.mine, self.epoch),
                    )
                ],
            )
            data = self.world.data
            data.challenged(self.group, self.label, self.instance_id, is_classic=True)
            shape = self.world.shape(self.topics)
            error, response = await self.ask(request, "join", 9, self.rebalance_ms + 4_000)
            if response is not None and error is ErrorCode.NONE:
                self.member_id, self.epoch = response.member_id, response.generation_id
                if response.skip_assignment:
                    # The coordinator has assigned the topics as they are known by now.
                    self.world.assigned_shapes.setdefault(self.group, shape)
                if await self._sync(response):
                    return
                continue
            if error is ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
                continue
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.drop()
                self.member_id = ""
            await self.link.pause()

    async def _sync(self, joined: Any) -> bool:
        given: list[syncing.SyncGroupRequestAssignment] = []
        self.is_leader = bool(joined.leader == self.member_id)
        if joined.leader == self.member_id and not joined.skip_assignment:
            await self._think()
            self.world.assigned_shapes[self.group] = self.world.shape(self.topics)
            given = [
                syncing.SyncGroupRequestAssignment(member_id=member, assignment=assignment(share))
                for member, share in self.assign(joined.members).items()
            ]
        sent_at = self.world.loop.time()
        # An assignment names topics; one that was created again since then is not meant by it.
        topic_ids = {topic: self.world.data.topic_id_of(topic) for topic in self.topics}
        error, response = await self.ask(
            syncing.SyncGroupRequest(
                group_id=self.group,
                generation_id=self.epoch,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name=self.protocol,
                assignments=given,
            ),
            "sync",
            5,
            self.rebalance_ms + 4_000,
        )
        if response is None or error is not ErrorCode.NONE:
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.drop()
                self.member_id = ""
            await self.link.pause()
            return False
        await self.take(assigned(response.assignment))
        self.is_member = self.has_changed = True
        data, limit_ms = self.world.data, min(self.session_ms, self.rebalance_ms)
        # A static member that comes back has the assignment that it had (KIP-345).
        who = self.instance_id or self.label
        self.world.guard(data.claimed, self.group, self.epoch, who, self.mine)
        ids = {(topic, index): topic_ids.get(topic) for topic, index in self.mine}
        self.owns(ids, sent_at, limit_ms, is_classic=True)
        return True

    async def _think(self) -> None:
        """Some leaders take their time to assign partitions; one of a held group until it is let
        go, or its time is over.
        """
        world, loop = self.world, self.world.loop
        if self.group in world.held_groups:
            world.thinking_groups.add(self.group)
            until = loop.time() + LONGEST_THOUGHT_MS / 1000
            while self.group in world.held_groups and loop.time() < until:
                await loop.elapse(20.0)
            world.thinking_groups.discard(self.group)
        elif self.link.random.random() < world.slow_assignments:
            await loop.elapse(self.link.random.uniform(50.0, LONGEST_THOUGHT_MS))

    async def take(self, given: list[Place]) -> None:
        """Own what its generation gives it."""
        self.mine = given

    def assign(self, members: list[Any]) -> dict[str, dict[str, list[int]]]:
        """Kafka's range assignor: of each topic neighbouring partitions to each member."""
        member_ids = sorted(each.member_id for each in members)
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in member_ids}
        for topic in self.topics:
            count = self.world.partition_count(topic)
            for index in range(count):
                member = member_ids[index * len(member_ids) // count]
                shares[member].setdefault(topic, []).append(index)
        return shares

    async def heartbeat(self) -> None:
        if self.is_leader and self._is_outdated():
            self.world.counts["reassigned_topics"] += 1
            self.rebalances()
            return
        sent_at = self.world.loop.time()
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        error, response = await self.ask(request, "heartbeat", 4)
        if response is not None and error is ErrorCode.NONE:
            data, limit_ms = self.world.data, min(self.session_ms, self.rebalance_ms)
            data.heard(self.group, self.label, sent_at)
            if self.instance_id is None:
                data.may_stay(self.group, self.member_id, sent_at, limit_ms)
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rebalances()
        elif error in OUT:
            self.drop()
            self.member_id = ""

    def _is_outdated(self) -> bool:
        """Whether topics are not what they were when the leader assigned them."""
        known = self.world.assigned_shapes.get(self.group)
        return known is not None and known != self.world.shape(self.topics)

    async def leave(self) -> None:
        self.drop()
        self.world.data.group_log.left.add((self.group, self.member_id))
        member = leaving.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance_id
        )
        request = leaving.LeaveGroupRequest(group_id=self.group, members=[member])
        await self.ask(request, "leave", 5)
        self.member_id = ""
        self.world.counts["leaves"] += 1


def subscription(topics: list[str], owned: list[Place], generation: int) -> bytes:
    """What a member tells the leader of its group."""
    message = ConsumerProtocolSubscription(
        topics=topics,
        owned_partitions=[
            OwnedPartitions(topic=topic, partitions=sorted(i for name, i in owned if name == topic))
            for topic in sorted({name for name, _index in owned})
        ],
        generation_id=generation if owned else -1,
    )
    return _VERSION.pack(VERSION) + bytes(message.to_bytes(VERSION))


def assignment(share: dict[str, list[int]]) -> bytes:
    """What a leader gives a member."""
    message = assignments.ConsumerProtocolAssignment(
        assigned_partitions=[
            assignments.TopicPartition(topic=topic, partitions=indexes)
            for topic, indexes in share.items()
        ]
    )
    return _VERSION.pack(VERSION) + bytes(message.to_bytes(VERSION))
