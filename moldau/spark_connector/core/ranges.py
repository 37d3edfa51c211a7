"""Ranges of offsets: the end of a batch, what conditions leave of it, its pieces, and its losses.

Owns the shares of `maxOffsetsPerTrigger` and `minOffsetsPerTrigger`, the narrowing by topic,
partition, offset and time, the cutting by `minPartitions` and `maxRecordsPerPartition`, and the
comparison of a query's position with the logs (deleted topics, retention, logs that were cut). Must
not ask the cluster, read a clock, know Spark's classes, nor decide whether a loss stops the query
(`failures` does, by `failOnDataLoss`). Invariants:

- The end of a batch lies between its partition's start and its end; every partition with
  records advances; with a target nothing behind it is ever read, and it is reached.
- A record that meets all conditions is never left out; a condition counts as handled only if no
  record that fails it is left in.
- The pieces cover every offset of the ranges exactly once, none is empty, each lies in one
  partition, and the same input gives the same pieces.
- What is left to read after the losses lies in the log, and a loss holds everything that the query
  has not read and cannot read any more.

Conditions on time narrow the beginning only. Where the first record at or after a time lies can be
looked up, but records in a partition are not in the order of their timestamps: what comes later may
still be older, so conditions on time are never handled, and give no end.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    """Raise counts until there are `wanted` pieces, always where the pieces are largest: no piece
    of one offset is cut, as more pieces than there are offsets are never wanted.
    """
    missing = wanted - sum(counts)
    # The largest first; the index decides between equals, so that plans can be repeated.
    heap = [(-each.size / counts[index], index) for index, each in enumerate(whole)]
    heapq.heapify(heap)
    while missing > 0:
        _, index = heapq.heappop(heap)
        counts[index] += 1
        missing -= 1
        heapq.heappush(heap, (-whole[index].size / counts[index], index))


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
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
    """Offsets that a user named, moved into the logs; and those that do not lie there. `others` are
    in a former topic of the same name, and begin where the log does.
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
        if kind is None or not all(
            isinstance(value, kind) and not isinstance(value, bool) for value in condition.values
        ):
            return False
        if condition.column in ("topic", "partition"):
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

    def _narrow_partitions(self, condition: Condition) -> bool:
        if condition.operator not in (Operator.EQUAL, Operator.IN):
            return False
        if condition.column == "topic":
            topics = frozenset(value for value in condition.values if isinstance(value, str))
            self.topics = topics if self.topics is None else self.topics & topics
        else:
            numbers = frozenset(value for value in condition.values if isinstance(value, int))
            self.partitions = numbers if self.partitions is None else self.partitions & numbers
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
            first_ms = times[0] // _MS + 1
        # Records without a timestamp have -1 in its place, and cannot be looked up.
        if first_ms > 0 and (self.first_timestamp_ms is None or first_ms > self.first_timestamp_ms):
            self.first_timestamp_ms = first_ms


def _allows(allowed: frozenset[str] | frozenset[int] | None, value: object) -> bool:
    return allowed is None or value in allowed


def _microseconds(moment: datetime) -> int:
    """Microseconds since 1970 UTC; Spark's times without a zone are in UTC here."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND


DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of one query.

    Attributes:
        max_offsets: at most so many offsets per batch, of all partitions together; None for all.
            Every partition that has something gets one at least, so with fewer than one per
            partition a batch has as many offsets as there are such partitions.
        min_offsets: a batch waits for so many; None to take what exists.
        max_trigger_delay_ms: but no longer than this since the batch before.
    """

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS


class Admission:
    """Decides the end of each batch of a query. States: without a target → with a target."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits: AdmissionLimits = limits
        self._target: Offsets | None = None
        self._last_batch_ms: float | None = None

    def set_target(self, latest: Mapping[TopicPartition, int]) -> None:
        """From now on, behave as if nothing came behind these offsets, nor any new partition."""
        self._target = dict(latest)

    def next_end(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        *,
        everything: bool,
        now_ms: float,
    ) -> Offsets | None:
        """Where the batch that begins at `start` ends; None to wait for more records.

        Args:
            start: where every partition of `latest` begins, the new ones too.
            latest: the ends of all partitions that exist now.
            everything: Spark wants all there is, whatever the limits.
            now_ms: a clock that only goes forward.
        """
        ends = dict(latest)
        if self._target is not None:
            target = self._target
            ends = {
                partition: min(end, max(target[partition], start[partition]))
                for partition, end in latest.items()
                if partition in target
            }
        if everything:
            return ends
        # A query with a target must end, however little is left.
        if self._target is None and self._waits(_backlog(start, ends), now_ms):
            return None
        limit = self.limits.max_offsets
        return ends if limit is None else admit(start, ends, limit)

    def _waits(self, backlog: Mapping[TopicPartition, int], now_ms: float) -> bool:
        """Whether there is too little for a batch, and it may still wait."""
        least = self.limits.min_offsets
        if least is None:
            return False
        last_ms = self._last_batch_ms
        is_due = last_ms is None or now_ms - last_ms >= self.limits.max_trigger_delay_ms
        if not is_due and sum(backlog.values()) < least:
            return True
        self._last_batch_ms = now_ms
        return False


def admit(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """At most `limit` offsets, shared out in proportion to what each partition has.

    Every partition that has something gets one at least; the largest shares pay for that.
    Remainders go to the largest fractions, of equal ones to the first by name.
    """
    backlog = _backlog(start, ends)
    total = sum(backlog.values())
    if total <= limit:
        return dict(ends)
    shares: dict[TopicPartition, int] = {}
    fractions: list[tuple[int, TopicPartition]] = []
    for partition in sorted(backlog):
        share, fraction = divmod(limit * backlog[partition], total)
        shares[partition] = max(1, share)
        if share:
            fractions.append((-fraction, partition))
    left = max(limit, len(shares)) - sum(shares.values())
    for _, partition in sorted(fractions)[: max(0, left)]:
        shares[partition] += 1
    largest = [(-share, partition) for partition, share in shares.items() if left < 0]
    heapq.heapify(largest)
    for _ in range(-left):
        share, partition = largest[0]
        shares[partition] -= 1
        heapq.heapreplace(largest, (share + 1, partition))
    return {
        partition: start[partition] + shares[partition] if partition in shares else end
        for partition, end in ends.items()
    }


def _backlog(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {
        partition: end - start[partition]
        for partition, end in ends.items()
        if end > start[partition]
    }
