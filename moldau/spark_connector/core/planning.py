"""From ranges of offsets to the input partitions of Spark: who reads what.

Owns the cutting of ranges by `minPartitions` and `maxRecordsPerPartition`. Must not know what lies
in the ranges. Invariant: the pieces cover every offset of the ranges exactly once, none is empty,
and each lies in one partition; the same input gives the same pieces.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.errors import InvalidOption

MAX_INPUT_PARTITIONS: Final = 100_000
"""How many tasks one batch may have: each of them is an object on the driver."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition, from `start_offset` to before `end_offset`.

    There may be fewer records than offsets: markers, aborted and compacted records have offsets.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """How many offsets there are."""
        return max(0, self.end_offset - self.start_offset)

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.start_offset}, {self.end_offset})"


def split(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges into what one task each reads, in order; empty ranges are left out.

    Args:
        min_partitions: at least so many pieces, if there are as many offsets: the largest pieces
            are cut further, so that the largest one becomes as small as possible.
        max_records: at most so many offsets per piece.

    Raises:
        InvalidOption: that would be more than `MAX_INPUT_PARTITIONS` pieces.
    """
    whole = sorted(each for each in ranges if each.size)
    counts = [1 if max_records is None else -(-each.size // max_records) for each in whole]
    wanted = max(sum(counts), min(min_partitions or 0, sum(each.size for each in whole)))
    if wanted > max(MAX_INPUT_PARTITIONS, len(whole)):
        option, value = "maxRecordsPerPartition", max_records
        if sum(counts) < wanted:
            option, value = "minPartitions", min_partitions
        raise InvalidOption(
            f"{option}={value} would make {wanted} tasks of this batch; at most "
            f"{MAX_INPUT_PARTITIONS} are possible"
        )
    _cut_largest(whole, counts, wanted)
    return [
        piece for each, count in zip(whole, counts, strict=True) for piece in _pieces(each, count)
    ]


def _cut_largest(whole: list[OffsetRange], counts: list[int], wanted: int) -> None:
    """Raise counts until there are `wanted` pieces, always where the pieces are largest."""
    missing = wanted - sum(counts)
    # The largest first; the index decides between equals, so that plans can be repeated.
    heap = [(-each.size / counts[index], index) for index, each in enumerate(whole)]
    heapq.heapify(heap)
    while missing > 0 and heap:
        _, index = heapq.heappop(heap)
        if counts[index] >= whole[index].size:
            continue
        counts[index] += 1
        missing -= 1
        heapq.heappush(heap, (-whole[index].size / counts[index], index))


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Equal pieces, up to one offset."""
    bounds = [whole.start_offset + whole.size * index // count for index in range(count + 1)]
    return [OffsetRange(whole.topic_partition, start, end) for start, end in pairwise(bounds)]
