"""Reading: bounds, batch boundaries, zero copy, verification before bytes leave, rolling."""

from __future__ import annotations

import errno
import random

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import iter_batches
from moldau.runtime.files import FileRegion
from moldau.storage import log_segments
from moldau.storage.append import RecordBatches
from moldau.storage.log_config import LogConfig
from moldau.storage.segment import MAX_VERIFIED_RANGES, OpenSegments, VerifiedRanges
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
    read_once,
    values_of,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300, segment_index_bytes=4096)


def test_a_read_is_a_region_of_the_file_from_the_batch_that_holds_the_offset() -> None:
    log = LogBench().open()
    append(log, "a", "b", "c")
    append(log, "d", "e")
    result = log.read(1, max_bytes=1 << 20)
    region = result.records
    assert isinstance(region, FileRegion)
    headers = [header for _, header in iter_batches(bytes(region))]
    assert [h.base_offset for h in headers] == [0, 3]
    assert result.next_offset == 5
    region.release()


def test_offsets_outside_of_the_log() -> None:
    log = LogBench().open()
    append(log, "a", "b")
    assert log.read(3, max_bytes=100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(-1, max_bytes=100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    at_end = log.read(2, max_bytes=100)
    assert (at_end.error, at_end.records, at_end.next_offset) == (ErrorCode.NONE, b"", 2)
    log.update_high_watermark(2)
    log.delete_records(1)
    assert log.read(0, max_bytes=100).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(1, max_bytes=100).error is ErrorCode.NONE


@pytest.mark.parametrize("max_bytes", [1, 150, 400, 1000, 5000])
@pytest.mark.parametrize("drop_hints", [False, True])
def test_reads_are_whole_batches_within_the_bound(max_bytes: int, drop_hints: bool) -> None:
    log = LogBench(config=SMALL).open()
    for number in range(60):
        append(log, *[f"{number:04d}"] * (1 + number % 3), "x" * (number * 7 % 200))
    at, seen = 0, []
    while at < log.log_end_offset:
        if drop_hints:
            for segment in log.segments:
                segment.hints.clear()
        result, found = read_once(log, at, max_bytes=max_bytes)
        assert found
        assert found[0].offset == at
        assert found[-1].offset + 1 == result.next_offset
        size = result.records.length if isinstance(result.records, FileRegion) else 0
        assert size <= max_bytes or len({r.offset for r in found}) <= 4
        seen += [r.offset for r in found]
        at = result.next_offset
    assert seen == list(range(log.log_end_offset))


def test_without_min_one_message_a_large_batch_is_left_out() -> None:
    log = LogBench().open()
    append(log, "x" * 1000)
    assert log.read(0, max_bytes=500, min_one_message=False).records == b""
    assert len(log.read(0, max_bytes=500).records) > 1000
    append(log, "y")
    only_first = log.read(0, max_bytes=1100, min_one_message=False)
    assert only_first.next_offset == 1


@pytest.mark.parametrize("drop_hints", [False, True])
def test_the_upper_bound_is_exclusive_and_on_batch_boundaries(drop_hints: bool) -> None:
    log = LogBench(config=LogConfig(index_interval_bytes=100)).open()
    for number in range(20):
        append(log, f"{number}a", f"{number}b")
    for max_offset in range(41):
        if drop_hints:
            log.segments.active.hints.clear()
        result, found = read_once(log, 0, max_offset=max_offset)
        whole = max_offset // 2 * 2
        assert [r.offset for r in found] == list(range(whole))
        if whole:
            assert whole <= result.next_offset <= max_offset


def test_a_caught_up_read_needs_no_look_at_the_file() -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem).open()
    filesystem.record_reads = True
    for number in range(5):
        append(log, f"{number}")
        before = len(filesystem.operations)
        result = log.read(number, max_bytes=1 << 20, max_offset=number + 1)
        assert result.next_offset == number + 1
        assert filesystem.operations[before:] == []


def test_a_lagging_reader_continues_without_searching() -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem, config=LogConfig(index_interval_bytes=10**9)).open()
    fill(log, 400, value_bytes=2000)
    first = log.read(0, max_bytes=100_000)
    filesystem.record_reads = True
    before = len(filesystem.operations)
    second = log.read(first.next_offset, max_bytes=100_000)
    scanned = len(filesystem.operations) - before
    assert second.next_offset > first.next_offset
    assert scanned <= 60, "scanned from the segment's start instead of the remembered position"


