"""Which logs want cleaning, how much, and up to where.

Owns: the rules, as functions of a log and the time. Must not: change the log, or schedule.
Invariant: nothing at or after the first uncleanable offset is looked at by a cleaning: the active
segment, what is not decided for readers of committed data, what is younger than
`min.compaction.lag.ms`. Sources: KIP-58, KIP-98, KIP-354.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moldau.storage.cleaner.job import NO_TIME
from moldau.storage.log_config import MAX_INT64, LogConfig


class PlannedSegment(Protocol):
    """What is asked of a segment."""

    base_offset: int
    size_bytes: int

    def largest_timestamp_ms(self) -> int:
        """Of its records, or when its file last changed. Raises: OSError."""

    def rolling_base_timestamp_ms(self) -> int:
        """Of its first batch, -1 without one. Raises: OSError, InvalidBatch."""


class PlannedLog(Protocol):
    """What is asked of a log."""

    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    first_dirty_offset: int | None

    @property
    def segments(self) -> Sequence[PlannedSegment]:
        """In order, the active one last."""

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided."""

    def segment_index_for(self, record_offset: int) -> int:
        """The number of the segment that would hold it."""


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """What a cleaning of one log would look at.

    Segments below number `segment_count` are rewritten. `max_lag_excess_ms`: for how long records
    have stayed uncompacted beyond `max.compaction.lag.ms`.
    """

    first_dirty_offset: int
    segment_count: int
    clean_bytes: int
    dirty_bytes: int
    max_lag_excess_ms: int
    min_ratio: float
    is_horizon_past: bool = False
    """Whether there are tombstones or markers whose time is over, and no newer ones."""

    @property
    def dirty_ratio(self) -> float:
        """The share of bytes no cleaning has seen, 0 to 1."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the topic's settings ask for a cleaning now."""
        if self.is_horizon_past and self.segment_count:
            return True
        if not self.dirty_bytes:
            return False
        return self.max_lag_excess_ms > 0 or self.dirty_ratio > self.min_ratio


def plan_cleaning(
    log: PlannedLog, now_ms: int, *, latest_horizon_ms: int = NO_TIME
) -> CleaningPlan:
    """What cleaning `log` now would mean.

    `latest_horizon_ms`: what the last cleaning said. Apache Kafka waits for new records instead; a
    log to which nobody writes then keeps its tombstones. Raises: OSError, InvalidBatch (its files).
    """
    segments, config = log.segments, log.config
    first_dirty_offset = first_dirty(log)
    first_dirty_index = log.segment_index_for(first_dirty_offset)
    end = _first_uncleanable_index(log, first_dirty_index, now_ms)
    clean_bytes = sum(segment.size_bytes for segment in segments[: min(first_dirty_index, end)])
    dirty_bytes = sum(segment.size_bytes for segment in segments[first_dirty_index:end])
    return CleaningPlan(
        first_dirty_offset,
        end,
        clean_bytes,
        dirty_bytes,
        _lag_excess_ms(config, segments[first_dirty_index:-1], now_ms),
        config.min_cleanable_dirty_ratio,
        latest_horizon_ms != NO_TIME and latest_horizon_ms <= now_ms,
    )


def first_dirty(log: PlannedLog) -> int:
    """From where on no cleaning has looked at the log.

    What was noted does not hold when the log was cut, or began later, since.
    """
    noted = log.first_dirty_offset
    if noted is None or not log.log_start_offset <= noted <= log.log_end_offset:
        return log.log_start_offset
    return noted


def _first_uncleanable_index(log: PlannedLog, first_dirty_index: int, now_ms: int) -> int:
    """The number of the first segment that must stay as it is."""
    segments = log.segments
    end = min(len(segments) - 1, log.segment_index_for(log.last_stable_offset))
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for index in range(first_dirty_index, end):
            if segments[index].largest_timestamp_ms() > now_ms - lag_ms:
                return index
    return end


def _lag_excess_ms(config: LogConfig, dirty: Iterable[PlannedSegment], now_ms: int) -> int:
    lag_ms = config.max_compaction_lag_ms
    if lag_ms >= MAX_INT64:
        return 0
    stamps = [each.rolling_base_timestamp_ms() for each in dirty if each.size_bytes]
    earliest_ms = min((each for each in stamps if each > 0), default=None)
    return 0 if earliest_ms is None else max(0, now_ms - lag_ms - earliest_ms)
