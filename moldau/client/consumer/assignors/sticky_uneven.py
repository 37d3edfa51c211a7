"""The sticky assignment of a group whose members want different topics.

Owns one such assignment: what members keep, who gets what is left, and moves until nothing can be
balanced better (KIP-54). Invariant: every move makes the group more even, or brings a partition
back to the member that had it; when the moves together bring nothing, none of them happens.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from moldau.client.consumer.assignors.assignor import (
    NO_GENERATION,
    Assignments,
    Subscription,
    Topics,
    java_order,
)
from moldau.client.consumer.assignors.sticky_movements import Movements
from moldau.client.consumer.assignors.sticky_racks import Racks
from moldau.protocol.types import TopicPartition

#: Which member claims a partition since which generation.
Claim = tuple[str, int]


class _ByLoad:
    """Members in the order of how many partitions they have, then of their ids."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes, str]] = []

    def add(self, member_id: str, load: int) -> None:
        insort(self._entries, (load, java_order(member_id), member_id))

    def remove(self, member_id: str, load: int) -> None:
        entry = (load, java_order(member_id), member_id)
        index = bisect_left(self._entries, entry)
        assert self._entries[index] == entry, "the order has lost a member"
        del self._entries[index]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return ((load, member_id) for load, _, member_id in self._entries)

    def least(self) -> int:
        return self._entries[0][0]

    def most(self) -> int:
        return self._entries[-1][0]

    def __len__(self) -> int:
        return len(self._entries)


