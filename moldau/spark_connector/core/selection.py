"""Where reading starts and ends, as the user says it, and the offsets that this means.

Owns the kinds of places and their resolution with what the cluster answered. Must not ask it.
Invariant: a resolved place has one offset for every partition that is read, or there is one error
that says which partition has none, and why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.continuity import is_replaced
from moldau.spark_connector.core.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Offsets,
    TopicIds,
)
from moldau.spark_connector.errors import OffsetsNotFound


class Place(Enum):
    """The same place in every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -2 is earliest, -1 latest.

    Attributes:
        topic_ids: of the topics that the offsets are in, as far as they were given.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: TopicIds = field(default_factory=dict)

    def in_former_topics(self, topic_ids: TopicIds) -> frozenset[TopicPartition]:
        """The partitions whose offset is in a topic that the name does not belong to any more."""
        return frozenset(
            partition
            for partition, offset in self.offsets.items()
            if offset >= 0 and is_replaced(partition.topic, self.topic_ids, topic_ids)
        )


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in milliseconds since 1970 UTC, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same with a time for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


Selection: TypeAlias = Place | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A place, with the option that it came from, for the errors.

    Attributes:
        latest_when_not_found: where no record is young enough, go to the end instead of failing.
    """

    selection: Selection
    option: str
    latest_when_not_found: bool = False

    def is_volatile(self) -> bool:
        """Whether looking it up again later gives other offsets, though nothing was lost."""
        if isinstance(self.selection, AtOffsets):
            return LATEST_OFFSET in self.selection.offsets.values()
        if isinstance(self.selection, Place):
            return self.selection is Place.LATEST
        return self.latest_when_not_found

    def times(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The times that have to be looked up, in ms, by partition.

        Raises:
            OffsetsNotFound: they are not given for exactly these partitions.
        """
        if isinstance(self.selection, AtTime):
            return dict.fromkeys(partitions, self.selection.timestamp_ms)
        if isinstance(self.selection, AtTimes):
            self._check_same(self.selection.timestamps_ms, partitions)
            return dict(self.selection.timestamps_ms)
        return {}

    def resolve(
        self,
        partitions: Collection[TopicPartition],
        beginnings: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        first_by_time: Mapping[TopicPartition, int | None],
    ) -> Offsets:
        """The offset for every partition.

        Args:
            beginnings, ends: the first offset there is, and the one behind the last.
            first_by_time: the answers for `times`; None where no record is young enough.

        Raises:
            OffsetsNotFound: some partition has none.
        """
        if self.selection is Place.EARLIEST:
            return {partition: beginnings[partition] for partition in partitions}
        if self.selection is Place.LATEST:
            return {partition: ends[partition] for partition in partitions}
        if isinstance(self.selection, AtOffsets):
            self._check_same(self.selection.offsets, partitions)
            special = {EARLIEST_OFFSET: beginnings, LATEST_OFFSET: ends}
            return {
                partition: special[wanted][partition] if wanted in special else wanted
                for partition, wanted in self.selection.offsets.items()
            }
        times = self.times(partitions)
        found: Offsets = {}
        for partition in partitions:
            first = first_by_time[partition]
            if first is None and not self.latest_when_not_found:
                raise OffsetsNotFound(
                    f"{self.option}: {partition} has no record at or after {times[partition]} (ms "
                    "since 1970 UTC); choose an earlier time, or set "
                    "startingOffsetsByTimestampStrategy=latest to begin at the end there"
                )
            found[partition] = ends[partition] if first is None else first
        return found

    def _check_same(
        self, given: Collection[TopicPartition], partitions: Collection[TopicPartition]
    ) -> None:
        missing = sorted(set(partitions) - set(given))
        unknown = sorted(set(given) - set(partitions))
        if not missing and not unknown:
            return
        problems = []
        if missing:
            problems.append(f"there is nothing for {_names(missing)}")
        if unknown:
            problems.append(f"{_names(unknown)} is not read, or does not exist")
        raise OffsetsNotFound(
            f"{self.option} must name every partition that is read, and no other: "
            f"{'; '.join(problems)}. In offsets, -2 stands for earliest and -1 for latest"
        )


MAX_NAMES = 10


def _names(partitions: Collection[TopicPartition]) -> str:
    shown = [str(partition) for partition in partitions]
    more = len(shown) - MAX_NAMES
    return ", ".join(shown[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
