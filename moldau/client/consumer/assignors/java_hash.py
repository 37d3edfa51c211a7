"""The order in which Java's hash tables are read: `java.util.HashMap` with its default load factor.

The sticky assignors of Apache Kafka keep members and movements in hash tables, so this order
decides which of several equal members keeps one partition more. With another order a group whose
leader changes from a Java member to this client would move partitions for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from moldau.protocol.types import TopicPartition

_FIRST_CAPACITY: Final = 16
_MASK: Final = 0xFFFFFFFF


def string_hash(text: str) -> int:
    """`String.hashCode`, as an unsigned 32-bit number."""
    result = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        result = (31 * result + (units[index] << 8 | units[index + 1])) & _MASK
    return result


def partition_hash(partition: TopicPartition) -> int:
    """`TopicPartition.hashCode`, as an unsigned 32-bit number."""
    return (31 * (31 + partition.partition) + string_hash(partition.topic)) & _MASK


def in_hash_order(keys: Iterable[str]) -> list[str]:
    """Distinct texts, inserted in the order given into an empty table."""
    listed = list(keys)
    capacity = _FIRST_CAPACITY
    while len(listed) > capacity * 3 // 4:
        capacity *= 2
    return sorted(listed, key=lambda key: _bucket(string_hash(key), capacity))


class PartitionHashSet:
    """A set of partitions, read in the order of `java.util.HashSet`: the table never shrinks."""

    __slots__ = ("_capacity", "_members")

    def __init__(self) -> None:
        self._capacity = _FIRST_CAPACITY
        self._members: dict[TopicPartition, int] = {}

    def add(self, partition: TopicPartition) -> None:
        self._members.setdefault(partition, partition_hash(partition))
        while len(self._members) > self._capacity * 3 // 4:
            self._capacity *= 2

    def discard(self, partition: TopicPartition) -> None:
        self._members.pop(partition, None)

    def __iter__(self) -> Iterator[TopicPartition]:
        members = self._members
        return iter(sorted(members, key=lambda each: _bucket(members[each], self._capacity)))

    def __len__(self) -> int:
        return len(self._members)


def _bucket(hashed: int, capacity: int) -> int:
    return (hashed ^ (hashed >> 16)) & (capacity - 1)
