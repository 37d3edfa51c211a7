"""Groups that change between the classic protocol and the new one while they work (KIP-848).

Owns when a group may change (`group.consumer.migration.policy`), and the records by which it does.
Must not serve members. Invariant: a group changes in one batch, with every member, its partitions
and its epoch or generation; offsets are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from moldau.broker.coordinator.core.result import (
    CoordinatorRecord,
    CoordinatorResult,
    SetTimer,
)
from moldau.broker.coordinator.group.core.classic_group import (
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
)
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup, GroupContext
from moldau.broker.coordinator.group.core.consumer_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    MemberState,
    current_assignment_record,
    group_epoch_record,
    member_record,
    target_epoch_record,
    target_record,
    with_epoch,
)
from moldau.broker.coordinator.group.core.consumer_protocol import (
    by_topic_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from moldau.broker.coordinator.group.core.context import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerTimer,
    Refusal,
    ended_timers,
)
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import ErrorCode, RemoteProtocolError

_CONVERTED: Final = "downgraded"

_REBALANCE: Final = 0
"""The hash of no topics: it differs from the group's, so that its next epoch begins. Some
partitions are in no assignment: in the middle of a rebalance those that members have left or never
got; in a stable group those that topics have got since its leader assigned partitions. In Apache
Kafka 4.3 they stay without an owner until the topics change again.
"""

_RESTATED: Final = ("sticky", "cooperative-sticky")
"""Assignors whose own data only repeat what members own, which each member says anyway.
librdkafka's assignors write such data; Kafka's coordinator refuses to upgrade such a group.
"""


class Upgrade(NamedTuple):
    """A classic group on its way to the new protocol.

    Attributes:
        group: as it will be when the records are replayed.
        classic_group: what it was; to let go of when nothing can be refused any more.
    """

    group: ConsumerGroup
    classic_group: ClassicGroup
    records: list[CoordinatorRecord]
    timers: list[SetTimer]


@dataclass(slots=True, eq=False)
class Migration:
    """Both ways of changing a group's protocol."""

    _context: GroupContext
    let_go: Callable[[ClassicGroup], CoordinatorResult]

    def upgrade(self, classic_group: ClassicGroup) -> Upgrade:
        """Make a consumer group out of a classic one that has members. Raises: Refusal,
        GROUP_ID_NOT_FOUND: it may not or cannot change.

        Each member owns what it may still read: what the last assignment gave it, and what it
        claimed in its JoinGroup. It keeps that until it joins again; a member that waits for a
        rebalance is asked to do so at once.
        """
        group_id = classic_group.group_id
        self._check_upgrade(classic_group)
        group = ConsumerGroup(group_id, {})
        try:
            members = self._upgraded(classic_group)
        except RemoteProtocolError as error:
            raise Refusal(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Classic group {group_id} cannot become a consumer group: what a member said "
                f"cannot be read ({error}).",
            ) from None
        records = [member_record(group_id, member) for member in members]
        metadata_hash = _REBALANCE
        names = {name for member in members for name in member.subscribed_topic_names}
        image = self._context.metadata()
        is_settled = classic_group.state is ClassicGroupState.STABLE
        if is_settled and _are_all_assigned(names, members, image):
            metadata_hash = self._context.metadata_hash(names)
        generation_id = classic_group.generation_id
        records.append(group_epoch_record(group_id, generation_id, metadata_hash))
        for member in members:
            target = {topic_id: frozenset(owned) for topic_id, owned in member.assigned.items()}
            records.append(target_record(group_id, member.member_id, target))
        records.append(target_epoch_record(group_id, generation_id, 0))
        records += [current_assignment_record(group_id, member) for member in members]
        for record in records:
            group.replay(record, is_live=True)
        timers = [
            SetTimer(
                ConsumerTimer("session", group_id, member.member_id),
                member.classic.session_timeout_ms,
            )
            for member in members
            if member.classic is not None
        ]
        return Upgrade(group, classic_group, classic_group.tombstones() + records, timers)

    def _check_upgrade(self, classic_group: ClassicGroup) -> None:
        settings = self._context.consumer_settings
        reason = None
        if not settings.upgrade_enabled:
            reason = "group.consumer.migration.policy forbids it"
        elif classic_group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            reason = "its members are no consumers"
        elif len(classic_group.members) > settings.max_group_size:
            reason = "it has more members than group.consumer.max.size"
        if reason is not None:
            raise Refusal(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Classic group {classic_group.group_id} cannot become a consumer group: {reason}.",
            )

    def _upgraded(self, classic_group: ClassicGroup) -> list[ConsumerGroupMember]:
        image = self._context.metadata()
        members = list(classic_group.members.values())
        subscriptions = []
        assigned = []
        claimed = []
        for member in members:
            read = {name: read_subscription(metadata) for name, metadata in member.protocols}
            subscription = read.get(classic_group.protocol_name or "", read[member.protocols[0][0]])
            assignment = read_assignment(member.assignment)
            if assignment.user_data and classic_group.protocol_name not in _RESTATED:
                raise Refusal(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Classic group {classic_group.group_id} cannot become a consumer group: its "
                    "assignor keeps data of its own.",
                )
            subscriptions.append(subscription)
            assigned.append(by_topic_id(assignment.assigned_partitions, image))
            claimed.append(by_topic_id(subscription.owned_partitions, image))
        generation_id = classic_group.generation_id
        return [
            ConsumerGroupMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=frozenset(subscription.topics),
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=ClassicProtocols(member.session_timeout_ms, tuple(member.protocols)),
                member_epoch=generation_id,
                previous_member_epoch=generation_id,
                state=MemberState.STABLE,
                assigned=with_epoch(owned, generation_id),
            )
            for member, subscription, owned in zip(
                members, subscriptions, _without_duplicates(assigned, claimed), strict=True
            )
        ]

    def can_downgrade(
        self, group: ConsumerGroup, leaving: list[ConsumerGroupMember], *, joining: int = 0
    ) -> bool:
        """Whether the group is to become classic when `leaving` have left, and `joining` members of
        the classic protocol have taken their place.
        """
        count = len(group.members) - len(leaving) + joining
        return (
            group.all_use_classic_protocol_without(leaving)
            and count > 0
            and self._context.consumer_settings.downgrade_enabled
            and count <= self._context.settings.max_group_size
        )

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: list[ConsumerGroupMember],
        *,
        now_ms: float,
        joining: ConsumerGroupMember | None = None,
        rebalances: bool = True,
    ) -> CoordinatorResult:
        """End the consumer group and write the classic one it becomes.

        A group that has to rebalance is written without a leader, so that every coordinator that
        reads it begins the rebalance, and the partitions of members that left get new owners.
        Apache Kafka 4.3 writes a leader; after a failover it does not rebalance. Its members are
        written with what they may still read: should the group become a consumer group again before
        they have joined, no other member gets that. Apache Kafka writes what they shall own.

        Args:
            joining: the static member that takes the place of the one in `leaving`.
            rebalances: whether the members must join again. Otherwise `joining` leads the group.
        """
        gone = {member.member_id for member in leaving}
        members = [member for member in group.members.values() if member.member_id not in gone]
        shares = {
            name: member.may_read if rebalances else group.targets.get(name, {})
            for name, member in group.members.items()
        }
        if joining is not None:
            members.append(joining)
            shares[joining.member_id] = shares[leaving[0].member_id]
        classic = ClassicGroup(group.group_id, now_ms)
        for member in members:
            assert member.classic is not None
            classic.add(
                ClassicMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.classic.session_timeout_ms,
                    member.classic.protocols,
                ),
                CONSUMER_PROTOCOL_TYPE,
            )
        classic.generation_id = group.group_epoch
        classic.protocol_name = protocol = classic.select_protocol()
        classic.leader_id = None if joining is None or rebalances else joining.member_id
        image = self._context.metadata()
        record = classic.record(
            {
                member_id: write_assignment(shares[member_id], each.metadata(protocol), image)
                for member_id, each in classic.members.items()
            }
        )
        begins = SetTimer(ConsumerTimer(_CONVERTED, group.group_id), 0)
        return CoordinatorResult(
            records=[*group.tombstones(), record],
            timers=[*ended_timers(group.group_id, group.members), begins],
        )


