"""The server-side assignors of KIP-848: which member of a consumer group gets which partitions.

`ASSIGNORS` has them by the name that `group.consumer.assignors` and members use. Each is a plain
function from a `GroupSpec` to the partitions of every member. None looks at racks (as Kafka 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from moldau.broker.coordinator.group.core.consumer_member import Assignment


class MemberSpec(NamedTuple):
    """One member: the topics it may get, and what the last target assignment gave it.

    Members with equal subscriptions share one `topic_ids` object, which makes them cheap to
    compare.
    """

    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Assignment


class GroupSpec(NamedTuple):
    """Members by id, and how many partitions each subscribed topic has."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[UUID, int]

    @property
    def is_homogeneous(self) -> bool:
        subscriptions = {id(member.topic_ids): member.topic_ids for member in self.members.values()}
        return len(set(subscriptions.values())) <= 1


def check_assignment(spec: GroupSpec, assignment: Mapping[str, Assignment]) -> None:
    """Assert what must hold of every target assignment: members get only existing partitions of
    topics that they are subscribed to, no partition goes to two members, and no partition of a
    subscribed topic is left over.
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
                flags[index] = True
            assigned_count += len(partitions)
    wanted = {topic_id for member in spec.members.values() for topic_id in member.topic_ids}
    partition_count = sum(spec.partition_counts[topic_id] for topic_id in wanted)
    assert assigned_count == partition_count, f"{partition_count - assigned_count} were left over"


def assign_range(spec: GroupSpec) -> dict[str, Assignment]:
    """The `range` assignor: give each topic's partitions in ranges to its subscribers: static
    members first, by instance id, then the others by member id; the first ones get one more where
    the count does not divide. It is not sticky.

    Invariant: of topics with equally many partitions and the same subscribers, a member gets the
    same partition numbers, so that such topics can be joined.
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


_MAX_ROUNDS: Final = 16
"""How often all topics are balanced; each round makes fewer moves."""


def assign_uniform(spec: GroupSpec) -> dict[str, Assignment]:
    """The `uniform` assignor: every member gets equally many partitions, and keeps what it had.

    Invariants: with equal subscriptions no two members differ by more than one partition, and no
    partition moves without need; with different ones no single partition can be moved from one
    member to another so that the two become more equal (unless the rounds are used up).
    """
    if not spec.members:
        return {}
    if spec.is_homogeneous:
        return _Homogeneous(spec).assign()
    return _Heterogeneous(spec).assign()


class _Kept:
    """The partitions that members keep from before, each only once."""

    def __init__(self, partition_counts: dict[UUID, int]) -> None:
        self.taken = {topic_id: bytearray(count) for topic_id, count in partition_counts.items()}

    def keep(self, topic_ids: frozenset[UUID], target: Assignment) -> list[tuple[UUID, int]]:
        """What a member may keep of `target`, in order; marks it as taken."""
        kept = []
        for topic_id in sorted(topic_ids.intersection(target)):
            flags = self.taken[topic_id]
            for index in sorted(target[topic_id]):
                if index < len(flags) and not flags[index]:
                    flags[index] = True
                    kept.append((topic_id, index))
        return kept

    def release(self, partition: tuple[UUID, int]) -> None:
        topic_id, index = partition
        self.taken[topic_id][index] = False

    def free(self, topic_id: UUID) -> list[int]:
        return [index for index, flag in enumerate(self.taken[topic_id]) if not flag]