class UnevenAssignment:
    """One run; use `assign` once.

    Args:
        owned: what each member had and may claim, by member id.
        earlier: who had a partition in an older generation; it gets it back where that helps.
    """

    def __init__(
        self,
        topics: Topics,
        subscriptions: Mapping[str, Subscription],
        owned: Mapping[str, list[TopicPartition]],
        earlier: Mapping[TopicPartition, Claim],
        racks: Racks,
    ) -> None:
        self._topics: Final = topics
        self._racks: Final = racks
        self._earlier: Final = earlier
        self._wanted: Final = {
            member_id: frozenset(topic for topic in subscription.topics if topic in topics)
            for member_id, subscription in subscriptions.items()
        }
        self._takers: Final[dict[str, list[str]]] = {topic: [] for topic in topics}
        for member_id, wanted in self._wanted.items():
            for topic in wanted:
                self._takers[topic].append(member_id)
        self._assignments: Assignments = {}
        self._owner: dict[TopicPartition, str] = {}
        self._owners_of_topic: dict[str, Counter[str]] = {topic: Counter() for topic in topics}
        self._has_lost = False
        for member_id, partitions in owned.items():
            self._assignments[member_id] = []
            for partition in partitions:
                if partition.topic in self._wanted[member_id] and not racks.mismatch(
                    member_id, partition
                ):
                    self._own(partition, member_id)
                else:
                    self._has_lost = True
        self._by_load = _ByLoad()
        for member_id, partitions in self._assignments.items():
            self._by_load.add(member_id, len(partitions))
        self._movements = Movements()

    def assign(self) -> Assignments:
        """Keep, fill, balance."""
        everything = [
            TopicPartition(topic, index)
            for topic in sorted(
                self._topics, key=lambda each: (len(self._takers[each]), java_order(each))
            )
            for index in range(len(self._topics[topic]))
        ]
        unassigned = [partition for partition in everything if partition not in self._owner]
        from_nothing = self._by_load.most() == 0
        self._fill(unassigned)
        everything = [each for each in everything if len(self._takers[each.topic]) > 1]
        unassigned = [each for each in unassigned if len(self._takers[each.topic]) > 1]
        fixed = [each for each in self._assignments if not self._can_change(each)]
        for member_id in fixed:
            self._by_load.remove(member_id, len(self._assignments[member_id]))
        if len(self._by_load) > 1:
            self._balance(everything, unassigned, from_nothing)
        return self._assignments

    def _balance(
        self, everything: list[TopicPartition], unassigned: list[TopicPartition], from_nothing: bool
    ) -> None:
        loads = [load for load, _ in self._by_load]
        before = {member_id: list(each) for member_id, each in self._assignments.items()}
        if not self._has_lost:
            # Where nothing has to move, first only what is new anyway.
            self._move(unassigned)
        moved = self._move(everything)
        if (
            moved
            and not from_nothing
            and _score([load for load, _ in self._by_load]) >= _score(loads)
        ):
            self._assignments = before

    def _fill(self, partitions: list[TopicPartition]) -> None:
        """Each to the member with the least that may have it; with racks, nearby ones first."""
        rest = partitions
        if self._racks:
            rest = [each for each in partitions if not self._give(each, nearby=True)]
        for partition in rest:
            self._give(partition, nearby=False)

    def _give(self, partition: TopicPartition, *, nearby: bool) -> bool:
        for load, member_id in self._by_load:
            if partition.topic not in self._wanted[member_id]:
                continue
            if nearby and self._racks.mismatch(member_id, partition):
                continue
            self._by_load.remove(member_id, load)
            self._own(partition, member_id)
            self._by_load.add(member_id, load + 1)
            return True
        return False

    def _own(self, partition: TopicPartition, member_id: str) -> None:
        self._assignments[member_id].append(partition)
        self._owner[partition] = member_id
        self._owners_of_topic[partition.topic][member_id] += 1

    def _can_change(self, member_id: str) -> bool:
        """Whether the member lacks something it wants, or has something that others want too."""
        partitions = self._assignments[member_id]
        if len(partitions) < sum(len(self._topics[each]) for each in self._wanted[member_id]):
            return True
        return any(len(self._takers[each.topic]) > 1 for each in partitions)

    def _move(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions until a whole round brings nothing; whether any was moved."""
        moved, moved_any = True, False
        while moved:
            moved = False
            for partition in partitions:
                if self._is_balanced():
                    break
                destination = self._better_owner(partition)
                if destination is not None:
                    self._reassign(partition, destination)
                    moved = moved_any = True
        return moved_any

    def _better_owner(self, partition: TopicPartition) -> str | None:
        load = len(self._assignments[self._owner[partition]])
        earlier_owner, _ = self._earlier.get(partition, ("", NO_GENERATION))
        # Unlike Kafka, never to a member that has unsubscribed from the topic meanwhile.
        if (
            partition.topic in self._wanted.get(earlier_owner, ())
            and load > len(self._assignments[earlier_owner]) + 1
        ):
            return earlier_owner
        for other_load, other in self._by_load:
            if load <= other_load + 1:
                return None
            if partition.topic in self._wanted[other]:
                return other
        return None

    def _is_balanced(self) -> bool:
        most = self._by_load.most()
        if self._by_load.least() >= most - 1:
            return True
        heaviest = {
            topic: max((len(self._assignments[each]) for each in owners), default=0)
            for topic, owners in self._owners_of_topic.items()
        }
        for load, member_id in self._by_load:
            if load + 1 >= most:
                return True
            if any(load + 1 < heaviest[topic] for topic in self._wanted[member_id]):
                return False
        return True

    def _reassign(self, partition: TopicPartition, destination: str) -> None:
        partition = self._movements.to_move(partition, self._owner[partition], destination)
        source = self._owner[partition]
        source_load = len(self._assignments[source])
        destination_load = len(self._assignments[destination])
        self._by_load.remove(source, source_load)
        if destination != source:
            self._by_load.remove(destination, destination_load)
        self._movements.move(partition, source, destination)
        self._assignments[source].remove(partition)
        owners = self._owners_of_topic[partition.topic]
        owners[source] -= 1
        if not owners[source]:
            del owners[source]
        self._own(partition, destination)
        for member_id in {source, destination}:
            self._by_load.add(member_id, len(self._assignments[member_id]))


def _score(loads: list[int]) -> int:
    """How uneven the loads are: the sum of the differences of all pairs; zero is best."""
    ordered = sorted(loads)
    count = len(ordered)
    return sum(load * (2 * place - count + 1) for place, load in enumerate(ordered))
