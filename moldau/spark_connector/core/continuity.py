"""Whether what is to be read next is still there: deleted topics, retention, logs that were cut.

Owns the comparison of where a query stands with what the cluster has now, and the words about what
is missing. Must not decide whether that stops the query (`failOnDataLoss` does), nor ask the
cluster. Invariant: what is left to read after the losses lies in the log, and whatever a query has
not read and cannot read any more is in a loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.offsets import Offsets, TopicIds
from moldau.spark_connector.core.planning import OffsetRange


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


def is_replaced(topic: str, seen_ids: TopicIds, topic_ids: TopicIds) -> bool:
    """Whether a name has gone to another topic since it was seen; False where an id is unknown."""
    seen_id, topic_id = seen_ids.get(topic, ZERO_UUID), topic_ids.get(topic, ZERO_UUID)
    return ZERO_UUID not in (seen_id, topic_id) and seen_id != topic_id


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