class _Homogeneous:
    """All members are subscribed to the same topics."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._topic_ids = next(iter(spec.members.values())).topic_ids
        counts = {topic_id: spec.partition_counts[topic_id] for topic_id in self._topic_ids}
        self._quota, self._extra_count = divmod(sum(counts.values()), len(spec.members))
        self._kept = _Kept(counts)

    def assign(self) -> dict[str, Assignment]:
        owned: dict[str, list[tuple[UUID, int]]] = {}
        short: list[str] = []
        for member_id in sorted(self._spec.members):
            kept = self._kept.keep(self._topic_ids, self._spec.members[member_id].target)
            limit = self._quota
            if len(kept) > limit and self._extra_count:
                limit += 1
                self._extra_count -= 1
            for partition in kept[limit:]:
                self._kept.release(partition)
            owned[member_id] = kept[:limit]
            if len(kept) <= self._quota:
                short.append(member_id)
        self._deal(owned, short)
        return {member_id: _by_topic(partitions) for member_id, partitions in owned.items()}

    def _deal(self, owned: dict[str, list[tuple[UUID, int]]], short: list[str]) -> None:
        """Give the rest one by one in turn, so that the partitions of a topic spread."""
        needs = []
        # The members that need most come first, so that the extra partitions spread over all.
        for member_id in sorted(short, key=lambda each: len(owned[each])):
            need = self._quota - len(owned[member_id])
            if self._extra_count:
                need += 1
                self._extra_count -= 1
            if need:
                needs.append([need, member_id])
        free = [
            (topic_id, index)
            for topic_id in sorted(self._topic_ids)
            for index in self._kept.free(topic_id)
        ]
        turn = 0
        for partition in free:
            turn %= len(needs)
            entry = needs[turn]
            owned[entry[1]].append(partition)  # type: ignore[index]
            entry[0] -= 1  # type: ignore[operator]
            if entry[0]:
                turn += 1
            else:
                del needs[turn]


class _Heterogeneous:
    """Members are subscribed to different topics."""

    def __init__(self, spec: GroupSpec) -> None:
        self._kept = _Kept(dict(spec.partition_counts))
        self._owned: dict[str, dict[UUID, set[int]]] = {}
        self._load: dict[str, int] = {}
        self._subscribers: dict[UUID, list[str]] = {}
        for member_id in sorted(spec.members):
            member = spec.members[member_id]
            own: dict[UUID, set[int]] = {}
            kept = self._kept.keep(member.topic_ids, member.target)
            for topic_id, index in kept:
                own.setdefault(topic_id, set()).add(index)
            self._owned[member_id] = own
            self._load[member_id] = len(kept)
            for topic_id in member.topic_ids:
                self._subscribers.setdefault(topic_id, []).append(member_id)

    def assign(self) -> dict[str, Assignment]:
        # Topics with few subscribers come first: their subscribers may have no other topic.
        topic_ids = sorted(self._subscribers, key=lambda each: (len(self._subscribers[each]), each))
        for topic_id in topic_ids:
            self._give_free(topic_id)
        for _ in range(_MAX_ROUNDS):
            if not any([self._balance(topic_id) for topic_id in topic_ids]):
                break
        return {
            member_id: {topic_id: frozenset(parts) for topic_id, parts in own.items() if parts}
            for member_id, own in self._owned.items()
        }

    def _give_free(self, topic_id: UUID) -> None:
        free = self._kept.free(topic_id)
        if not free:
            return
        heap = [(self._load[member_id], member_id) for member_id in self._subscribers[topic_id]]
        heapify(heap)
        for index in free:
            load, member_id = heap[0]
            self._owned[member_id].setdefault(topic_id, set()).add(index)
            self._load[member_id] = load + 1
            heapreplace(heap, (load + 1, member_id))

    def _balance(self, topic_id: UUID) -> bool:
        """Move partitions of one topic from the members with most to those with least.

        Entries of both heaps may be older than the loads; they are corrected when they come up. A
        member that takes a partition has at most one more than the least then, and never gives.
        """
        subscribers = self._subscribers[topic_id]
        light = [(self._load[member_id], member_id) for member_id in subscribers]
        heavy = [
            (-self._load[member_id], member_id)
            for member_id in subscribers
            if self._owned[member_id].get(topic_id)
        ]
        heapify(light)
        heapify(heavy)
        has_moved = False
        while heavy:
            load, giver = -heavy[0][0], heavy[0][1]
            if load != self._load[giver]:
                heapreplace(heavy, (-self._load[giver], giver))
                continue
            least, taker = light[0]
            if least != self._load[taker]:
                heapreplace(light, (self._load[taker], taker))
                continue
            if load - least < 2:
                break
            partitions = self._owned[giver][topic_id]
            index = max(partitions)
            partitions.discard(index)
            self._owned[taker].setdefault(topic_id, set()).add(index)
            self._load[giver] -= 1
            self._load[taker] += 1
            has_moved = True
            if not partitions:
                heappop(heavy)
        return has_moved


def _by_topic(partitions: list[tuple[UUID, int]]) -> Assignment:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in partitions:
        topics.setdefault(topic_id, []).append(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}


Assignor = Callable[[GroupSpec], dict[str, Assignment]]

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)
