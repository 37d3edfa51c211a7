"""A member of a consumer group (KIP-848), as a value, and the records of consumer groups (types 3
to 8 and 16 of `__consumer_offsets`).

Invariants: no partition of a member is both assigned and pending revocation; topics and partitions
are written in order, so that equal states give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.context import (
    MEMBER_BYTES,
    NAME_BYTES,
    Refusal,
    protocols_bytes,
)
from moldau.protocol.coordinator_records import consumer_groups as kinds
from moldau.protocol.errors import ErrorCode

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id."""

OwnedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which the member got it (KIP-1251)."""

NOTHING: Final[Mapping[UUID, frozenset[int]]] = MappingProxyType({})
NOTHING_OWNED: Final[OwnedPartitions] = MappingProxyType({})

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""A static member has left for a while: its place is kept until its session ends."""


class MemberState(IntEnum):
    """How far a member is with the newest target assignment; the log's numbers.

    STABLE: it has all of it. UNREVOKED_PARTITIONS: it has to give partitions back first.
    UNRELEASED_PARTITIONS: it waits for partitions that other members have to give back.
    UNKNOWN: a newer coordinator wrote a state that this one does not know.
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


_STATES: Final = {state.value: state for state in MemberState}


class ClassicProtocols(NamedTuple):
    """What a member of the classic protocol said in its JoinGroup: names, in the order of
    preference, each with the member's subscription.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ResolvedRegularExpression(NamedTuple):
    """The topics that an expression stands for, as of a metadata offset."""

    topic_names: frozenset[str]
    metadata_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """One member: first what it said of itself, then what the coordinator gave it.

    `classic` is set for a member that speaks the classic protocol (online migration).
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicProtocols | None = None
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    pending_revocation: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about, without the partitions that it owns."""
        names = self.subscribed_topic_names
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id)
        return (
            MEMBER_BYTES
            + sum(len(text or "") for text in texts)
            + NAME_BYTES * len(names)
            + sum(map(len, names))
            + len(self.subscribed_topic_regex or "")
            + (0 if self.classic is None else protocols_bytes(self.classic.protocols))
        )

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether it sends JoinGroup, SyncGroup and Heartbeat."""
        return self.classic is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    @property
    def is_giving_back(self) -> bool:
        """Whether it has to give partitions back in its rebalance timeout; not while it is away."""
        return self.state is MemberState.UNREVOKED_PARTITIONS and self.member_epoch >= 0

    @property
    def may_read(self) -> dict[UUID, frozenset[int]]:
        """The partitions that it owns, and those that it has been asked to give back."""
        found: dict[UUID, frozenset[int]] = {}
        for owned in (self.assigned, self.pending_revocation):
            for topic_id, partitions in owned.items():
                found[topic_id] = found.get(topic_id, frozenset()).union(partitions)
        return found

    def epoch_of(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it got a partition that it still may own; None if it may not."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        if epoch is None:
            epoch = self.pending_revocation.get(topic_id, {}).get(partition)
        return epoch

    def check_epoch(self, member_epoch: int, owned: Mapping[UUID, frozenset[int]] | None) -> None:
        """Check that the member may send under `member_epoch`: its own one, or the one before if
        the answer with the new one may have been lost. Raises: Refusal, FENCED_MEMBER_EPOCH.
        """
        if member_epoch in (JOIN_EPOCH, self.member_epoch):
            return
        if member_epoch > self.member_epoch:
            raise Refusal(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"Epoch {member_epoch} is ahead of {self.member_epoch}, known here: give up all "
                "partitions and join again.",
            )
        if member_epoch != self.previous_member_epoch or not self._owns(owned):
            raise Refusal(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"Epoch {member_epoch} is behind {self.member_epoch}, known here: give up all "
                "partitions and join again.",
            )

    def _owns(self, owned: Mapping[UUID, frozenset[int]] | None) -> bool:
        if owned is None:
            return False
        return all(
            topic_id in self.assigned and partitions <= self.assigned[topic_id].keys()
            for topic_id, partitions in owned.items()
        )

    def successor(self, member_id: str) -> ConsumerGroupMember:
        """The joining member that takes the place, and the partitions, of this static one."""
        return replace(
            self, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH
        )

    def with_metadata(self, value: kinds.ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicProtocols(
                classic.session_timeout_ms,
                tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
            ),
        )

    def with_current_assignment(
        self, value: kinds.ConsumerGroupCurrentMemberAssignmentValue
    ) -> ConsumerGroupMember:
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            pending_revocation=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerGroupMember:
        return replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NOTHING_OWNED,
            pending_revocation=NOTHING_OWNED,
        )


def _owned(topics: Iterable[kinds.TopicPartitions], member_epoch: int) -> OwnedPartitions:
    """A record's partitions; what was written without epochs counts as given in the member's."""
    owned: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def with_epoch(assignment: Assignment, assignment_epoch: int) -> OwnedPartitions:
    return {
        topic_id: dict.fromkeys(partitions, assignment_epoch)
        for topic_id, partitions in assignment.items()
    }


def group_epoch_record(group_id: str, group_epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """The group's epoch, and a hash of the topics it is subscribed to (type 3)."""
    return CoordinatorRecord(
        kinds.ConsumerGroupMetadataKey(group_id=group_id),
        kinds.ConsumerGroupMetadataValue(epoch=group_epoch, metadata_hash=metadata_hash),
    )


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """The metadata of a member (type 5)."""
    classic = member.classic
    return CoordinatorRecord(
        kinds.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        kinds.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
            subscribed_topic_regex=member.subscribed_topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None
            if classic is None
            else kinds.ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    kinds.ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in classic.protocols
                ],
            ),
        ),
    )


