"""What became of an Arrow table that was sent.

Owns the counts and offsets of acknowledged rows. Must not wait. Invariant: ranges of one partition
do not overlap, and those that follow each other are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moldau.protocol.types import TopicPartition


@dataclass(slots=True)
class ArrowDelivery:
    """Where the rows of one `send_arrow` are.

    Attributes:
        row_count: rows that were acknowledged: all of them.
        partitions: by partition the ranges (offset of the first row, number of rows), in the order
            of the rows. The offset is -1 where the broker does not say: with acks=0, or when it
            recognised a retry as a duplicate.
    """

    row_count: int = 0
    partitions: Mapping[TopicPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)


class DeliveryLedger:
    """Collects the ranges of one sending."""

    def __init__(self) -> None:
        self._row_count = 0
        self._ranges: dict[TopicPartition, list[tuple[int, int]]] = {}

    def add(self, partition: TopicPartition, base_offset: int, row_count: int) -> None:
        """So many rows of the partition were acknowledged, behind those added before."""
        self._row_count += row_count
        ranges = self._ranges.setdefault(partition, [])
        if ranges:
            last_offset, last_count = ranges[-1]
            follows = base_offset == last_offset + last_count and last_offset >= 0
            if follows or base_offset == last_offset == -1:
                ranges[-1] = (last_offset, last_count + row_count)
                return
        ranges.append((base_offset, row_count))

    def delivery(self) -> ArrowDelivery:
        """Everything so far."""
        found = {partition: tuple(ranges) for partition, ranges in self._ranges.items()}
        return ArrowDelivery(self._row_count, found)
