"""The `range` assignor: consecutive partitions of each topic, equal ones of several topics alike.

Owns: the ranges. Must not: look at what members had (it is not sticky). Invariant: of topics with
equally many partitions and the same subscribers, a member gets the same partition numbers, so
that such topics can be joined.
"""

from __future__ import annotations

from uuid import UUID

from moldau.broker.coordinator.group.core.assignors.spec import GroupSpec
from moldau.broker.coordinator.group.core.consumer_member import Assignment


def assign_range(spec: GroupSpec) -> dict[str, Assignment]:
    """Give each topic's partitions in ranges to its subscribers: static members first, by instance
    id, then the others by member id; the first of them get one more where it does not divide.
    """
    order = sorted(spec.members, key=lambda member_id: _place(spec, member_id))
    subscriber_counts: dict[UUID, int] = {}
    for member in spec.members.values():
        for topic_id in member.topic_ids:
            subscriber_counts[topic_id] = subscriber_counts.get(topic_id, 0) + 1
    next_partition = dict.fromkeys(subscriber_counts, 0)
    served = dict.fromkeys(subscriber_counts, 0)
    assignment: dict[str, Assignment] = {}
    for member_id in order:
        own: dict[UUID, frozenset[int]] = {}
        for topic_id in spec.members[member_id].topic_ids:
            quota, extra = divmod(spec.partition_counts[topic_id], subscriber_counts[topic_id])
            first = next_partition[topic_id]
            end = first + quota + (1 if served[topic_id] < extra else 0)
            next_partition[topic_id] = end
            served[topic_id] += 1
            if end > first:
                own[topic_id] = frozenset(range(first, end))
        assignment[member_id] = own
    return assignment


def _place(spec: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return (False, instance_id) if instance_id is not None else (True, member_id)