def test_segments_roll_by_size_and_read_across() -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 50)
    assert len(log.segments) > 3
    assert all(s.size_bytes <= 2000 for s in log.segments)
    assert [r.offset for r in read_all(log)] == list(range(50))
    for segment in log.segments[:-1]:
        index_size = bench.filesystem.size_bytes(segment.offset_index.path)
        assert index_size == 8 * segment.offset_index.entry_count > 0
        assert bench.filesystem.size_bytes(segment.time_index.path) % 12 == 0
        assert bench.filesystem.exists(bench.path(log.segments[1].base_offset, ".snapshot"))
    active = log.segments.active
    assert bench.filesystem.size_bytes(active.offset_index.path) == 4096


def test_rolls_by_record_time_and_jitter() -> None:
    config = LogConfig(segment_ms=1000)
    log = LogBench(config=config).open()
    append(log, "a", timestamp_ms=START_MS - 5000)
    append(log, "b", timestamp_ms=START_MS - 4000)
    assert len(log.segments) == 1
    append(log, "c", timestamp_ms=START_MS - 3999)
    assert [s.base_offset for s in log.segments] == [0, 2]
    jittered = LogBench(config=LogConfig(segment_ms=1000, segment_jitter_ms=1000)).open()
    append(jittered, "a", timestamp_ms=START_MS - 5000)
    append(jittered, "b", timestamp_ms=START_MS - 4000)
    assert len(jittered.segments) == 2


def test_a_first_record_of_1970_has_a_timestamp_as_any_other() -> None:
    log = LogBench(config=LogConfig(segment_ms=1000)).open()
    append(log, "a", timestamp_ms=0)
    append(log, "b", timestamp_ms=1000)
    assert len(log.segments) == 1
    append(log, "c", timestamp_ms=1001)
    assert len(log.segments) == 2


def test_rolls_without_timestamps_by_the_clock() -> None:
    bench = LogBench(config=LogConfig(segment_ms=1000))
    log = bench.open()
    append(log, "a", timestamp_ms=-1)
    bench.clock.advance(1001)
    append(log, "b", timestamp_ms=-1)
    assert len(log.segments) == 2


def test_rolls_when_an_index_is_full() -> None:
    log = LogBench(config=LogConfig(index_interval_bytes=0, segment_index_bytes=60)).open()
    fill(log, 30)
    assert len(log.segments) > 3
    assert all(s.time_index.entry_count <= 5 for s in log.segments)
    assert [r.offset for r in read_all(log)] == list(range(30))


def test_rolls_when_relative_offsets_run_out() -> None:
    leader = LogBench().open()
    follower = LogBench(config=LogConfig(cleanup_policy=("compact",))).open()
    append(leader, "a")
    data = bytearray(bytes(leader.read(0, max_bytes=1000).records))
    follower.append_as_follower(data, leader_epoch=0)
    far = 2**31 + 5
    data[:8] = far.to_bytes(8, "big")
    assert follower.append_as_follower(data, leader_epoch=0).base_offset == far
    assert [s.base_offset for s in follower.segments] == [0, far]
    assert [r.offset for r in read_all(follower)] == [0, far]


