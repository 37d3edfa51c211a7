"""The sticky assignment of a group whose members all want the same topics.

Owns one such assignment. Invariant: everybody ends with the lower or the upper quota (the average,
rounded down or up), and keeps as much of what it had as that allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moldau.client.consumer.assignors.assignor import Assignments, Topics, java_order
from moldau.client.consumer.assignors.java_hash import in_hash_order
from moldau.client.consumer.assignors.sticky_racks import Racks
from moldau.protocol.types import TopicPartition


class EvenAssignment:
    """One run; use `assign` once.

    Args:
        owned: what each member had and may claim, by member id.
        contested: partitions that several members of one generation claimed: nobody keeps them.

    Attributes:
        transferring: partitions that somebody may still own, by their new owner.
    """

    def __init__(
        self,
        topics: Topics,
        owned: Mapping[str, list[TopicPartition]],
        contested: set[TopicPartition],
        racks: Racks,
    ) -> None:
        self.transferring: dict[TopicPartition, str] = {}
        self._topics: Final = topics
        self._owned: Final = owned
        self._contested: Final = contested
        self._racks: Final = racks
        partition_count = sum(len(partitions) for partitions in topics.values())
        self._low_quota, self._over_low_allowed = divmod(partition_count, len(owned))
        self._high_quota = self._low_quota + (1 if self._over_low_allowed else 0)
        self._over_low_count = 0
        self._assignments: Assignments = {member_id: [] for member_id in owned}
        self._lacking: list[str] = []  # below the lower quota
        self._at_low: list[str] = []  # at the lower quota, may get one more
        self._given_up: dict[TopicPartition, str] = {}

    def assign(self) -> Assignments:
        """Keep, then fill."""
        for member_id in in_hash_order(self._owned):
            self._keep(member_id)
        kept = {each for partitions in self._assignments.values() for each in partitions}
        unassigned = [
            partition
            for topic in sorted(self._topics, key=java_order)
            for index in range(len(self._topics[topic]))
            if (partition := TopicPartition(topic, index)) not in kept
        ]
        self._lacking.sort(key=java_order)
        self._at_low.sort(key=java_order)
        unassigned = self._racks.scarcest_first(unassigned)
        if self._racks:
            unassigned = self._fill_by_rack(unassigned)
        self._fill(unassigned)
        return self._assignments

    def _keep(self, member_id: str) -> None:
        """Let the member keep what its quota allows of what it had."""
        mine = []
        for partition in self._owned[member_id]:
            if self._racks.mismatch(member_id, partition):
                self._given_up[partition] = member_id
            elif partition not in self._contested:
                mine.append(partition)
        mine.sort(key=lambda each: (each.partition, java_order(each.topic)))
        if len(mine) < self._low_quota:
            self._lacking.append(member_id)
            quota = len(mine)
        elif len(mine) >= self._high_quota and self._over_low_count < self._over_low_allowed:
            quota = self._high_quota
            self._one_more_over_low()
        else:
            quota = self._low_quota
            if self._over_low_count < self._over_low_allowed:
                self._at_low.append(member_id)
        self._assignments[member_id].extend(mine[:quota])
        for partition in mine[quota:]:
            self._given_up[partition] = member_id

    def _one_more_over_low(self) -> None:
        self._over_low_count += 1
        if self._over_low_count == self._over_low_allowed:
            self._at_low.clear()

    def _fill_by_rack(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Give each partition to a member nearby that has room; the rest is returned."""
        rest = []
        turn = 0
        for partition in partitions:
            index = self._racks.next_nearby(partition, self._lacking, turn)
            if index >= 0:
                member_id = self._lacking[index]
                count = self._give(partition, member_id)
                if count >= self._low_quota:
                    del self._lacking[index]
                    if self._over_low_count < self._over_low_allowed:
                        self._at_low.append(member_id)
                else:
                    index += 1
                turn = index % len(self._lacking) if self._lacking else 0
                continue
            index = self._racks.next_nearby(partition, self._at_low, 0)
            if index < 0:
                rest.append(partition)
                continue
            member_id = self._at_low[index]
            if self._give(partition, member_id) == self._high_quota:
                del self._at_low[index]
                self._one_more_over_low()
        return rest

    def _fill(self, partitions: list[TopicPartition]) -> None:
        """Deal out the rest: first to those below the lower quota, in turn, then one more each."""
        turn = 0
        for partition in partitions:
            if self._lacking:
                turn %= len(self._lacking)
                member_id = self._lacking[turn]
                if self._give(partition, member_id) == self._low_quota:
                    del self._lacking[turn]
                    self._at_low.append(member_id)
                else:
                    turn += 1
            else:
                self._give(partition, self._at_low.pop(0))

    def _give(self, partition: TopicPartition, member_id: str) -> int:
        partitions = self._assignments[member_id]
        partitions.append(partition)
        before = self._given_up.get(partition, member_id)
        if before != member_id or partition in self._contested:
            self.transferring[partition] = member_id
        return len(partitions)
