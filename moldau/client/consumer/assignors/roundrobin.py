"""The round-robin assignor: when all members want the same topics, no two of them differ by more
than one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from moldau.client.consumer.assignors.assignor import (
    Assignments,
    ConsumerPartitionAssignor,
    Subscription,
    Topics,
    java_order,
    members_in_order,
)
from moldau.protocol.types import TopicPartition


class RoundRobinAssignor(ConsumerPartitionAssignor):
    """`roundrobin`: topics by name, partitions by number, each to the next member in turn that
    subscribes to its topic. Looks at no racks.
    """

    name: ClassVar[str] = "roundrobin"

    def assign(self, topics: Topics, subscriptions: Mapping[str, Subscription]) -> Assignments:
        """One partition to each member in turn."""
        assignments: Assignments = {member_id: [] for member_id in subscriptions}
        ring = members_in_order(subscriptions)
        wanted = {each: frozenset(subscriptions[each].topics) for each in ring}
        turn = 0
        for topic in sorted(topics, key=java_order):
            if not any(topic in wanted[each] for each in ring):
                continue
            for partition in range(len(topics[topic])):
                while topic not in wanted[ring[turn]]:
                    turn = (turn + 1) % len(ring)
                assignments[ring[turn]].append(TopicPartition(topic, partition))
                turn = (turn + 1) % len(ring)
        return assignments