@pytest.mark.parametrize(("offset", "base_offset"), [(2**31, 1), (2**31 + 1, 2**31 + 1)])
def test_a_segment_begins_at_the_logs_end_as_far_as_it_can_number(
    offset: int, base_offset: int
) -> None:
    follower = LogBench(config=LogConfig(cleanup_policy=("compact",))).open()
    for each in (0, offset):
        batch = batch_of("a", base_offset=each, partition_leader_epoch=0)
        assert follower.append_as_follower(batch, leader_epoch=0).error is ErrorCode.NONE
    assert [s.base_offset for s in follower.segments] == [0, base_offset]
    assert [r.offset for r in read_all(follower)] == [0, offset]


@pytest.mark.parametrize(
    ("offset", "value_bytes", "base_offset"),
    [(2**31 + 5, 1, 2**31 + 5), (0, 900, 0), (2**31 - 1, 1, 0)],
    ids=["too far", "too large", "neither"],
)
def test_an_empty_segment_gives_way_to_one_that_takes_the_batch(
    offset: int, value_bytes: int, base_offset: int
) -> None:
    bench = LogBench(config=LogConfig(segment_bytes=500, cleanup_policy=("compact",)))
    follower = bench.open()
    batch = batch_of("x" * value_bytes, base_offset=offset, partition_leader_epoch=0)
    assert follower.append_as_follower(batch, leader_epoch=0).error is ErrorCode.NONE
    assert bench.names(".log") == [f"{base_offset:020d}.log"]
    assert [r.offset for r in read_all(follower)] == [offset]
    follower = bench.reopen(follower)
    assert [r.offset for r in read_all(follower)] == [offset]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_segment_that_ends_too_early_is_damage_unless_the_log_was_compacted(
    *, is_compacted: bool
) -> None:
    bench = LogBench()
    log = bench.open(first_dirty_offset=0 if is_compacted else None)
    append(log, "a")
    size = log.size_bytes
    append(log, "b")
    log.roll()
    append(log, "c")
    first = log.segments[0]
    first.hints.clear()
    first.cut_damaged_end(size)
    result, found = read_once(log, 1)
    if is_compacted:
        assert [r.offset for r in found] == [2]
    else:
        assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert log.offline


def test_an_explicit_roll_and_its_callback() -> None:
    log = LogBench().open()
    rolled = []
    log.on_roll = lambda each: rolled.append(each.log_end_offset)
    assert not log.roll()
    append(log, "a")
    assert log.roll()
    assert not log.roll()
    assert rolled == [1]
    append(log, "b")
    assert values_of(log) == ["a", "b"]


# -- descriptors ---------------------------------------------------------------------------------


def test_closed_segments_have_a_descriptor_budget() -> None:
    filesystem = SimulatedFilesystem()
    budget = OpenSegments(limit=3)
    log = LogBench(filesystem, config=SMALL).open()
    log.segments.share_open_segments(budget)
    fill(log, 100)
    assert len(log.segments) > 6
    for _ in range(2):
        read_all(log)
        offset_for_timestamp(log, START_MS)
        log.apply_retention(START_MS)
        assert len(budget) <= 3
        assert filesystem.open_files <= 4
        assert filesystem.open_maps <= 8
    held = log.read(0, max_bytes=100).records
    assert isinstance(held, FileRegion)
    read_all(log)
    assert len(held.read()) == held.length, "a region outlives the segment's turn"
    log.close()
    held.release()
    assert filesystem.open_files == 0
    assert filesystem.open_maps == 0


# -- verification --------------------------------------------------------------------------------


def test_bytes_of_an_earlier_process_are_checked_once_before_they_leave() -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 40)
    log = bench.reopen(log, clean=True)
    first = log.read(0, max_bytes=600)
    assert first.verification is not None
    first.verification.run()
    assert log.finish_verification(first).verification is None
    assert log.read(0, max_bytes=600).verification is None
    assert log.read(0, max_bytes=1500).verification is not None
    append(log, "own")
    assert log.read(40, max_bytes=600).verification is None
    assert len(values_of(log)) == 41
    assert log.read(0, max_bytes=10**6).verification is None


