"""A member of a consumer group (KIP-848), as a value, and how it is read from the log's records.

Invariant: no partition of a member is both assigned and pending revocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from moldau.broker.coordinator.group.core.context import Refusal
from moldau.protocol.coordinator_records.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)
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
    """What a member of the classic protocol said in its JoinGroup.

    Attributes:
        protocols: names, in the order of preference, each with the member's subscription.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


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
    def uses_classic_protocol(self) -> bool:
        """Whether it sends JoinGroup, SyncGroup and Heartbeat."""
        return self.classic is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether it has all that the target assignment of that epoch gives it."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

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

    def check_epoch(
        self,
        member_epoch: int,
        owned: Mapping[UUID, frozenset[int]] | None,
    ) -> None:
        """Check that the member may send under `member_epoch`: its own one, or the one before if
        the answer with the new one may have been lost.

        Raises:
            Refusal: FENCED_MEMBER_EPOCH.
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

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        """The member with its metadata from a record."""
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
        self, value: ConsumerGroupCurrentMemberAssignmentValue
    ) -> ConsumerGroupMember:
        """The member with its partitions from a record."""
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            pending_revocation=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerGroupMember:
        """The member without any partition."""
        return replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NOTHING_OWNED,
            pending_revocation=NOTHING_OWNED,
        )


def _owned(topics: Iterable[TopicPartitions], member_epoch: int) -> OwnedPartitions:
    """A record's partitions; what was written without epochs counts as given in the member's."""
    owned: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def with_epoch(assignment: Assignment, assignment_epoch: int) -> OwnedPartitions:
    """The partitions, all of them given in `assignment_epoch`."""
    return {
        topic_id: dict.fromkeys(partitions, assignment_epoch)
        for topic_id, partitions in assignment.items()
    }
