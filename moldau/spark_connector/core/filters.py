"""What a query's conditions say about where its records lie, so that the others are not fetched.

Owns the narrowing by topic, partition, offset and time. Must not know Spark's classes. Invariant: a
record that meets all conditions is never left out; a condition counts as handled only if no record
that fails it is left in.

Times narrow the beginning only. Where the first record at or after a time lies can be looked up,
but records in a partition are not in the order of their timestamps: what comes later may still be
older, so conditions on time are never handled, and give no end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.ranges import OffsetRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MS: Final = 1_000
_KINDS: Final[Mapping[str, type]] = {
    "topic": str,
    "partition": int,
    "offset": int,
    "timestamp": datetime,
}
_NEVER_NULL: Final = frozenset({*_KINDS, "timestampType"})


class Operator(Enum):
    """How a column is compared."""

    EQUAL = "="
    IN = "in"
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    NOT_NULL = "is not null"


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a column with constants; `values` has one, several for IN, none."""

    column: str
    operator: Operator
    values: tuple[object, ...] = ()


@dataclass(slots=True)
class Narrowing:
    """What is left to read.

    Attributes:
        topics, partitions: the only ones, None for all.
        first_offset: none before this one.
        end_offset: none from this one on; None for no end.
        first_timestamp_ms: no record before the first one that is this old or younger; None for
            all.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int | None = None
    first_timestamp_ms: int | None = None

    def narrow(self, condition: Condition) -> bool:
        """Take a condition into account; whether nothing is left to check of it."""
        if condition.operator is Operator.NOT_NULL:
            return condition.column in _NEVER_NULL
        kind = _KINDS.get(condition.column)
        if kind is None or not all(_is_kind(value, kind) for value in condition.values):
            return False
        if condition.column == "topic":
            return self._narrow_topics(condition)
        if condition.column == "partition":
            return self._narrow_partitions(condition)
        if condition.column == "offset":
            return self._narrow_offsets(condition)
        self._narrow_times(condition)
        return False

    def apply(
        self,
        ranges: Sequence[OffsetRange],
        first_by_time: Mapping[TopicPartition, int | None] | None = None,
    ) -> list[OffsetRange]:
        """What is left of the ranges.

        Args:
            first_by_time: the first offset that is young enough, by partition, None where there
                is none: as looked up for `first_timestamp_ms` after the ranges were planned.
        """
        left = []
        for each in ranges:
            topic, partition = each.topic_partition
            if not _allows(self.topics, topic) or not _allows(self.partitions, partition):
                continue
            start = max(each.start_offset, self.first_offset)
            end = each.end_offset
            if self.end_offset is not None:
                end = min(end, self.end_offset)
            if first_by_time is not None:
                first = first_by_time[each.topic_partition]
                start = end if first is None else max(start, first)
            if start < end:
                left.append(OffsetRange(each.topic_partition, start, end))
        return left

    def _narrow_topics(self, condition: Condition) -> bool:
        if condition.operator not in (Operator.EQUAL, Operator.IN):
            return False
        allowed = frozenset(value for value in condition.values if isinstance(value, str))
        self.topics = allowed if self.topics is None else self.topics & allowed
        return True

    def _narrow_partitions(self, condition: Condition) -> bool:
        if condition.operator not in (Operator.EQUAL, Operator.IN):
            return False
        allowed = frozenset(value for value in condition.values if isinstance(value, int))
        self.partitions = allowed if self.partitions is None else self.partitions & allowed
        return True

    def _narrow_offsets(self, condition: Condition) -> bool:
        values = [value for value in condition.values if isinstance(value, int)]
        operator = condition.operator
        if not values:
            self.end_offset = 0
            return True
        if operator in (Operator.EQUAL, Operator.IN, Operator.GREATER_OR_EQUAL):
            self.first_offset = max(self.first_offset, min(values))
        if operator is Operator.GREATER:
            self.first_offset = max(self.first_offset, values[0] + 1)
        if operator in (Operator.EQUAL, Operator.IN, Operator.LESS_OR_EQUAL):
            self._end_before(max(values) + 1)
        if operator is Operator.LESS:
            self._end_before(values[0])
        # Between the least and the greatest of several there may be others.
        return operator is not Operator.IN or len(set(values)) == 1

    def _end_before(self, end_offset: int) -> None:
        end_offset = max(0, end_offset)
        if self.end_offset is None or end_offset < self.end_offset:
            self.end_offset = end_offset

    def _narrow_times(self, condition: Condition) -> None:
        times = [_microseconds(value) for value in condition.values if isinstance(value, datetime)]
        if not times or condition.operator in (Operator.LESS, Operator.LESS_OR_EQUAL):
            return
        # Records have whole milliseconds: the first one that is not before the time.
        first_ms = -(-min(times) // _MS)
        if condition.operator is Operator.GREATER:
            first_ms = min(times) // _MS + 1
        # Records without a timestamp have -1 in its place, and cannot be looked up.
        if first_ms > 0 and (self.first_timestamp_ms is None or first_ms > self.first_timestamp_ms):
            self.first_timestamp_ms = first_ms


def _is_kind(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _allows(allowed: frozenset[str] | frozenset[int] | None, value: object) -> bool:
    return allowed is None or value in allowed


def _microseconds(moment: datetime) -> int:
    """Since 1970 UTC; Spark's times without a zone are in UTC here."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND
