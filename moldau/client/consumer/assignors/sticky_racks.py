"""What the sticky assignors need to know of racks (KIP-881).

Owns who is in whose rack. Invariant: where racks cannot make a difference, nobody has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from moldau.client.consumer.assignors.assignor import (
    PartitionRacks,
    Subscription,
    Topics,
    racks_matter,
    racks_of_members,
)
from moldau.protocol.types import TopicPartition


class Racks:
    """The racks of members and replicas in one assignment; empty where they do not matter."""

    def __init__(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> None:
        of_members = racks_of_members(subscriptions)
        every = [racks for partitions in topics.values() for racks in partitions]
        matter = racks_matter(of_members.values(), every)
        self.of_members: Final = of_members if matter else {}
        self._topics: Final = topics
        self._member_count: Final = Counter(self.of_members.values())

    def __bool__(self) -> bool:
        return bool(self.of_members)

    def mismatch(self, member_id: str, partition: TopicPartition) -> bool:
        """Whether the member has a rack and no replica of the partition in it."""
        rack = self.of_members.get(member_id)
        return rack is not None and rack not in self._of(partition)

    def scarcest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those first that few members can read in their own rack."""
        if not self:
            return partitions
        return sorted(partitions, key=self._nearby_count)

    def next_nearby(self, partition: TopicPartition, members: Sequence[str], first: int) -> int:
        """The place of the first member from `first` on, in a circle, whose rack has a replica; -1
        when there is none.
        """
        racks = self._of(partition)
        for step in range(len(members) if racks else 0):
            index = (first + step) % len(members)
            if self.of_members.get(members[index]) in racks:
                return index
        return -1

    def _nearby_count(self, partition: TopicPartition) -> int:
        return sum(self._member_count[rack] for rack in self._of(partition))

    def _of(self, partition: TopicPartition) -> PartitionRacks:
        return self._topics[partition.topic][partition.partition]