def test_one_answer_is_verified_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_segments, "VERIFY_LIMIT_BYTES", 500)
    bench = LogBench()
    log = bench.open()
    fill(log, 40)
    log = bench.reopen(log, clean=True)
    result = log.read(0, max_bytes=1 << 20)
    assert 0 < len(result.records) <= 500
    assert len(values_of(log)) == 40


@pytest.mark.parametrize("position", [0, 7, 9, 13, 15, 16, 17, 21, 24, 57, 80, 150])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_wrong_bytes_below_the_recovery_point_are_never_served(position: int, where: str) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    neighbour = LogBench(bench.filesystem, "/data/topic-1", bench.clock, SMALL).open()
    append(neighbour, "fine")
    fill(log, 40)
    expected = read_all(log)
    segment = log.segments[1]
    batch_count = 11
    size = segment.size_bytes // batch_count
    number = {"first": 0, "middle": 5, "last": batch_count - 1}[where]
    log.close()
    at = number * size + position
    byte = bench.filesystem.read_bytes(segment.path)[at]
    bench.overwrite(segment.path, at, bytes([byte ^ 0x21]))

    log = bench.open(clean=True, recovery_point=40)
    served = []
    offset = 0
    while not log.offline and offset < 40:
        result, found = read_once(log, offset, max_bytes=700)
        served += found
        if result.error is ErrorCode.NONE:
            assert found
            offset = result.next_offset
    assert log.offline, f"byte {position} of the {where} batch went unnoticed"
    assert served == expected[: len(served)], "wrong bytes were served"
    assert values_of(neighbour) == ["fine"]


def test_a_cut_while_a_check_is_under_way_sends_the_reader_back() -> None:
    bench = LogBench()
    log = bench.open()
    fill(log, 20)
    log = bench.reopen(log, clean=True)
    result = log.read(0, max_bytes=10_000)
    log.truncate_to(10)
    append(log, "new")
    assert result.verification is not None
    result.verification.run()
    assert log.finish_verification(result).records == b""
    assert not log.offline
    assert len(read_all(log)) == 11


def test_a_read_error_takes_the_partition_offline() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    fill(log, 5)
    log = bench.reopen(log, clean=True)
    result = log.read(0, max_bytes=10_000)
    filesystem.faults.append(Fault("pread", ".log", errno.EIO))
    assert result.verification is not None
    result.verification.run()
    assert log.finish_verification(result).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline


def test_a_damaged_offset_index_is_rebuilt() -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 40)
    index = log.segments[1].offset_index
    assert index.entry_count >= 3
    path = index.path
    log.close()
    bench.overwrite(path, 8 + 4, (123).to_bytes(4, "big"))
    log = bench.open(clean=True, recovery_point=40)
    assert [r.offset for n in range(40) for r in read_once(log, n, max_bytes=1)[1]] == list(
        range(40)
    )
    assert not log.offline


def test_verified_ranges_merge_and_stay_few() -> None:
    ranges = VerifiedRanges(trusted_from=1000)
    assert ranges.covers(1000, 5000)
    assert not ranges.covers(999, 1001)
    ranges.add(0, 10)
    ranges.add(20, 30)
    assert not ranges.covers(5, 25)
    ranges.add(10, 20)
    assert ranges.covers(0, 30)
    ranges.add(900, 1000)
    assert ranges.trusted_from == 900
    many = VerifiedRanges(trusted_from=10**9)
    for number in range(2 * MAX_VERIFIED_RANGES):
        many.add(number * 10, number * 10 + 5)
    assert len(many._starts) <= MAX_VERIFIED_RANGES


def test_a_batch_refused_by_the_bound_does_not_block_the_one_before() -> None:
    log = LogBench().open()
    log.append_as_leader(RecordBatches.read(batch_of("a") + batch_of("b" * 5000)), leader_epoch=0)
    result, found = read_once(log, 0, max_bytes=1000)
    assert [r.offset for r in found] == [0]
    assert result.next_offset == 1


