"""What an assignor is given.

Owns: the values, and the check of what an assignor returns. Must not: assign. Invariant: every
topic that a member is subscribed to has a partition count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_member import Assignment


class MemberSpec(NamedTuple):
    """One member: what it may have, and what the last target assignment gave it.

    Members with equal subscriptions share one `topic_ids` object, which makes that cheap to see.
    """

    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Assignment


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Members by id, and how many partitions each subscribed topic has."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[UUID, int]

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members are subscribed to the same topics."""
        subscriptions = {id(member.topic_ids): member.topic_ids for member in self.members.values()}
        return len(set(subscriptions.values())) <= 1


def check_assignment(spec: GroupSpec, assignment: Mapping[str, Assignment]) -> None:
    """Assert what must hold of every target assignment: members get only partitions that there
    are of topics they are subscribed to, no partition goes to two, and none is left over that
    somebody wants.
    """
    taken: dict[UUID, bytearray] = {
        topic_id: bytearray(count) for topic_id, count in spec.partition_counts.items()
    }
    assigned_count = 0
    for member_id, partitions_by_topic in assignment.items():
        topic_ids = spec.members[member_id].topic_ids
        for topic_id, partitions in partitions_by_topic.items():
            assert topic_id in topic_ids, f"{member_id} is not subscribed to {topic_id}"
            flags = taken[topic_id]
            for index in partitions:
                assert not flags[index], f"{topic_id}-{index} is assigned twice"
                flags[index] = 1
            assigned_count += len(partitions)
    wanted = {topic_id for member in spec.members.values() for topic_id in member.topic_ids}
    partition_count = sum(spec.partition_counts[topic_id] for topic_id in wanted)
    assert assigned_count == partition_count, f"{partition_count - assigned_count} were left over"
