"""Which logs are cleaned, up to where, and which segments become one."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import pytest

from moldau.storage.checkpoints import EpochStartOffset
from moldau.storage.cleaner.cleaning import MAX_GROUP_SEGMENTS, group_segments
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    CleaningStats,
    ProducerTail,
    SegmentCleaned,
    SourceSegment,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
)
from moldau.storage.cleaner.log_cleaner import plan_cleaning
from moldau.storage.log_config import CleanerSettings, LogConfig

NOW_MS = 10_000
COMPACT = LogConfig(cleanup_policy=("compact",))


@dataclass
class FakeSegment:
    base_offset: int
    size_bytes: int = 100
    first_ms: int = 1
    last_ms: int = 1

    def largest_timestamp_ms(self) -> int:
        return self.last_ms

    def rolling_base_timestamp_ms(self) -> int:
        return self.first_ms


class FakeSegments(list[FakeSegment]):
    def index_for(self, record_offset: int) -> int:
        bases = [each.base_offset for each in self]
        return max(bisect_right(bases, record_offset) - 1, 0)


@dataclass
class FakeLog:
    config: LogConfig = COMPACT
    log_start_offset: int = 0
    log_end_offset: int = 50
    first_dirty_offset: int | None = None
    last_stable_offset: int = 50
    segments: FakeSegments = field(
        default_factory=lambda: FakeSegments(FakeSegment(base) for base in (0, 10, 20, 30, 40))
    )


def test_all_but_the_active_segment_is_dirty_at_first() -> None:
    plan = plan_cleaning(FakeLog(), NOW_MS)
    assert (plan.first_dirty_offset, plan.segment_count) == (0, 4)
    assert (plan.clean_bytes, plan.dirty_bytes, plan.dirty_ratio) == (0, 400, 1.0)
    assert plan.is_due


@pytest.mark.parametrize(
    ("first_dirty", "clean_bytes", "dirty_bytes", "is_due"),
    [(10, 100, 300, True), (20, 200, 200, False), (25, 200, 200, False), (40, 400, 0, False)],
)
def test_the_ratio_decides(
    first_dirty: int, clean_bytes: int, dirty_bytes: int, is_due: bool
) -> None:
    plan = plan_cleaning(FakeLog(first_dirty_offset=first_dirty), NOW_MS)
    assert (plan.clean_bytes, plan.dirty_bytes) == (clean_bytes, dirty_bytes)
    assert plan.is_due is is_due


@pytest.mark.parametrize("noted", [3, 60])
def test_a_mark_outside_the_log_counts_for_nothing(noted: int) -> None:
    log = FakeLog(first_dirty_offset=noted, log_start_offset=5)
    assert plan_cleaning(log, NOW_MS).first_dirty_offset == 5


@pytest.mark.parametrize(("last_stable", "count"), [(50, 4), (39, 3), (20, 2), (19, 1), (5, 0)])
def test_nothing_undecided_is_touched(last_stable: int, count: int) -> None:
    plan = plan_cleaning(FakeLog(last_stable_offset=last_stable), NOW_MS)
    assert plan.segment_count == count
    assert plan.is_due is (count > 0)


def test_young_records_wait() -> None:
    log = FakeLog(LogConfig(cleanup_policy=("compact",), min_compaction_lag_ms=1000))
    log.segments[2].last_ms = NOW_MS - 999
    assert plan_cleaning(log, NOW_MS).segment_count == 2
    assert plan_cleaning(log, NOW_MS + 1).segment_count == 4
    # What is clean already does not become young again.
    log.first_dirty_offset = 30
    assert plan_cleaning(log, NOW_MS).segment_count == 4


def test_a_lag_of_a_millisecond_keeps_what_was_written_in_this_one() -> None:
    log = FakeLog(LogConfig(cleanup_policy=("compact",), min_compaction_lag_ms=1))
    log.segments[1].last_ms = NOW_MS
    assert plan_cleaning(log, NOW_MS).segment_count == 1
    assert plan_cleaning(log, NOW_MS + 1).segment_count == 4
    log.config = COMPACT
    log.segments[1].last_ms = NOW_MS + 1
    assert plan_cleaning(log, NOW_MS).segment_count == 4, "without a lag no time matters"


def test_the_oldest_dirty_record_has_waited_longest() -> None:
    config = LogConfig(cleanup_policy=("compact",), max_compaction_lag_ms=4000)
    log = FakeLog(config, first_dirty_offset=10)
    for segment, first_ms in zip(log.segments, (1, 7, 5, 6, 2), strict=True):
        segment.first_ms = first_ms
    # The clean segment and the active one do not wait.
    assert plan_cleaning(log, NOW_MS).max_lag_excess_ms == NOW_MS - 4000 - 5
    log.segments[2].size_bytes = 0
    assert plan_cleaning(log, NOW_MS).max_lag_excess_ms == NOW_MS - 4000 - 6
    log.segments[3].first_ms = 1
    assert plan_cleaning(log, NOW_MS).max_lag_excess_ms == NOW_MS - 4000 - 1
    log.segments[3].first_ms = 0
    assert plan_cleaning(log, NOW_MS).max_lag_excess_ms == NOW_MS - 4000 - 7


def test_max_lag_overrides_the_ratio() -> None:
    config = LogConfig(
        cleanup_policy=("compact",), max_compaction_lag_ms=4000, min_cleanable_dirty_ratio=1.0
    )
    log = FakeLog(config, first_dirty_offset=30)
    log.segments[3].first_ms = NOW_MS - 4000
    assert not plan_cleaning(log, NOW_MS).is_due
    plan = plan_cleaning(log, NOW_MS + 1)
    assert plan.max_lag_excess_ms == 1
    assert plan.is_due
    log.segments[3].first_ms = -1  # records without timestamps say nothing
    assert not plan_cleaning(log, NOW_MS * 2).is_due


def test_a_passed_horizon_is_a_reason_by_itself() -> None:
    log = FakeLog(first_dirty_offset=40)
    assert not plan_cleaning(log, NOW_MS, latest_horizon_ms=NOW_MS + 1).is_due
    assert plan_cleaning(log, NOW_MS, latest_horizon_ms=NOW_MS).is_due
    log.last_stable_offset = 0
    assert not plan_cleaning(log, NOW_MS, latest_horizon_ms=NOW_MS).is_due


# -- groups --------------------------------------------------------------------------------------


def source(base: int, end: int, size: int = 100) -> SourceSegment:
    return SourceSegment(base, end, size)


def groups(segments: list[SourceSegment], index_bytes: int = 1) -> list[list[int]]:
    found = group_segments(
        segments, [index_bytes] * len(segments), max_bytes=250, max_index_bytes=10
    )
    return [[each.base_offset for each in group] for group in found]


def test_neighbours_share_a_segment_as_long_as_they_fit() -> None:
    segments = [source(n * 10, n * 10 + 10) for n in range(5)]
    assert groups(segments) == [[0, 10], [20, 30], [40]]
    assert groups(segments, index_bytes=8) == [[0], [10], [20], [30], [40]]
    assert groups([source(0, 1, 900), source(1, 2), source(2, 3)]) == [[0], [1, 2]]
    assert groups([]) == []


def test_offsets_too_far_apart_do_not_share_one() -> None:
    far = 2**31
    assert groups([source(0, 10), source(10, far)]) == [[0, 10]]
    assert groups([source(0, 10), source(10, far + 1)]) == [[0], [10]]
    assert groups([source(0, 5 * far), source(5 * far, 6 * far)]) == [[0], [5 * far]]


def test_a_group_has_a_limit() -> None:
    segments = [source(n, n + 1, 0) for n in range(MAX_GROUP_SEGMENTS + 1)]
    assert [len(group) for group in groups(segments, index_bytes=0)] == [MAX_GROUP_SEGMENTS, 1]


# -- jobs and events -----------------------------------------------------------------------------


def test_jobs_and_events_survive_their_encoding() -> None:
    job = CleaningJob(
        directory="/data/ä b",
        segments=(source(0, 5), source(5, 2**40, 7)),
        first_dirty_offset=3,
        index_bases=(0, 5, 2**40),
        epochs=(EpochStartOffset(2, 0), EpochStartOffset(3, 7)),
        producers=(ProducerTail(2**62, -1, 3),),
        now_ms=NOW_MS,
        delete_retention_ms=1,
        segment_bytes=2,
        segment_index_bytes=3,
        index_interval_bytes=4,
        map_bytes=5,
        load_factor=0.9,
        io_bytes=6,
        max_bytes_per_second=float("inf"),
    )
    line = encode_job(job)
    assert line.count(b"\n") == 1
    assert decode_job(line) == job
    for event in (
        SegmentCleaned((0, 5), 12),
        CleaningDone(9, CleaningStats(bytes_read=3, latest_horizon_ms=4)),
    ):
        assert decode_event(encode_event(event)) == event
    with pytest.raises(CleaningFailed, match="no\nroom") as caught:
        decode_event(encode_event(CleaningFailed("no\nroom", is_out_of_room=True)))
    assert (caught.value.is_out_of_room, caught.value.is_damage) == (True, False)
    with pytest.raises(CleaningFailed) as caught:
        decode_event(encode_event(CleaningFailed("bits", is_damage=True)))
    assert caught.value.is_damage


def test_budgets_are_shared_among_the_cleaners() -> None:
    settings = CleanerSettings(
        thread_count=4, dedupe_buffer_bytes=64 << 20, io_max_bytes_per_second=1000.0
    )
    assert (settings.map_bytes, settings.max_bytes_per_second) == (16 << 20, 250.0)