def target_epoch_record(
    group_id: str, assignment_epoch: int, timestamp_ms: int
) -> CoordinatorRecord:
    """The epoch of the target assignment, and when it was computed (type 6)."""
    return CoordinatorRecord(
        kinds.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        kinds.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=assignment_epoch, assignment_timestamp=timestamp_ms
        ),
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> CoordinatorRecord:
    """What a member shall own (type 7)."""
    return CoordinatorRecord(
        kinds.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        kinds.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                kinds.TopicPartition(topic_id=topic_id, partitions=sorted(target[topic_id]))
                for topic_id in sorted(target)
            ]
        ),
    )


def current_assignment_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """What a member owns (type 8)."""
    return CoordinatorRecord(
        kinds.ConsumerGroupCurrentMemberAssignmentKey(
            group_id=group_id, member_id=member.member_id
        ),
        kinds.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            assigned_partitions=_topics(member.assigned),
            partitions_pending_revocation=_topics(member.pending_revocation),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The end of a member: of what it owns, of what it shall own, and of itself."""
    return [
        CoordinatorRecord(key(group_id=group_id, member_id=member_id), None)
        for key in (
            kinds.ConsumerGroupCurrentMemberAssignmentKey,
            kinds.ConsumerGroupTargetAssignmentMemberKey,
            kinds.ConsumerGroupMemberMetadataKey,
        )
    ]


def regular_expression_record(
    group_id: str, expression: str, resolved: ResolvedRegularExpression | None
) -> CoordinatorRecord:
    """What an expression stands for (type 16), or with None its end."""
    key = kinds.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    if resolved is None:
        return CoordinatorRecord(key, None)
    topic_names, metadata_offset, timestamp_ms = resolved
    return CoordinatorRecord(
        key,
        kinds.ConsumerGroupRegularExpressionValue(
            topics=sorted(topic_names), version=metadata_offset, timestamp=timestamp_ms
        ),
    )


def _topics(owned: OwnedPartitions) -> list[kinds.TopicPartitions]:
    topics = []
    for topic_id in sorted(owned):
        partitions = sorted(owned[topic_id])
        topics.append(
            kinds.TopicPartitions(
                topic_id=topic_id,
                partitions=partitions,
                assignment_epochs=[owned[topic_id][index] for index in partitions],
            )
        )
    return topics
