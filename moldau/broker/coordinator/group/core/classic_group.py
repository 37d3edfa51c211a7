"""A group of the classic protocol: its members, its generation and the state it is in.

Owns the group with its legal transitions, the requests that wait at its members, its record in the
log, and the questions that other parts of the coordinator ask any kind of group. Must not decide
when a generation begins or ends (`classic_groups` does). Invariants: one leader, who is a member,
while there are members; the count of waiting members and the supported protocols agree with the
members; the state changes only along `_TRANSITIONS`; each waiting request is answered once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Final, NamedTuple

from moldau.broker.coordinator.core.result import (
    Answerable,
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
)
from moldau.broker.coordinator.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_BYTES,
    MEMBER_BYTES,
    NEW_MEMBER_TIMEOUT_MS,
    PENDING_MEMBER_BYTES,
    protocols_bytes,
    refused,
)
from moldau.broker.coordinator.group.core.joining import (
    UNKNOWN_MEMBER,
    Protocols,
    join_error,
    sync_error,
)
from moldau.protocol.coordinator_records import classic_groups as kinds
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.p11_join_group import JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.p14_sync_group import SyncGroupResponse

_RECORD_VERSION: Final = 3
"""The version of the record that Apache Kafka 4.3 writes."""

NO_TIMESTAMP_MS: Final = -1
"""The time of a state that only offsets have brought about."""

SESSION: Final = "classic session"
JOIN: Final = "classic join"
SYNC: Final = "classic sync"

_VERSION_BYTES: Final = 2
_NAME: Final = itemgetter(0)


class ClassicTimer(NamedTuple):
    """A timer of a classic group: a member's session, or an end of waiting for joins or syncs."""

    kind: str
    group_id: str
    member_id: str = UNKNOWN_MEMBER