def test_a_range_just_verified_is_not_the_one_forgotten() -> None:
    ranges = VerifiedRanges(trusted_from=10**9)
    for number in range(MAX_VERIFIED_RANGES):
        ranges.add(number * 1000, number * 1000 + 500)
    small = MAX_VERIFIED_RANGES * 1000
    ranges.add(small, small + 10)
    assert ranges.covers(small, small + 10), "else its reader has it verified for ever"
    assert len(ranges._starts) <= MAX_VERIFIED_RANGES


@pytest.mark.parametrize("seed", range(10))
def test_verified_ranges_are_the_bytes_that_were_checked(seed: int) -> None:
    rng = random.Random(drawn_seed(seed))
    trusted_from = rng.randint(0, 40)
    ranges = VerifiedRanges(trusted_from)
    checked = set(range(trusted_from, 60))
    for _ in range(12):
        start = rng.randint(0, 40)
        end = start + rng.randint(1, 8)
        if rng.random() < 0.15:
            ranges.truncate(start)
            checked |= set(range(start, 60))
        else:
            ranges.add(start, end)
            checked |= set(range(start, end))
        for at in range(41):
            for stop in (at + 1, at + 4):
                assert ranges.covers(at, stop) is (set(range(at, stop)) <= checked)
    assert ranges.covers(5, 5)
    assert sorted(ranges._starts) == ranges._starts
    assert all(end < start for end, start in zip(ranges._ends, ranges._starts[1:], strict=False))


def test_records_of_1970_have_a_largest_timestamp() -> None:
    log = LogBench().open()
    append(log, "none", timestamp_ms=-1)
    assert offset_of_max_timestamp(log) is None
    append(log, "first", timestamp_ms=0)
    append(log, "second", timestamp_ms=0)
    found = offset_of_max_timestamp(log)
    assert found is not None
    assert (found.timestamp_ms, found.offset) == (0, 1)


def test_where_a_read_ends_is_remembered_for_the_next_one() -> None:
    bench = LogBench()
    log = bench.open()
    fill(log, 10)
    log = bench.reopen(log, clean=True)
    segment = log.segments.active
    assert not segment.hints
    size_bytes = segment.size_bytes // 10
    assert log.read(2, max_bytes=3 * size_bytes).next_offset == 5
    assert segment.hints == {5: 5 * size_bytes}
    assert log.read(5, max_bytes=100 * size_bytes).next_offset == 10
    assert list(segment.hints) == [5], "the end of the segment is known anyway"


def test_bytes_are_cold_far_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance counts in bytes, up to the end of the second segment behind, or in segments."""
    bench = LogBench(config=LogConfig(segment_bytes=400))
    log = bench.open()
    fill(log, 20)
    assert len(read_all(log)) == 20, "and what was read is verified"
    size_bytes = log.segments[0].size_bytes // 2
    assert [each.size_bytes for each in log.segments] == [2 * size_bytes] * 10

    def cold(limit_bytes: int) -> list[bool]:
        monkeypatch.setattr(log_segments, "COLD_AFTER_BYTES", limit_bytes)
        found = []
        for offset in range(20):
            region = log.read(offset, max_bytes=1).records
            assert isinstance(region, FileRegion)
            found.append(region.is_cold)
            region.release()
        return found

    assert cold(1 << 30) == [True] * 14 + [False] * 6, "three more segments follow"
    assert cold(6 * size_bytes) == [True] * 14 + [False] * 6
    assert cold(6 * size_bytes - 1) == [True] * 15 + [False] * 5
    assert cold(3 * size_bytes) == [True] * 17 + [False] * 3
    assert cold(2 * size_bytes) == [True] * 18 + [False] * 2
    assert cold(2 * size_bytes - 1) == [True] * 19 + [False]