def _are_all_assigned(
    names: Iterable[str], members: Iterable[ConsumerGroupMember], image: MetadataImage
) -> bool:
    """Whether the members have all partitions of the topics of those names."""
    owned: dict[UUID, set[int]] = {}
    for member in members:
        for topic_id, partitions in member.assigned.items():
            owned.setdefault(topic_id, set()).update(partitions)
    topics = (image.topics.topics_by_name.get(name) for name in names)
    return all(
        topic is None or topic.partitions.keys() <= owned.get(topic.topic_id, set())
        for topic in topics
    )


def _without_duplicates(
    assigned: list[dict[UUID, frozenset[int]]], claimed: list[dict[UUID, frozenset[int]]]
) -> list[dict[UUID, frozenset[int]]]:
    """What each member owns. A leader may have given a partition to two members: the first one
    keeps it. A member may claim what was given to another one: it does not own that any more.
    """
    taken: dict[UUID, set[int]] = {}
    owned: list[dict[UUID, frozenset[int]]] = [{} for _ in assigned]
    for shares in (assigned, claimed):
        for own, share in zip(owned, shares, strict=True):
            for topic_id, partitions in share.items():
                kept = partitions - taken.setdefault(topic_id, set())
                taken[topic_id] |= kept
                if kept:
                    own[topic_id] = own.get(topic_id, frozenset()) | kept
    return owned