class ClassicGroupState(Enum):
    """See `_TRANSITIONS`; the values are what clients read."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_TRANSITIONS: Final = {
    ClassicGroupState.EMPTY: {ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.DEAD},
    ClassicGroupState.PREPARING_REBALANCE: {
        ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupState.EMPTY,
        ClassicGroupState.DEAD,
    },
    ClassicGroupState.COMPLETING_REBALANCE: {
        ClassicGroupState.STABLE,
        ClassicGroupState.PREPARING_REBALANCE,
        ClassicGroupState.DEAD,
    },
    ClassicGroupState.STABLE: {ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.DEAD},
    ClassicGroupState.DEAD: set(),
}


@dataclass(slots=True, eq=False)
class ClassicMember:
    """One member. `join_reply_to` and `sync_reply_to` are set while a request of it waits; `is_new`
    until its first rebalance has ended.

    `assignment` is what the last generation with an assignment gave it. A rebalance keeps it: until
    the member has heard of the next one, it may read those partitions.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    protocol_names: frozenset[str] = field(init=False)
    assignment: bytes = b""
    is_new: bool = False
    join_reply_to: Answerable | None = None
    join_api_version: int = 0
    sync_reply_to: Answerable | None = None

    def __post_init__(self) -> None:
        self.protocol_names = frozenset(map(_NAME, self.protocols))

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return (
            MEMBER_BYTES
            + len(self.member_id)
            + len(self.group_instance_id or "")
            + len(self.client_id)
            + protocols_bytes(self.protocols)
            + len(self.assignment)
        )

    def metadata(self, protocol_name: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def answer_sync(self, message: SyncGroupResponse, out: CoordinatorResult) -> None:
        if self.sync_reply_to is not None:
            out.replies.append(Reply(self.sync_reply_to, message))
            self.sync_reply_to = None


class ClassicGroup:
    """A group of the classic protocol (KIP-62, KIP-345, KIP-394); moves along `_TRANSITIONS`."""

    kind: Final = "classic"
    new_member_added: bool
    initial_delay_left_ms: int
    """What is left of a first rebalance's delays; set when it begins."""

    def __init__(self, group_id: str, now_ms: float) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.EMPTY
        self.state_timestamp_ms = int(now_ms)
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: set[str] = set()
        """Ids given out to members that have not come back with them yet (KIP-394)."""
        self.pending_sync: set[str] = set()
        """Members that have not yet asked for their assignment in this generation."""
        self.subscribed_topics: frozenset[str] | None = None
        self.is_persisted = False
        self.waiting_to_join_count = 0
        self._common_protocols: frozenset[str] | None = None
        """What all members support; None if it has to be found out."""
        self._members_bytes = 0

    # -- what every kind of group answers --------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about, without its offsets."""
        pending_bytes = PENDING_MEMBER_BYTES * len(self.pending_members)
        return GROUP_BYTES + len(self.group_id) + self._members_bytes + pending_bytes

    def member_bytes(self, member_id: str, instance_id: str | None) -> int:
        """What the member with that id, or else of that instance, takes; 0 without one."""
        known_id = member_id or self.static_members.get(instance_id or "", "")
        member = self.members.get(known_id)
        return 0 if member is None else member.size_bytes

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether the group never had members: it exists for its offsets alone."""
        return not self.protocol_type and self.is_empty and not self.pending_members

    @property
    def is_unused(self) -> bool:
        """Whether only offsets may be a reason to keep the group. A group that has had a generation
        is kept for a while: the next one must have another number.
        """
        is_known = self.is_persisted or self.generation_id > 0
        return self.is_empty and not self.pending_members and not is_known

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def validate_offset_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_or_member_epoch: int,
        *,
        is_transactional: bool,
        api_version: int,
    ) -> ErrorCode:
        """Whether this member may commit now. Without member id and generation (an admin client, or
        a consumer that manages itself) only an empty group's offsets may be set, but a transaction
        of old may set any.
        """
        del api_version
        generation = generation_or_member_epoch
        if generation < 0 and self.is_empty:
            return ErrorCode.NONE
        if generation >= 0 or member_id != UNKNOWN_MEMBER or group_instance_id is not None:
            error = self.validate_member(member_id, group_instance_id)
            if error is not ErrorCode.NONE:
                return error
            if generation != self.generation_id:
                return ErrorCode.ILLEGAL_GENERATION
        elif not is_transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and self.state is ClassicGroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Every client may read a classic group's offsets."""
        del member_id, member_epoch
        return ErrorCode.NONE

    def validate_offset_delete(self) -> ErrorCode:
        """Only an empty group has no use for its offsets; consumers tell it topic by topic."""
        if self.is_empty or self.uses_consumer_protocol:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def validate_delete(self) -> ErrorCode:
        return ErrorCode.NONE if self.is_empty else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member wants that topic; unreadable subscriptions want every topic."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol and not self.is_empty
        return topic in self.subscribed_topics

    def expiration_base_ms(self, commit_timestamp_ms: float) -> float | None:
        """From when on an offset's retention counts; None while it does not expire (KIP-211)."""
        if not self.protocol_type:
            return commit_timestamp_ms
        if self.is_empty:
            return self.state_timestamp_ms if self.state_timestamp_ms >= 0 else commit_timestamp_ms
        if (
            self.uses_consumer_protocol
            and self.subscribed_topics is not None
            and self.state is ClassicGroupState.STABLE
        ):
            return commit_timestamp_ms
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        return [CoordinatorRecord(kinds.GroupMetadataKey(group=self.group_id), None)]

    # -- the log ---------------------------------------------------------------------------------

    def record(self, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
        protocol = self.protocol_name
        return CoordinatorRecord(
            kinds.GroupMetadataKey(group=self.group_id),
            kinds.GroupMetadataValue(
                protocol_type=self.protocol_type,
                generation=self.generation_id,
                protocol=protocol,
                leader=self.leader_id,
                current_state_timestamp=self.state_timestamp_ms,
                members=[
                    kinds.MemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.metadata(protocol or ""),
                        assignment=assignments.get(member.member_id, b""),
                    )
                    for member in self.members.values()
                ],
            ),
            _RECORD_VERSION,
        )

    @classmethod
    def from_record(cls, group_id: str, value: kinds.GroupMetadataValue) -> ClassicGroup:
        """The group that a record describes. One with members is stable. One without a leader is in
        the middle of a rebalance: no member is given the assignments in the record.
        """
        group = cls(group_id, value.current_state_timestamp)
        group.is_persisted = True
        group.protocol_type = value.protocol_type
        group.protocol_name = value.protocol
        group.generation_id = value.generation
        for written in value.members:
            session_ms = written.session_timeout
            rebalance_ms = written.rebalance_timeout
            member = ClassicMember(
                written.member_id,
                written.group_instance_id,
                written.client_id,
                written.client_host,
                session_ms if rebalance_ms < 0 else rebalance_ms,
                session_ms,
                [(value.protocol or "", bytes(written.subscription))],
            )
            member.assignment = bytes(written.assignment)
            group.add(member, value.protocol_type)
        if group.members:
            if value.leader in group.members:
                group.leader_id = value.leader
            group.state = group.previous_state = ClassicGroupState.STABLE
            if value.leader is None:
                group.state = ClassicGroupState.PREPARING_REBALANCE
        group.read_subscriptions()
        return group

    # -- members ---------------------------------------------------------------------------------

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Whether the group has that member, and it is still the one with that instance id."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def supports(self, protocol_type: str, protocol_names: Iterable[str]) -> bool:
        names = list(protocol_names)
        if self.is_empty:
            return bool(protocol_type) and bool(names)
        if protocol_type != self.protocol_type:
            return False
        return bool(names) if not self.members else not self.common_protocols.isdisjoint(names)

    @property
    def common_protocols(self) -> frozenset[str]:
        """The protocols that all members support; there are members."""
        common = self._common_protocols
        if common is None:
            first, *others = (member.protocol_names for member in self.members.values())
            self._common_protocols = common = first.intersection(*others)
        return common

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """A new member; the first one leads."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._members_bytes += member.size_bytes
        self.pending_members.discard(member.member_id)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        if self._common_protocols is not None:
            self._common_protocols &= member.protocol_names

    def remove(self, member: ClassicMember) -> None:
        """Take out a member, whose requests must have been answered."""
        assert member.join_reply_to is None
        assert member.sync_reply_to is None
        del self.members[member.member_id]
        self._members_bytes -= member.size_bytes
        self.pending_sync.discard(member.member_id)
        self._common_protocols = None
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: ClassicMember, new_member_id: str) -> None:
        """A static member has come back with a new id (KIP-345)."""
        old_member_id = member.member_id
        assert member.group_instance_id is not None
        del self.members[old_member_id]
        member.member_id = new_member_id
        self._members_bytes += len(new_member_id) - len(old_member_id)
        self.members[new_member_id] = member
        self.static_members[member.group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync.remove(old_member_id)
            self.pending_sync.add(new_member_id)

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        names = frozenset(map(_NAME, protocols))
        if names != member.protocol_names:
            self._common_protocols = None
        member.protocol_names = names
        self._members_bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        self._members_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def wait_for_join(self, member: ClassicMember, reply_to: Answerable, api_version: int) -> None:
        if member.join_reply_to is None:
            self.waiting_to_join_count += 1
        member.join_reply_to = reply_to
        member.join_api_version = api_version

    @property
    def have_all_joined(self) -> bool:
        """Whether all members, and those that only have an id yet, wait for the generation."""
        return self.waiting_to_join_count == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined again the leader; False when none has."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_reply_to is not None:
            return True
        for member in self.members.values():
            if member.join_reply_to is not None:
                self.leader_id = member.member_id
                return True
        return False

    # -- answers ---------------------------------------------------------------------------------

    def join_response(
        self, member: ClassicMember, *, leader_id: str | None = None, skip_assignment: bool = False
    ) -> JoinGroupResponse:
        """The generation for one member; only the leader (`leader_id`, if it is given) is sent
        the members.
        """
        told_leader = (self.leader_id if leader_id is None else leader_id) or UNKNOWN_MEMBER
        protocol = self.protocol_name or ""
        members = []
        if told_leader == member.member_id:
            members = [
                JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    metadata=each.metadata(protocol),
                )
                for each in self.members.values()
            ]
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=protocol,
            leader=told_leader,
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=members,
        )

    def sync_response(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def answer_join(
        self, member: ClassicMember, message: JoinGroupResponse, out: CoordinatorResult
    ) -> None:
        reply_to = self._end_join(member)
        if reply_to is not None:
            out.replies.append(Reply(reply_to, message))

    def _end_join(self, member: ClassicMember) -> Answerable | None:
        """Where the answer to the member's JoinGroup goes, if one waits."""
        reply_to, member.join_reply_to = member.join_reply_to, None
        self.waiting_to_join_count -= reply_to is not None
        return reply_to

    def refuse_join(self, member: ClassicMember, error: ErrorCode, out: CoordinatorResult) -> None:
        reply_to, api_version = self._end_join(member), member.join_api_version
        told = UNKNOWN_MEMBER if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        if reply_to is not None:
            out.replies.append(
                refused(reply_to, error, lambda error: join_error(error, told, api_version))
            )

    def refuse_waiting(
        self, member: ClassicMember, error: ErrorCode, out: CoordinatorResult
    ) -> None:
        self.refuse_join(member, error, out)
        if member.sync_reply_to is not None:
            out.replies.append(refused(member.sync_reply_to, error, sync_error))
            member.sync_reply_to = None

    def renew_session(self, member: ClassicMember, out: CoordinatorResult) -> None:
        timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        timer = ClassicTimer(SESSION, self.group_id, member.member_id)
        out.timers.append(SetTimer(timer, timeout_ms))

    def end_session(self, member_id: str, out: CoordinatorResult) -> None:
        out.timers.append(CancelTimer(ClassicTimer(SESSION, self.group_id, member_id)))

    def has_synced(self, member: ClassicMember, out: CoordinatorResult) -> None:
        if member.member_id in self.pending_sync:
            self.pending_sync.remove(member.member_id)
            if not self.pending_sync:
                out.timers.append(CancelTimer(ClassicTimer(SYNC, self.group_id)))

    def cancel_timers(self, out: CoordinatorResult) -> None:
        for member_id in [*self.members, *self.pending_members]:
            self.end_session(member_id, out)
        out.timers.append(CancelTimer(ClassicTimer(JOIN, self.group_id)))
        out.timers.append(CancelTimer(ClassicTimer(SYNC, self.group_id)))

    # -- generations -----------------------------------------------------------------------------

    def transition_to(self, state: ClassicGroupState, now_ms: float) -> None:
        assert state in _TRANSITIONS[self.state], f"{self.group_id}: {self.state} → {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = int(now_ms)

    def begin_generation(self, now_ms: float) -> None:
        self.generation_id += 1
        self.pending_sync.clear()
        if self.members:
            assert self.common_protocols, f"{self.group_id}: members without a common protocol"
            self.protocol_name = self.select_protocol()
            self.transition_to(ClassicGroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(ClassicGroupState.EMPTY, now_ms)
        self.read_subscriptions()

    def select_protocol(self) -> str:
        """The protocol that most members like best among those all of them support; without one,
        which only a log can bring about, that most members like best.
        """
        candidates = self.common_protocols
        votes: Counter[str] = Counter()
        for member in self.members.values():
            names = [name for name, _ in member.protocols]
            votes.update(next(([name] for name in names if name in candidates), names[:1]))
        return max(votes, key=votes.__getitem__)

    def read_subscriptions(self) -> None:
        """Find out which topics the members want, None if that cannot be known."""
        self.subscribed_topics = None
        if not self.uses_consumer_protocol:
            return
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics |= _subscribed_topics(member.metadata(self.protocol_name or ""))
            except RemoteProtocolError:
                return
        self.subscribed_topics = frozenset(topics)


def _subscribed_topics(metadata: bytes) -> set[str]:
    # Every later version begins with what version 0 says.
    subscription, _end = ConsumerProtocolSubscription.decode(metadata, 0, _VERSION_BYTES)
    return set(subscription.topics)
