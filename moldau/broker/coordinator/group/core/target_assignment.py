"""The target assignment of a consumer group: what each member shall own in the group's epoch.

Owns: putting members, subscriptions and partition counts before an assignor, and the records of
what comes out. Must not: decide when it is computed, or who owns what now. Invariant: a target
assignment gives each partition to one member at most; it is asserted every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from moldau.broker.coordinator.core.result import CoordinatorRecord
from moldau.broker.coordinator.group.core.assignors import ASSIGNORS, GroupSpec, MemberSpec
from moldau.broker.coordinator.group.core.assignors.spec import check_assignment
from moldau.broker.coordinator.group.core.consumer_group import (
    ConsumerGroup,
    ResolvedRegularExpression,
)
from moldau.broker.coordinator.group.core.consumer_member import (
    NOTHING,
    Assignment,
    ConsumerGroupMember,
)
from moldau.broker.coordinator.group.core.consumer_records import target_epoch_record, target_record
from moldau.metadata.image import MetadataImage


class TargetAssignment(NamedTuple):
    """A new target assignment: its records, and what each member shall own."""

    records: list[CoordinatorRecord]
    targets: dict[str, Assignment]


class Subscriptions:
    """Which topic ids members are subscribed to; equal subscriptions give the same object."""

    def __init__(
        self, image: MetadataImage, resolved: Mapping[str, ResolvedRegularExpression]
    ) -> None:
        self._topics_by_name = image.topics.topics_by_name
        self._resolved = resolved
        self._known: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
        self._shared: dict[frozenset[UUID], frozenset[UUID]] = {}

    def topic_ids(self, member: ConsumerGroupMember) -> frozenset[UUID]:
        """The ids of a member's topics, those that exist."""
        subscription = (member.subscribed_topic_names, member.subscribed_topic_regex)
        found = self._known.get(subscription)
        if found is None:
            names = member.subscribed_topic_names
            expression = member.subscribed_topic_regex
            if expression and expression in self._resolved:
                names |= self._resolved[expression].topic_names
            found = frozenset(
                self._topics_by_name[name].topic_id
                for name in names
                if name in self._topics_by_name
            )
            found = self._shared.setdefault(found, found)
            self._known[subscription] = found
        return found


def compute_target(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerGroupMember],
    *,
    group_epoch: int,
    image: MetadataImage,
    assignor_name: str,
    now_ms: float,
) -> TargetAssignment:
    """Compute the target assignment of `group_epoch`.

    Args:
        members: the members as they are with what is about to be written.
    """
    subscriptions = Subscriptions(image, group.resolved)
    specs = {
        member_id: MemberSpec(
            member.instance_id, subscriptions.topic_ids(member), group.target_of(member)
        )
        for member_id, member in members.items()
    }
    topics = image.topics.topics_by_id
    subscriptions_by_identity = {id(spec.topic_ids): spec.topic_ids for spec in specs.values()}
    wanted: set[UUID] = set().union(*subscriptions_by_identity.values())
    spec = GroupSpec(specs, {topic_id: len(topics[topic_id].partitions) for topic_id in wanted})
    targets = ASSIGNORS[assignor_name](spec)
    check_assignment(spec, targets)
    records = [
        target_record(group.group_id, member_id, targets[member_id])
        for member_id in members
        if targets[member_id] != specs[member_id].target
    ]
    records.append(target_epoch_record(group.group_id, group_epoch, int(now_ms)))
    return TargetAssignment(records, targets)


def target_from_last(group: ConsumerGroup, member: ConsumerGroupMember) -> Assignment:
    """What the last target assignment gives a member; nothing, if it was not there yet."""
    return group.target_of(member) or NOTHING
