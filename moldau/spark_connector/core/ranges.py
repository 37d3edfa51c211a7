"""Ranges of offsets: cut into the input partitions of Spark, and compared with what is still there.

Owns the cutting by `minPartitions` and `maxRecordsPerPartition`, the comparison of a query's
position with the cluster's logs (deleted topics, retention, logs that were cut), and the words
about what is missing. Must not ask the cluster, nor decide whether a loss stops the query
(`failOnDataLoss` does). Invariants: the pieces cover every offset of the ranges exactly once, none
is empty, each lies in one partition, and the same input gives the same pieces; what is left to read
after the losses lies in the log, and a loss holds everything that the query has not read and cannot
read any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import Offsets, TopicIds, is_replaced
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


class Missing(Enum):
    """What has happened to records."""

    GONE = "the topic or partition does not exist any more"
    REPLACED = "the topic was deleted and created again, and what it held from there on is gone"
    AGED_OUT = "the log begins later now: retention or a deletion of records was faster"
    CUT = "the log ends earlier: the topic was created again, or an unclean election cut it"
    BEGINS_LATE = "the partition is new to this query and does not begin at offset 0"
    BEYOND_END = "no record has that offset yet"


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of one partition that were to be read and cannot be.

    Attributes:
        wanted_offset: the first offset that was to be read.
        available_offset: what there is instead: the log's first offset (AGED_OUT, BEGINS_LATE), or
            its end (CUT, BEYOND_END); None where there is no such log.
    """

    topic_partition: TopicPartition
    missing: Missing
    wanted_offset: int
    available_offset: int | None = None

    def __str__(self) -> str:
        text = f"{self.topic_partition}: offset {self.wanted_offset} was to be read"
        if self.available_offset is not None:
            is_end = self.missing in (Missing.CUT, Missing.BEYOND_END)
            bound = "ends at" if is_end else "begins at"
            text += f", but the log {bound} {self.available_offset}"
        return f"{text}; {self.missing.value}"


def gone(start: Mapping[TopicPartition, int], there: Collection[TopicPartition]) -> list[Loss]:
    """The partitions that a query stands in and that do not exist any more."""
    return [
        Loss(partition, Missing.GONE, start[partition])
        for partition in sorted(start)
        if partition not in there
    ]


def replaced(
    start: Mapping[TopicPartition, int], seen_ids: TopicIds, topic_ids: TopicIds
) -> list[Loss]:
    """The partitions of topics that have another id than the one that offsets were of."""
    return [
        Loss(partition, Missing.REPLACED, start[partition])
        for partition in sorted(start)
        if is_replaced(partition.topic, seen_ids, topic_ids)
    ]


def cut(start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[Loss]:
    """The partitions whose log ends before where the query stands."""
    return [
        Loss(partition, Missing.CUT, start[partition], ends[partition])
        for partition in sorted(start)
        if partition in ends and ends[partition] < start[partition]
    ]


def readable(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    *,
    is_first: bool = False,
) -> tuple[list[OffsetRange], list[Loss]]:
    """What there is to read between two offsets of a checkpoint, and what is missing of it.

    Args:
        start, end: of the batch. Partitions only in `end` are new: they are read from 0 on.
        beginnings: the first offset of each partition that exists.
        is_first: `start` was looked up just now, for a batch that may have been planned earlier,
            by a driver that died: it may lie behind `end`, and then there is nothing to read.
    """
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    for partition in sorted(end):
        end_offset = end[partition]
        wanted = start.get(partition, 0)
        beginning = beginnings.get(partition)
        if wanted > end_offset:
            if not is_first:
                losses.append(Loss(partition, Missing.CUT, wanted, end_offset))
            continue
        if beginning is None:
            if wanted < end_offset:
                losses.append(Loss(partition, Missing.GONE, wanted))
            continue
        if beginning > wanted:
            if partition not in start:
                losses.append(Loss(partition, Missing.BEGINS_LATE, wanted, beginning))
            elif wanted < end_offset:
                losses.append(Loss(partition, Missing.AGED_OUT, wanted, beginning))
        first = max(wanted, beginning)
        if first < end_offset:
            ranges.append(OffsetRange(partition, first, end_offset))
    return ranges, losses


def clamped(
    wanted: Offsets,
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    others: Collection[TopicPartition] = (),
) -> tuple[Offsets, list[Loss]]:
    """Offsets that a user named, moved into the logs; and those that do not lie there.

    Args:
        others: those whose offset is in a former topic of the same name: they begin where the log
            does.
    """
    found: Offsets = {}
    losses: list[Loss] = []
    for partition in sorted(wanted):
        offset = wanted[partition]
        if partition in others:
            losses.append(Loss(partition, Missing.REPLACED, offset))
            offset = beginnings[partition]
        elif offset < beginnings[partition]:
            losses.append(Loss(partition, Missing.AGED_OUT, offset, beginnings[partition]))
        elif offset > ends[partition]:
            losses.append(Loss(partition, Missing.BEYOND_END, offset, ends[partition]))
        found[partition] = min(max(offset, beginnings[partition]), ends[partition])
    return found, losses
