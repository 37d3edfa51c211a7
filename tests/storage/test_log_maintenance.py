"""Retention, delete records, truncation, closing, and finding offsets by time."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec
from moldau.storage.append import RecordBatches
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.timestamp_search import TimestampedOffset, TimestampSearch
from tests.kit.dice import drawn_seed
from tests.storage.log_fixtures import (
    START_MS,
    LogBench,
    append,
    batch_of,
    fill,
    offset_for_timestamp,
    offset_of_max_timestamp,
    read_all,
    values_of,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem


def small(**options: object) -> LogConfig:
    return LogConfig(segment_bytes=1000, index_interval_bytes=200, **options)  # type: ignore[arg-type]


def aged_log(bench: LogBench, count: int = 50) -> Log:
    log = bench.open()
    for number in range(count):
        append(log, f"{number}" * 40, timestamp_ms=START_MS - 100_000 + number * 1000)
    log.update_high_watermark(log.log_end_offset)
    return log


# -- retention -----------------------------------------------------------------------------------


def test_retention_by_time_deletes_whole_old_segments() -> None:
    bench = LogBench(config=small(retention_ms=70_000))
    log = aged_log(bench)
    scheduled: list[tuple[int, list[str]]] = []
    log.segments.schedule_deletion = lambda delay_ms, paths: scheduled.append((delay_ms, paths))
    expected = [
        s.base_offset for s in log.segments if s.largest_timestamp_ms() >= START_MS - 70_000
    ]
    count = log.apply_retention(START_MS)
    assert count > 0
    assert [s.base_offset for s in log.segments] == expected
    assert log.log_start_offset == expected[0]
    assert read_all(log)[0].offset == expected[0]
    assert log.read(0, max_bytes=100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert [delay for delay, _ in scheduled] == [60_000]
    assert sorted(scheduled[0][1]) == sorted(
        f"{bench.directory}/{name}" for name in bench.names(".deleted")
    )
    assert log.leader_epoch_cache.entries == [(0, expected[0])]
    assert log.apply_retention(START_MS) == 0


def test_an_expired_active_segment_is_rolled_and_deleted() -> None:
    bench = LogBench(config=small(retention_ms=10))
    log = aged_log(bench)
    assert log.apply_retention(START_MS) > 0
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (50, 50, 0)
    assert log.apply_retention(START_MS + 10**9) == 0
    assert append(log, "next").base_offset == 50
    log = bench.reopen(log, clean=True)
    assert (log.log_start_offset, values_of(log)) == (50, ["next"])


def test_retention_by_size_keeps_at_least_that_much() -> None:
    log = aged_log(LogBench(config=small(retention_ms=-1, retention_bytes=2500)))
    total = log.size_bytes
    log.apply_retention(START_MS)
    assert 2500 <= log.size_bytes < min(3500, total)


def test_nothing_at_or_above_the_high_watermark_is_deleted() -> None:
    log = aged_log(LogBench(config=small(retention_ms=10)))
    log.high_watermark = log.segments[2].base_offset + 1
    assert log.apply_retention(START_MS) == 2
    forever = aged_log(LogBench(config=small(retention_ms=-1)))
    assert forever.apply_retention(START_MS * 2) == 0
    compacted = aged_log(LogBench(config=small(retention_ms=10)))
    compacted.update_config(small(retention_ms=10, cleanup_policy=("compact",)))
    assert compacted.apply_retention(START_MS * 2) == 0


def test_records_without_timestamp_expire_by_the_file() -> None:
    bench = LogBench(SimulatedFilesystem(now_ms=lambda: START_MS), config=small(retention_ms=50))
    log = bench.open()
    fill(log, 20, timestamp_ms=-1)
    log.update_high_watermark(20)
    assert log.apply_retention(START_MS + 50) == 0
    assert log.apply_retention(START_MS + 51) > 0


def test_a_full_disk_postpones_retention_and_a_failing_one_ends_the_partition() -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem, config=small(retention_ms=10)).open()
    append(log, "a", timestamp_ms=START_MS - 100)
    log.update_high_watermark(1)
    filesystem.faults.append(Fault("create", ".log", errno.ENOSPC))
    with pytest.raises(DiskFull):
        log.apply_retention(START_MS)
    assert not log.offline
    filesystem.faults.append(Fault("rename", ".log", errno.EIO))
    with pytest.raises(LogOffline):
        log.apply_retention(START_MS)
    assert log.offline


# -- delete records ------------------------------------------------------------------------------


def test_delete_records_moves_the_start_even_inside_a_segment() -> None:
    bench = LogBench(config=small())
    log = aged_log(bench)
    second = log.segments[2].base_offset
    assert log.delete_records(second + 1) == (ErrorCode.NONE, second + 1)
    assert log.segments[0].base_offset == second
    assert read_all(log)[0].offset == second + 1
    assert log.delete_records(3) == (ErrorCode.NONE, second + 1)
    assert log.delete_records(51) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert log.delete_records(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    log = bench.reopen(log)
    assert log.log_start_offset == second + 1
    log.update_high_watermark(50)
    assert log.delete_records(-1) == (ErrorCode.NONE, 50)
    assert len(log.segments) == 1
    assert values_of(log) == []
    assert append(log, "x").base_offset == 50


# -- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 20, 49, 50, 80])
@pytest.mark.parametrize("clean", [True, False])
def test_truncation_leaves_the_records_below(offset: int, clean: bool) -> None:
    bench = LogBench(config=small())
    log = bench.open()
    for number in range(50):
        append(
            log,
            f"{number}" * 40,
            leader_epoch=number // 20,
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
        )
    log.flush()
    expected = [r for r in read_all(log) if r.offset < offset]
    lowered: list[int] = []
    log.checkpoint_recovery_point = lambda _log, offset: lowered.append(offset)
    assert log.truncate_to(offset) == (offset < 50)
    assert lowered == ([offset] if offset < 50 else [])
    end = min(offset, 50)
    assert (log.log_end_offset, log.recovery_point) == (end, end)
    assert read_all(log) == expected
    assert [e for e in log.leader_epoch_cache.entries] == [
        (e, e * 20) for e in range(3) if e * 20 < end
    ]
    again = append(log, "new", leader_epoch=3, producer_id=7, producer_epoch=0, base_sequence=end)
    assert again.base_offset == end
    log = bench.reopen(log, clean=clean)
    assert [r.offset for r in read_all(log)] == list(range(end + 1))
    assert bench.names(".deleted") == []


def test_truncation_inside_a_batch_removes_the_batch() -> None:
    log = LogBench().open()
    append(log, "a", "b", "c")
    append(log, "d", "e", "f")
    log.truncate_to(4)
    assert log.log_end_offset == 3
    assert append(log, "x").base_offset == 3


def test_starting_over_at_an_offset() -> None:
    bench = LogBench(config=small())
    log = bench.open()
    fill(log, 50)
    log.flush()
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert append(log, "x", leader_epoch=4).base_offset == 1000
    assert log.leader_epoch_cache.entries == [(4, 1000)]
    log = bench.reopen(log)
    assert (log.log_start_offset, values_of(log)) == (1000, ["x"])


@pytest.mark.parametrize("offset", [3, 10, 30, 1000])
def test_a_log_that_starts_over_lowers_its_recovery_point_before_its_files_go(offset: int) -> None:
    """Below the old start and below the new one: a crash may leave any of the files."""
    bench = LogBench(config=small())
    log = bench.open()
    fill(log, 50)
    log.update_high_watermark(50)
    log.delete_records(10)
    log.flush()
    before = bench.names()
    told: list[tuple[int, bool]] = []
    log.checkpoint_recovery_point = lambda _log, lowered: told.append(
        (lowered, bench.names() == before)
    )
    log.truncate_fully_and_start_at(offset)
    assert told == [(min(10, offset), True)]
    assert log.recovery_point == offset
    assert log.start_flush() is None, "there is nothing that could be lost"


def test_timestamps_of_cut_records_are_forgotten() -> None:
    log = LogBench().open()
    append(log, "a", timestamp_ms=START_MS)
    append(log, "b", timestamp_ms=START_MS + 500)
    append(log, "c", timestamp_ms=START_MS + 100)
    log.truncate_to(1)
    append(log, "d", timestamp_ms=START_MS + 50)
    assert offset_of_max_timestamp(log) == TimestampedOffset(START_MS + 50, 1, 0)


# -- closing -------------------------------------------------------------------------------------


def test_a_closed_log_is_flushed_trimmed_and_snapshotted() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    fill(log, 3, leader_epoch=2)
    log.close()
    assert log.recovery_point == 3
    assert bench.names() == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000003.snapshot",
        "leader-epoch-checkpoint",
        "segment-seals",
    ]
    assert filesystem.size_bytes(bench.path(0, ".index")) == 0
    assert filesystem.size_bytes(bench.path(0, ".timeindex")) == 12
    assert filesystem.read_bytes(f"{bench.directory}/leader-epoch-checkpoint") == b"0\n1\n2 0\n"
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0)
    log.close()
    with pytest.raises(LogOffline):
        log.flush()
    with pytest.raises(LogOffline):
        log.truncate_to(1)
    with pytest.raises(LogOffline):
        offset_for_timestamp(log, 0)


# -- lookup by time ------------------------------------------------------------------------------


@pytest.fixture(params=[0, 1])
def mixed(request: pytest.FixtureRequest) -> Iterator[tuple[Log, list[tuple[int, int]]]]:
    """Batches of every codec with timestamps that go up and down; (offset, timestamp) pairs."""
    seed = drawn_seed(7 + request.param)
    rng = random.Random(seed)
    log = LogBench(config=small()).open()
    pairs = []
    for number in range(80):
        at = START_MS - 10**6 + number * 10 + rng.randint(-60, 60)
        offset = log.log_end_offset
        count = rng.randint(1, 4)
        append(log, *["x" * 30] * count, timestamp_ms=at, codec=Codec(number % 5), leader_epoch=3)
        pairs += [(offset + n, at) for n in range(count)]
    yield log, pairs
    log.close()


def test_lookup_by_time_agrees_with_a_plain_search(
    mixed: tuple[Log, list[tuple[int, int]]],
) -> None:
    log, pairs = mixed
    times = [at for _, at in pairs]
    for target in range(min(times) - 20, max(times) + 20, 3):
        expected = next(((o, t) for o, t in pairs if t >= target), None)
        found = offset_for_timestamp(log, target)
        assert (None if found is None else (found.offset, found.timestamp_ms)) == expected
        if found is not None:
            assert found.leader_epoch == 3
            assert offset_for_timestamp(log, target, max_offset=found.offset) is None
    largest = max(times)
    first = next(o for o, t in pairs if t == largest)
    assert offset_of_max_timestamp(log) == TimestampedOffset(largest, first, 3)


def test_lookup_skips_deleted_records() -> None:
    log = LogBench().open()
    append(log, "a", "b", timestamp_ms=START_MS)
    append(log, "c", timestamp_ms=START_MS - 5)
    log.update_high_watermark(3)
    log.delete_records(1)
    found = offset_for_timestamp(log, START_MS)
    assert found == TimestampedOffset(START_MS, 1, 0)
    log.delete_records(2)
    assert offset_for_timestamp(log, START_MS) is None


def test_a_segment_at_the_bound_is_not_looked_at() -> None:
    log = aged_log(LogBench(config=small()))
    bound = log.segments[1].base_offset
    at_bound_ms = START_MS - 100_000 + bound * 1000
    assert not TimestampSearch(log, at_bound_ms, max_offset=bound).locate()
    assert TimestampSearch(log, at_bound_ms, max_offset=bound + 1).locate()


def test_lookup_in_an_empty_log() -> None:
    log = LogBench().open()
    assert offset_for_timestamp(log, 0) is None
    assert offset_of_max_timestamp(log) is None
    append(log, "a", timestamp_ms=-1)
    assert offset_of_max_timestamp(log) is None


def test_an_unreadable_but_intact_batch_does_not_end_the_partition() -> None:
    from moldau.protocol.records.header import write_crc
    from tests.storage.log_fixtures import batch_of

    log = LogBench().open()
    sent = batch_of("hello", "world")
    sent[61:70] = b"\xff" * 9
    write_crc(sent, 0, len(sent))
    assert log.append_as_leader(RecordBatches.read(sent), leader_epoch=0).error is ErrorCode.NONE
    assert offset_for_timestamp(log, START_MS) == TimestampedOffset(START_MS, 0, 0)
    assert not log.offline


def started_search(log: Log, timestamp_ms: int = START_MS) -> TimestampSearch:
    """A search that has looked into the log and has not returned yet what it saw."""
    search = TimestampSearch(log, timestamp_ms)
    assert search.locate()
    search.run()
    return search


def finished(search: TimestampSearch) -> TimestampedOffset | None:
    while search.locate():
        search.run()
    return search.found


def test_a_search_does_not_find_what_was_cut_while_it_ran() -> None:
    log = LogBench().open()
    append(log, "a", timestamp_ms=START_MS - 5)
    append(log, "b", timestamp_ms=START_MS)
    search = started_search(log)
    log.truncate_to(1)
    append(log, "c", timestamp_ms=START_MS - 3)
    append(log, "d", timestamp_ms=START_MS + 7)
    # The bound of the search is the end it began with: "d" came later.
    assert finished(search) is None
    search = started_search(log)
    log.truncate_fully_and_start_at(100)
    assert finished(search) is None
    assert not log.offline


def test_a_search_that_has_passed_a_segment_looks_into_it_again_after_a_cut() -> None:
    log = LogBench().open()
    append(log, "a", timestamp_ms=START_MS + 9)
    append(log, "b", timestamp_ms=START_MS - 1)
    log.roll()
    append(log, "c", timestamp_ms=START_MS)
    log.update_high_watermark(1)
    log.delete_records(1)
    search = started_search(log)  # into the first segment, for nothing: "a" is deleted
    assert search.locate()
    log.truncate_to(1)
    append(log, "d", timestamp_ms=START_MS + 1)
    search.run()
    found = finished(search)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (1, START_MS + 1)


def test_a_cut_between_choosing_and_reading_is_no_damage() -> None:
    log = LogBench().open()
    append(log, "a", timestamp_ms=START_MS - 5)
    append(log, "b" * 500, timestamp_ms=START_MS)
    search = TimestampSearch(log, START_MS)
    assert search.locate()
    log.truncate_to(1)
    search.run()
    assert finished(search) is None
    assert not log.offline


def test_a_search_goes_on_behind_records_that_were_deleted_while_it_ran() -> None:
    log = LogBench(config=small()).open()
    while len(log.segments) < 4:
        append(log, "x" * 100, timestamp_ms=START_MS)
    log.update_high_watermark(log.log_end_offset)
    search = started_search(log)
    start = log.segments[2].base_offset
    log.delete_records(start)
    assert finished(search) == TimestampedOffset(START_MS, start, 0)


def test_segments_deleted_before_a_search_reads_them_are_left_out() -> None:
    log = LogBench(config=small()).open()
    while len(log.segments) < 3:
        append(log, "x" * 100, timestamp_ms=START_MS)
    log.update_high_watermark(log.log_end_offset)
    search = TimestampSearch(log, START_MS)
    assert search.locate()
    log.delete_records(log.log_end_offset)
    search.run()
    assert finished(search) is None
    assert not log.offline


def test_a_log_that_is_closed_during_a_search() -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem).open()
    append(log, "a", timestamp_ms=START_MS)
    search = TimestampSearch(log, START_MS)
    assert search.locate()
    log.close()
    search.run()
    with pytest.raises(LogOffline):
        search.locate()
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0)


def test_end_offsets_of_epochs() -> None:
    log = LogBench().open()
    for epoch in (1, 1, 3, 7):
        append(log, "a", leader_epoch=epoch)
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in range(-1, 9)}
    assert ends == {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 2),
        2: (1, 2),
        3: (3, 3),
        4: (3, 3),
        5: (3, 3),
        6: (3, 3),
        7: (7, 4),
        8: (-1, -1),
    }
    log.leader_epoch_cache.assign(9, 4)
    assert log.end_offset_for_epoch(7) == (7, 4)
    assert log.end_offset_for_epoch(9) == (9, 4)


def test_segments_that_go_keep_no_file_open() -> None:
    filesystem = SimulatedFilesystem()
    log = aged_log(LogBench(filesystem, config=small(retention_ms=70_000)), 120)
    ends = [
        lambda: log.apply_retention(START_MS),
        lambda: log.delete_records(log.segments[2].base_offset),
        lambda: log.truncate_to(log.segments[-2].base_offset),
        lambda: log.truncate_fully_and_start_at(1000),
    ]
    for step in ends:
        read_all(log)
        offset_for_timestamp(log, START_MS - 1)
        before = len(log.segments)
        step()
        assert len(log.segments) < before
        assert filesystem.open_files <= len(log.segments)
        assert filesystem.open_maps <= 2 * len(log.segments)
        assert not log.segments.open_segments._entries.keys() - {id(each) for each in log.segments}
    log.close()
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0)


@pytest.mark.parametrize("start", [0, 1, 30])
def test_a_lookup_ends_with_the_segment_whose_newest_record_was_deleted(start: int) -> None:
    log = LogBench(config=LogConfig(index_interval_bytes=200)).open()
    append(log, "x" * 40, timestamp_ms=START_MS + 500)
    for number in range(40):
        append(log, "x" * 40, timestamp_ms=START_MS + number)
    log.roll()
    append(log, "x", timestamp_ms=START_MS + 600)
    log.update_high_watermark(log.log_end_offset)
    log.delete_records(start)
    rebuilt = log.segments[0].offset_index.path
    log.filesystem.operations.clear()
    found = offset_for_timestamp(log, START_MS + 300)
    expected = (START_MS + 500, 0, 0) if start == 0 else (START_MS + 600, 41, 0)
    assert found == expected
    assert not [each for each in log.filesystem.operations if rebuilt in str(each)]
    assert not log.offline


# -- corners found in review ---------------------------------------------------------------------


def test_a_cut_below_the_log_start_takes_the_start_along() -> None:
    bench = LogBench()
    log = bench.open()
    append(log, "a", "b", "c")
    append(log, "d", "e", "f")
    log.update_high_watermark(6)
    assert log.delete_records(4) == (ErrorCode.NONE, 4)
    log.truncate_to(5)  # inside the batch 3..5, which goes as a whole
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 3, 3)
    assert log.read(3, max_bytes=100).error is ErrorCode.NONE
    assert append(log, "x").base_offset == 3
    log = bench.reopen(log)
    assert (log.log_start_offset, values_of(log)) == (3, ["x"])


def test_a_full_disk_does_not_keep_retention_from_freeing_it() -> None:
    filesystem = SimulatedFilesystem()
    log = aged_log(LogBench(filesystem, config=small(retention_ms=10)))
    count = len(log.segments)
    filesystem.faults.append(Fault("create", ".log", errno.ENOSPC))
    assert log.apply_retention(START_MS) == count - 1
    assert len(log.segments) == 1
    assert log.log_start_offset == log.segments[0].base_offset
    assert append(log, "there is room again").base_offset == 50


def test_a_flush_covers_the_last_words_in_the_indexes_of_a_segment_flushed_before() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    append(log, "a")
    log.flush()
    log.roll()
    log.flush()
    for suffix in (".index", ".timeindex"):
        node = filesystem.file_node(bench.path(0, suffix))
        assert node.durable == bytes(node.data), suffix


@pytest.mark.parametrize(("flushed", "bases"), [(3, [0, 3]), (4, [3]), (5, [3])])
def test_a_flush_begins_with_the_segment_of_the_last_record_that_was_flushed(
    flushed: int, bases: list[int]
) -> None:
    bench = LogBench()
    log = bench.open()
    for offset in range(6):
        if offset == 3:
            log.roll()
        if offset == flushed:
            log.flush()
        append(log, "x")
    job = log.start_flush()
    assert job is not None
    assert [file.name for file in job.files] == [bench.path(base) for base in bases]
    job.run()
    log.finish_flush(job)
    assert log.recovery_point == 6


def test_a_late_flush_does_not_write_into_the_directory_of_a_new_log() -> None:
    bench = LogBench()
    old = bench.open()
    append(old, "a", leader_epoch=9)
    job = old.start_flush()
    assert job is not None
    old.abandon()
    bench.filesystem.rename(bench.directory, bench.directory + ".gone-delete")
    new = bench.open()
    append(new, "b", leader_epoch=1)
    new.flush()
    job.run()
    new.abandon()
    assert bench.open(recovery_point=1).leader_epoch_cache.entries == [(1, 0)]


def test_a_cut_inside_a_first_batch_that_begins_below_its_segment() -> None:
    """A follower starts at the leader's log start, which lies inside the leader's batch."""
    bench = LogBench()
    log = bench.open()
    log.truncate_fully_and_start_at(50)
    fetched = batch_of(*"abcdefghijklmnopqrstu", base_offset=40, partition_leader_epoch=1)
    assert log.append_as_follower(fetched, leader_epoch=1).error is ErrorCode.NONE
    assert (log.log_start_offset, log.log_end_offset) == (50, 61)
    log.flush()
    log.truncate_to(55)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (40, 40, 40)
    again = batch_of("x", base_offset=40, partition_leader_epoch=2)
    assert log.append_as_follower(again, leader_epoch=2).error is ErrorCode.NONE
    log.flush()
    log = bench.reopen(log)
    assert not log.offline, log.offline_reason
    assert (log.log_start_offset, values_of(log)) == (40, ["x"])


def test_a_flush_on_a_full_disk_promises_nothing_and_ends_nothing() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    append(log, "a")
    filesystem.faults.append(Fault("append", "leader-epoch-checkpoint", errno.ENOSPC, count=None))
    with pytest.raises(DiskFull):
        log.flush()
    assert not log.offline
    assert log.recovery_point == 0
    append(log, "b")
    filesystem.faults.clear()
    log.flush()
    assert log.recovery_point == 2
    log = bench.reopen(log)
    assert values_of(log) == ["a", "b"]
    assert log.leader_epoch_cache.entries == [(0, 0)]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_cut_on_a_full_disk_does_not_end_the_partition(*, crashes: bool) -> None:
    """A follower whose disk is full has to follow a new leader all the same."""
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    append(log, "a")
    append(log, "b", leader_epoch=1)
    append(log, "c", leader_epoch=2)
    log.flush()
    filesystem.faults.append(Fault("append", "leader-epoch-checkpoint", errno.ENOSPC, count=None))
    assert log.truncate_to(1)
    assert not log.offline, log.offline_reason
    assert log.leader_epoch_cache.entries == [(0, 0)]
    filesystem.faults.clear()
    append(log, "d", leader_epoch=3)
    if not crashes:
        log.flush()
    log = bench.reopen(log)
    assert values_of(log) == ["a", "d"]
    assert log.leader_epoch_cache.entries == [(0, 0), (3, 1)]


def test_a_log_is_closed_cleanly_without_room_for_its_producers() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    options = {"producer_id": 7, "producer_epoch": 0}
    append(log, "a", base_sequence=0, **options)
    log.flush()
    filesystem.faults.append(Fault("append", ".snapshot", errno.ENOSPC, count=None))
    log.close()
    filesystem.faults.clear()
    log = bench.open(clean=True, recovery_point=1)
    retry = log.append_as_leader(
        RecordBatches.read(batch_of("a", base_sequence=0, **options)), leader_epoch=0
    )
    assert retry.is_duplicate


@pytest.mark.parametrize("path_part", [".index", ".timeindex", ".snapshot", ".log"])
def test_rolling_and_flushing_without_descriptors(path_part: str) -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=small())
    log = bench.open()
    fill(log, 20)
    filesystem.faults.append(Fault("open", path_part, errno.EMFILE, count=None))
    filesystem.faults.append(Fault("map", path_part, errno.EMFILE, count=None))
    taken = 20
    for number in range(20):
        result = log.append_as_leader(
            RecordBatches.read(batch_of(f"{number:0100d}")), leader_epoch=0
        )
        taken += result.error is ErrorCode.NONE
    with pytest.raises(DiskFull):
        log.flush()
    log.rest()
    assert not log.offline
    filesystem.faults.clear()
    fill(log, 5)
    assert log.log_end_offset == taken + 5
    assert [r.offset for r in read_all(log)] == list(range(taken + 5))
    assert offset_for_timestamp(log, START_MS) == TimestampedOffset(START_MS, 0, 0)
    log.flush()
    for clean in (False, True):
        log = bench.reopen(log, clean=clean)
        assert [r.offset for r in read_all(log)] == list(range(taken + 5))
