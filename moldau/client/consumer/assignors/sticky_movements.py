"""Which partitions an assignment has moved, and from whom to whom.

Owns that record, to move one partition of a topic rather than two: when A gave B a partition and B
is to give A another one of the same topic, the first simply goes back (KIP-54). Invariant: a
partition that is back where it was has no record.
"""

from __future__ import annotations

from moldau.client.consumer.assignors.java_hash import PartitionHashSet
from moldau.protocol.types import TopicPartition

#: The member that had it, the member that has it.
_Pair = tuple[str, str]


class Movements:
    """The moves of one assignment."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, _Pair] = {}
        self._by_topic: dict[str, dict[_Pair, PartitionHashSet]] = {}

    def move(self, partition: TopicPartition, source: str, destination: str) -> None:
        """Remember a move."""
        earlier = self._pairs.pop(partition, None)
        if earlier is not None:
            moved = self._by_topic[partition.topic]
            moved[earlier].discard(partition)
            if not len(moved[earlier]):
                del moved[earlier]
            if not moved:
                del self._by_topic[partition.topic]
            source = earlier[0]
        if source != destination:
            pair = (source, destination)
            self._pairs[partition] = pair
            moved = self._by_topic.setdefault(partition.topic, {})
            moved.setdefault(pair, PartitionHashSet()).add(partition)

    def to_move(self, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        """What to move instead of `partition`: one that went the other way before, if any did."""
        earlier = self._pairs.get(partition)
        if earlier is not None:
            source = earlier[0]
        back = self._by_topic.get(partition.topic, {}).get((destination, source))
        return partition if back is None else next(iter(back))
