"""The range assignor: neighbouring partitions of each topic to each member, with the racks of
KIP-881. Topics with equally many partitions and the same members are co-partitioned: a member gets
the same numbers of each, where racks allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Final, TypeAlias

from moldau.client.consumer.assignors.assignor import (
    Assignments,
    ConsumerPartitionAssignor,
    PartitionRacks,
    Subscription,
    Topics,
    members_in_order,
    racks_matter,
    racks_of_members,
)
from moldau.protocol.types import TopicPartition

_MayTake: TypeAlias = Callable[[str, int], bool]


class RangeAssignor(ConsumerPartitionAssignor):
    """`range`: per topic the partitions in numeric order are cut into as many runs as there are
    members, the first ones one longer when it does not divide (Kafka's default assignor).
    """

    name: ClassVar[str] = "range"

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        """Runs of neighbouring partitions, in the members' racks where possible."""
        assignments: Assignments = {member_id: [] for member_id in subscriptions}
        ordered = members_in_order(subscriptions)
        member_racks = racks_of_members(subscriptions)
        spreads = []
        for topic, partitions in topics.items():
            members = [each for each in ordered if topic in subscriptions[each].topics]
            if partitions and members:
                spreads.append(_Spread(topic, partitions, members, member_racks, assignments))
        if any(spread.racks_matter for spread in spreads):
            _match_racks(spreads)
        for spread in spreads:
            spread.give_ranges(lambda member_id, partition: True)
        for partitions_of_member in assignments.values():
            partitions_of_member.sort()
        return assignments


class _Spread:
    """One topic while it is being handed out: no member gets more than its share, and at most
    `_longer_count` members get the share that is one longer.
    """

    def __init__(
        self,
        topic: str,
        partitions: Sequence[PartitionRacks],
        members: list[str],
        member_racks: Mapping[str, str],
        assignments: Assignments,
    ) -> None:
        self.topic: Final = topic
        self.members: Final = members
        self._partitions: Final = partitions
        self._member_racks: Final = member_racks
        self._assignments: Final = assignments
        self._left = dict.fromkeys(range(len(partitions)))
        self._taken = dict.fromkeys(members, 0)
        self._share, self._longer_count = divmod(len(partitions), len(members))
        racks_here = [member_racks[each] for each in members if each in member_racks]
        self.has_member_racks: Final = bool(racks_here)
        self.racks_matter: Final = racks_matter(racks_here, partitions)
        self.partition_count: Final = len(partitions)

    def in_rack(self, member_id: str, partition: int) -> bool:
        """Whether the member has a replica in its rack, or no rack at all."""
        rack = self._member_racks.get(member_id)
        return rack is None or rack in self._partitions[partition]

    def room(self, member_id: str) -> int:
        longest = self._share + (1 if self._longer_count > 0 else 0)
        return max(0, longest - self._taken[member_id])

    def give(self, member_id: str, partitions: list[int]) -> None:
        for partition in partitions:
            del self._left[partition]
            self._assignments[member_id].append(TopicPartition(self.topic, partition))
        self._taken[member_id] += len(partitions)
        if self._taken[member_id] > self._share:
            self._longer_count -= 1

    def give_ranges(self, may_take: _MayTake) -> None:
        """Member by member the first of what is left and allowed, as much as there is room."""
        for member_id in self.members:
            if not self._left:
                return
            allowed = (each for each in self._left if may_take(member_id, each))
            chosen = list(islice(allowed, self.room(member_id)))
            if chosen:
                self.give(member_id, chosen)


def _match_racks(spreads: list[_Spread]) -> None:
    """First round: partitions to members in whose rack they have a replica, topics that can be
    co-partitioned together.
    """
    together: dict[tuple[tuple[str, ...], int], list[_Spread]] = {}
    for spread in spreads:
        together.setdefault((tuple(spread.members), spread.partition_count), []).append(spread)
    for group in together.values():
        if len(group) > 1:
            _match_co_partitioned(group)
        elif group[0].racks_matter:
            group[0].give_ranges(group[0].in_rack)


def _match_co_partitioned(group: list[_Spread]) -> None:
    if not any(spread.has_member_racks for spread in group):
        return
    remaining = list(group[0].members)
    for partition in range(group[0].partition_count):
        for member_id in remaining:
            if all(
                spread.in_rack(member_id, partition) and spread.room(member_id) > 0
                for spread in group
            ):
                break
        else:
            continue
        for spread in group:
            spread.give(member_id, [partition])
        if not any(spread.room(member_id) > 0 for spread in group):
            remaining.remove(member_id)
            if not remaining:
                return
