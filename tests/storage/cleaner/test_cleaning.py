"""What stays of a log, what goes, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    Codec,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    decode_columns,
    encode_batch,
    read_batch_header,
)
from moldau.protocol.records.header import write_crc
from moldau.protocol.types import TopicPartition
from moldau.runtime.restarts import FIRST_PAUSE_MS
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.cleaner import cleaning
from moldau.storage.cleaner.job import CleaningEvent, CleaningFailed, CleaningJob
from moldau.storage.cleaner.log_cleaner import MAX_LOST_WORKERS
from moldau.storage.log_config import MIN_MAP_BYTES, CleanerSettings
from tests.storage.cleaner.cleaner_bench import (
    ABORT,
    COMMIT,
    CleanerBench,
    PausingWorker,
    committed,
    newest_of,
    told,
)
from tests.storage.log_fixtures import offset_for_timestamp, read_once
from tests.storage.storage_fixtures import topic_id


@pytest.mark.parametrize("codec", list(Codec))
async def test_the_newest_record_of_each_key_stays_where_it_was(codec: Codec) -> None:
    bench = await CleanerBench().start()
    for number in range(40):
        keys = [f"k{(number * 7 + each) % 13}" for each in range(4)]
        bench.append(*[(key, f"v{number}") for key in keys], codec=codec)
    before = {told(r) for h, records in bench.batches() for r in records}
    newest = bench.newest()
    size_bytes, end = bench.log.size_bytes, bench.log.log_end_offset
    await bench.clean()
    assert bench.log.size_bytes < size_bytes
    assert (bench.log.log_start_offset, bench.log.log_end_offset) == (0, end)
    assert bench.newest() == newest
    after = {told(r) for h, records in bench.batches() for r in records}
    assert after <= before
    clean = [r for r in after if r.offset < bench.log.segments.active.base_offset]
    assert len({r.key for r in clean}) == len(clean)
    codecs = {h.codec for h, records in bench.batches() if records}
    assert codecs == {codec}
    assert bench.manager.cleaner.figures.cleaned_count >= 1


async def test_batches_too_large_together_are_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offsets of columns have 32 bits."""
    sizes: list[int] = []

    def decode(data: Any, positions: Any) -> Any:
        sizes.append(len(positions))
        if len(positions) > 1:
            raise InvalidBatch(InvalidBatchReason.TOO_LARGE, "the test says so")
        return decode_columns(data, positions)

    monkeypatch.setattr(cleaning, "decode_columns", decode)
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append(*[(f"k{(number * 7 + each) % 13}", f"v{number}") for each in range(4)])
    newest = bench.newest()
    await bench.clean()
    assert max(sizes) > 1
    assert bench.newest() == newest
    clean = [offset for offset in bench.offsets() if offset < bench.log.segments.active.base_offset]
    assert 0 < len(clean) <= 13


async def test_a_cleaning_keeps_no_file_open() -> None:
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    open_before = bench.filesystem.open_files
    await bench.clean()
    assert bench.log.segments.replacement_count > 0
    assert bench.filesystem.open_files <= open_before
    await bench.manager.shutdown(1)
    assert (bench.filesystem.open_files, bench.filesystem.open_maps) == (0, 0)


async def test_a_reader_finds_its_way_from_any_offset() -> None:
    bench = await CleanerBench().start()
    for number in range(60):
        bench.append((f"k{number % 5}", f"v{number}"), (f"once{number // 20}", "x" * 40))
    await bench.clean()
    everything = committed(bench.log)
    for start in range(bench.log.log_end_offset):
        assert committed(bench.log, start) == [r for r in everything if r.offset >= start]
    for record in everything:
        found = offset_for_timestamp(bench.log, record.timestamp_ms)
        assert found is not None
        assert found.offset <= record.offset
    # Where nothing is any more the next record is found.
    first = everything[0]
    assert first.offset > 0
    found = offset_for_timestamp(bench.log, 0)
    assert found is not None
    assert found.offset == first.offset


async def test_who_reads_an_old_segment_may_finish() -> None:
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 3}", f"v{number:030}"))
    result = bench.log.read(0, max_bytes=600)
    kept = bytes(result.records)
    await bench.clean()
    bench.clock.advance(10_000)
    await bench.clean()
    assert bytes(result.records) == kept
    assert not isinstance(result.records, bytes)
    result.records.release()


async def test_a_tombstone_outlives_its_key_by_delete_retention_ms() -> None:
    bench = await CleanerBench().start()
    bench.append(("gone", "v"), ("kept", "v"))
    tombstone = bench.append(("gone", None), ("other", "v")) + 0
    bench.roll()
    bench.append(("x", "y"))
    await bench.clean()
    assert tombstone in bench.offsets()
    assert 0 not in bench.offsets()
    header = next(h for h, _ in bench.batches() if h.base_offset == tombstone)
    assert header.has_delete_horizon
    assert header.base_timestamp_ms == bench.clock.now_ms() + 1000
    timestamps = [r.timestamp_ms for h, records in bench.batches() for r in records]
    # The next cleanings leave it, up to the horizon; nothing prolongs it.
    for elapsed_ms in (999, 1):
        bench.clock.advance(elapsed_ms)
        bench.append(("x", "y"))
        bench.roll()
        await bench.clean()
        assert (tombstone in bench.offsets()) is (elapsed_ms == 999)
    assert bench.newest().keys() == {b"kept", b"other", b"x"}
    left = [r.timestamp_ms for h, records in bench.batches() for r in records]
    assert set(timestamps) & set(left), "timestamps survive the new base"
    assert (await _stamp(bench, b"other")) == (await _stamp(bench, b"other", timestamps))


async def _stamp(bench: CleanerBench, key: bytes, among: list[int] | None = None) -> int:
    stamp = bench.newest()[key].timestamp_ms
    assert among is None or stamp in among
    return stamp


async def test_tombstones_go_in_time_without_new_records() -> None:
    bench = await CleanerBench().start()
    bench.append(("gone", "v"), ("kept", "v"))
    bench.append(("gone", None))
    bench.roll()
    for _ in range(3):
        await bench.clean()
    assert bench.manager.cleaner.figures.cleaned_count == 1
    bench.clock.advance(1000)
    for _ in range(3):
        await bench.clean()
    assert bench.offsets() == [1]
    assert bench.manager.cleaner.figures.cleaned_count == 2


async def test_aborted_records_go_their_marker_later() -> None:
    bench = await CleanerBench().start()
    bench.append(("a", "old"))
    bench.append(("a", "aborted"), ("b", "aborted"), producer_id=7, transactional=True)
    marker = bench.end(7, ABORT)
    bench.append(("c", "committed"), producer_id=8, transactional=True)
    commit = bench.end(8, COMMIT)
    # Later batches of both, so that these are not their last ones.
    for producer_id in (7, 8):
        bench.append(("d", "x"), producer_id=producer_id, transactional=True)
        bench.end(producer_id, COMMIT)
    bench.roll()
    bench.append(("z", "z"))
    await bench.clean()
    assert bench.newest()[b"a"].value == b"old"
    assert not any(r.value == b"aborted" for r in _all(bench))
    control = [h.base_offset for h, records in bench.batches() if h.is_control and records]
    assert {marker, commit} <= set(control), "as long as somebody may still look for it"
    assert [each.last_offset for each in bench.log.aborted_transactions(0, 100)] == [marker]
    # Second time: the abort marker ends nothing any more and gets its horizon.
    bench.append(("z", "z"))
    bench.roll()
    await bench.clean()
    assert bench.log.aborted_transactions(0, 100) == []
    header = next(h for h, _ in bench.batches() if h.base_offset == marker)
    assert header.has_delete_horizon
    assert header.record_count == 1
    bench.clock.advance(1000)
    bench.append(("z", "z"))
    bench.roll()
    await bench.clean()
    assert all(h.base_offset != marker for h, _ in bench.batches())
    assert any(h.base_offset == commit for h, _ in bench.batches()), "of c something is left"


def _all(bench: CleanerBench) -> list[object]:
    return [r for h, records in bench.batches() if not h.is_control for r in records]


async def test_the_last_batch_of_a_producer_stays_as_a_header() -> None:
    bench = await CleanerBench().start()
    last = bench.append(("a", "1"), ("b", "1"), ("b", "2"), producer_id=5)
    bench.append(("a", "2"), ("b", "3"))
    bench.roll()
    bench.append(("x", "y"))
    await bench.clean()
    header, records = next(each for each in bench.batches() if each[0].base_offset == last)
    assert records == []
    assert (header.last_offset, header.producer_id, header.base_sequence) == (last + 2, 5, 0)
    await bench.restart(clean=False)
    entry = bench.log.producer_state.producers[5]
    assert (entry.last_sequence, entry.last_offset) == (2, last + 2)
    bench.append(("a", "3"), producer_id=5)


async def test_an_open_transaction_stops_the_cleaning() -> None:
    bench = await CleanerBench().start()
    bench.append(("a", "1"))
    bench.append(("a", "2"))
    bench.roll()
    bench.append(("a", "3"), producer_id=9, transactional=True)
    bench.roll()
    bench.append(("a", "4"))
    bench.roll()
    bench.append(("a", "5"))
    await bench.clean()
    assert bench.offsets() == [1, 2, 3, 4]
    bench.end(9, COMMIT)
    bench.roll()
    await bench.clean()
    assert bench.offsets() == [4]


async def test_the_active_segment_and_young_records_are_left_alone() -> None:
    bench = await CleanerBench().start()
    bench.append(("a", "1"))
    bench.append(("a", "2"))
    await bench.clean()
    assert bench.offsets() == [0, 1]
    await bench.configure(min_compaction_lag_ms=500)
    bench.roll()
    bench.append(("a", "3"))
    await bench.clean()
    assert bench.offsets() == [0, 1, 2]
    bench.clock.advance(501)
    await bench.clean()
    assert bench.offsets() == [1, 2]


async def test_dirty_ratio_and_max_lag_decide_when() -> None:
    bench = await CleanerBench().start()
    await bench.configure(min_cleanable_dirty_ratio=0.9)
    for _ in range(2):
        for number in range(30):
            bench.append((f"k{number}", "v" * 20))
        bench.roll()
        await bench.clean()
    assert bench.manager.cleaner.figures.cleaned_count == 1, "the second time half is clean"
    assert 0.4 < bench.manager.cleaner.figures.max_dirty_ratio < 0.6
    await bench.configure(max_compaction_lag_ms=1000)
    bench.clock.advance(1500)
    await bench.clean()
    assert bench.manager.cleaner.figures.cleaned_count == 2
    assert len(bench.offsets()) == 30


async def test_max_lag_also_ends_a_segment() -> None:
    bench = await CleanerBench().start()
    await bench.configure(max_compaction_lag_ms=1000)
    bench.append(("a", "1"))
    bench.clock.advance(1500)
    bench.append(("a", "2"))
    assert len(bench.log.segments) == 2


async def test_a_full_key_table_cleans_in_several_rounds() -> None:
    settings = CleanerSettings(dedupe_buffer_bytes=MIN_MAP_BYTES, buffer_load_factor=0.05)
    bench = CleanerBench(settings=settings)
    await bench.start()
    await bench.configure(segment_bytes=40_000, segment_index_bytes=4096)
    keys = [f"key-{number}" for number in range(3000)]
    for value in ("old", "new"):
        for start in range(0, len(keys), 100):
            bench.append(*[(key, value) for key in keys[start : start + 100]])
    bench.roll()
    newest = bench.newest()
    await bench.clean()
    assert bench.manager.cleaner.figures.cleaned_count > 1
    assert bench.newest() == newest
    assert len(bench.offsets()) == len(keys)
    assert bench.log.first_dirty_offset == bench.log.log_end_offset


async def test_segments_are_joined_up_to_segment_bytes() -> None:
    bench = await CleanerBench().start()
    for number in range(150):
        bench.append((f"k{number % 4}", "v" * 40))
    count = len(bench.log.segments)
    await bench.clean()
    bench.append(("x", "y"))
    bench.roll()
    await bench.clean()
    assert len(bench.log.segments) < count / 2
    assert all(segment.size_bytes <= 1500 for segment in bench.log.segments)
    ends = [bench.log.end_offset_of(index) for index in range(len(bench.log.segments))]
    starts = [segment.base_offset for segment in bench.log.segments]
    assert starts[1:] == ends[:-1]


async def test_old_files_go_after_their_delay() -> None:
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    await bench.clean()
    assert bench.names(".deleted")
    assert not bench.names(".cleaned")
    assert not bench.names(".swap")
    bench.clock.advance(500)
    await bench.clean()
    assert not bench.names(".deleted")


async def test_how_far_it_came_survives_a_restart_and_a_change_of_policy() -> None:
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    await bench.clean()
    first_dirty = bench.log.first_dirty_offset
    assert first_dirty == bench.log.segments.active.base_offset
    offsets = bench.offsets()
    await bench.restart()
    assert bench.log.first_dirty_offset == first_dirty
    # Holes are no damage, whatever the policy says by now.
    bench.config = type(bench.config)(segment_bytes=1500, segment_index_bytes=240, retention_ms=-1)
    for clean in (True, False):
        await bench.restart(clean=clean)
        assert not bench.log.offline, bench.log.offline_reason
        assert bench.offsets() == offsets
        assert [r.offset for r in committed(bench.log)] == offsets


async def test_a_truncation_takes_the_mark_back() -> None:
    bench = await CleanerBench().start()
    for number in range(60):
        bench.append((f"k{number % 4}", f"{number:040}"))
    await bench.clean()
    assert bench.log.first_dirty_offset is not None
    cut = bench.log.segments[-1].base_offset - 5
    bench.log.truncate_to(cut)
    assert bench.log.first_dirty_offset <= cut
    for number in range(60):
        bench.append((f"k{number % 4}", f"{number:040}"))
    newest = bench.newest()
    bench.roll()
    await bench.clean()
    assert bench.newest() == newest
    assert len(bench.offsets()) == 4


async def paused_cleaning(free: int) -> tuple[CleanerBench, PausingWorker]:
    """A cleaning that has put `free` new segments in place."""
    bench = CleanerBench()
    worker = bench.worker = PausingWorker(bench.filesystem, free)
    await bench.start()
    for number in range(60):
        bench.append((f"k{number % 4}", f"{number:040}"))
    await bench.begin_cleaning()
    return bench, worker


@pytest.mark.parametrize("free", [0, 1, 2])
async def test_a_truncation_voids_a_cleaning_under_way(free: int) -> None:
    bench, worker = await paused_cleaning(free)
    bench.log.truncate_to(50)
    newest = bench.newest()
    bench.append(("k1", "after"))
    worker.free = 100
    worker.gate.set()
    await bench.clean()
    # What was cut off cannot be read any more, else the worker hears of it.
    assert worker.aborted_count == min(free, 1)
    assert bench.newest() == newest | {b"k1": bench.newest()[b"k1"]}
    assert bench.log.log_end_offset == 51
    assert not bench.manager.cleaner.uncleanable
    assert not bench.names(".cleaned")
    await bench.restart(clean=False)
    assert bench.log.log_end_offset == 51


@pytest.mark.parametrize("free", [0, 1])
async def test_a_deleted_partition_is_not_cleaned_on(free: int) -> None:
    bench, worker = await paused_cleaning(free)
    bench.manager.delete(bench.log.topic_partition)
    assert worker.aborted_count == 1
    again = bench.manager.get_or_create(bench.log.topic_partition, topic_id(2))
    await bench.clean()
    assert not bench.manager.cleaner.uncleanable
    assert not bench.names(".cleaned")
    assert again.first_dirty_offset is None
    assert again.log_end_offset == 0


async def test_records_deleted_during_a_cleaning_stay_deleted() -> None:
    bench, worker = await paused_cleaning(1)
    bench.log.delete_records(40)
    newest = bench.newest()
    bench.clock.advance(400_000)  # retention leaves a log alone that is being cleaned
    worker.free = 100
    worker.gate.set()
    await bench.clean()
    assert bench.log.log_start_offset == 40
    assert bench.newest() == newest
    assert not bench.manager.cleaner.uncleanable


async def test_appends_and_reads_go_on_during_a_cleaning() -> None:
    bench, worker = await paused_cleaning(1)
    bench.append(("k1", "meanwhile"))
    bench.roll()
    bench.append(("k2", "meanwhile"))
    newest = bench.newest()
    worker.free = 100
    worker.gate.set()
    await bench.clean()
    assert bench.newest() == newest


async def test_a_stop_does_not_wait_for_a_cleaning() -> None:
    bench, worker = await paused_cleaning(1)
    newest = bench.newest()
    await bench.manager.shutdown(1)
    assert worker.aborted_count == 1
    bench.worker = None
    await bench.start()
    bench.log.update_high_watermark(bench.log.log_end_offset)
    assert bench.newest() == newest


async def test_delete_records_and_retention_go_on() -> None:
    bench = await CleanerBench().start()
    await bench.configure(cleanup_policy=("compact", "delete"), retention_bytes=2000)
    for number in range(80):
        bench.append((f"once{number}", "v" * 60))
    size_bytes = bench.log.size_bytes
    await bench.clean()
    # Nothing is old, so retention by size had its turn when the cleaning was done.
    assert 2000 <= bench.log.size_bytes < min(size_bytes, 2000 + 1500)
    start = bench.log.log_start_offset
    assert start > 0
    error, low_watermark = bench.log.delete_records(start + 5)
    assert (error, low_watermark) == (ErrorCode.NONE, start + 5)
    newest = bench.newest()
    bench.append(("x", "y"))
    bench.roll()
    await bench.clean()
    assert bench.newest() == newest | {b"x": bench.newest()[b"x"]}
    assert bench.log.log_start_offset >= start + 5


FAR, NEAR, EPOCH, CONTENTS = (1, 16), (7, 4), (12, 1), (60, 255)


@pytest.mark.parametrize(("byte", "flip"), [FAR, NEAR, EPOCH, CONTENTS])
async def test_a_damaged_batch_takes_the_log_offline_and_is_not_compacted(
    byte: int, flip: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The way of a damaged replica (ADR 11), whether or not a CRC covers what is wrong."""
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    node = bench.filesystem.file_node(bench.log.segments[1].path)
    third = read_batch_header(node.data).size_bytes * 2
    node.data[third + byte] ^= flip
    before = bench.filesystem.files()
    for _ in range(3):
        await bench.clean()
    assert bench.log.offline
    assert "damage found by its compaction" in bench.log.offline_reason
    logs = {name: data for name, data in bench.filesystem.files().items() if ".log" in name}
    assert logs == {name: data for name, data in before.items() if ".log" in name}
    told = [each for each in caplog.records if "compact" in each.getMessage()]
    assert len(told) == 1, "once, however often the cleaner looks"
    assert bench.manager.cleaner.figures.cleaned_count == 0


class LostWorker:
    """Its process ends in the middle of each job, as by a fault of ours or for want of memory."""

    def __init__(self) -> None:
        self.job_count = 0

    async def start(self, job: CleaningJob) -> LostWorker:
        self.job_count += 1
        return self

    async def next_event(self) -> CleaningEvent:
        raise CleaningFailed("its process has ended", is_worker_lost=True)

    def abort(self) -> None:
        pass

    async def rest(self) -> None:
        pass


async def test_a_log_that_ends_the_process_each_time_is_given_up() -> None:
    bench = CleanerBench()
    worker = bench.worker = LostWorker()  # type: ignore[assignment]
    await bench.start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    for _ in range(10):
        await bench.clean()
    assert worker.job_count == MAX_LOST_WORKERS
    assert "3 times in a row" in bench.manager.cleaner.uncleanable[bench.log.topic_partition]
    assert not bench.log.offline


async def test_records_that_cannot_be_decoded_make_the_log_uncleanable() -> None:
    """Their CRC matches: a producer sent them so, and they are served so."""
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    node = bench.filesystem.file_node(bench.log.segments[1].path)
    node.data[BATCH_HEADER_SIZE] ^= 0xFF
    write_crc(node.data, 0, read_batch_header(node.data).size_bytes)
    before = bench.filesystem.files()
    await bench.clean()
    assert not bench.log.offline
    assert "record" in bench.manager.cleaner.uncleanable[bench.log.topic_partition]
    assert bench.manager.cleaner.uncleanable_by_directory() == {"/data": (1, bench.log.size_bytes)}
    logs = {name: data for name, data in bench.filesystem.files().items() if ".log" in name}
    assert logs == {name: data for name, data in before.items() if ".log" in name}
    await bench.clean()
    assert bench.manager.cleaner.figures.cleaned_count == 0
    # Gone with the partition.
    bench.manager.delete(bench.log.topic_partition)
    assert not bench.manager.cleaner.uncleanable


async def test_a_full_disk_is_no_damage() -> None:
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    newest = bench.newest()
    bench.filesystem.capacity_bytes = bench.filesystem.used_bytes() + 100
    await bench.clean()
    assert not bench.manager.cleaner.uncleanable
    assert not bench.log.offline
    assert not bench.names(".cleaned")
    bench.filesystem.capacity_bytes = None
    await bench.clean()
    assert bench.newest() == newest
    assert bench.manager.cleaner.figures.cleaned_count == 1


async def test_without_the_cleaner_nothing_is_cleaned() -> None:
    bench = await CleanerBench(settings=CleanerSettings(enabled=False)).start()
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    await bench.clean()
    assert len(bench.offsets()) == 40


async def test_settings_change_while_it_runs() -> None:
    bench = await CleanerBench().start()
    cleaner = bench.manager.cleaner
    cleaner.update_settings(CleanerSettings(thread_count=3, backoff_ms=100))
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    await bench.clean()
    assert cleaner.figures.cleaned_count == 1
    cleaner.update_settings(CleanerSettings(thread_count=0))
    for number in range(40):
        bench.append((f"k{number % 4}", "v" * 40))
    await bench.clean()
    assert cleaner.figures.cleaned_count == 1
    cleaner.update_settings(CleanerSettings(thread_count=1))
    await bench.clean()
    assert cleaner.figures.cleaned_count == 2


async def test_records_need_keys() -> None:
    bench = await CleanerBench().start()
    from moldau.protocol.records import Record, encode_batch

    for codec in Codec:
        data = encode_batch(
            [
                Record(0, 1, b"k", b"v"),
                Record(1, 1, None, b"v"),
                Record(2, 1, b"", b"v"),
                Record(3, 1, None, None),
            ],
            codec=codec,
        )
        result = bench.log.append_as_leader(RecordBatches.read(data), leader_epoch=0)
        assert result.error is ErrorCode.INVALID_RECORD
        assert [index for index, _ in result.record_errors] == [1, 3]
        assert result.keyless_count == 2
    assert bench.log.log_end_offset == 0
    offset = bench.append(("", "an empty key is a key"), origin=AppendOrigin.COORDINATOR)
    assert [r.key for r in read_once(bench.log, offset)[1]] == [b""]
    assert newest_of(committed(bench.log)).keys() == {b""}


async def test_a_log_whose_compaction_raises_is_left_alone_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: told.append(context["exception"])
    )
    bench = await CleanerBench().start()
    for number in range(40):
        bench.append((f"k{number % 3}", f"v{number:030}"))
    cleaner = bench.manager.cleaner
    carry_out = cleaner._carry_out

    async def failing(worker: Any, cleaning: Any) -> Any:
        if cleaning.log is bench.log:
            raise KeyError("compaction")
        return await carry_out(worker, cleaning)

    monkeypatch.setattr(cleaner, "_carry_out", failing)
    other = bench.manager.get_or_create(TopicPartition("other", 0), topic_id(9))
    for _ in range(20):
        sent = encode_batch([Record(0, bench.clock.now_ms(), b"k", b"v" * 100)])
        assert (
            other.append_as_leader(RecordBatches.read(sent), leader_epoch=0).error is ErrorCode.NONE
        )
    other.update_high_watermark(other.log_end_offset)
    other.roll()
    await bench.clean()
    assert [str(error) for error in told] == ["'compaction'"]
    assert cleaner.uncleanable.keys() == {bench.log.topic_partition}
    bench.clock.advance(FIRST_PAUSE_MS)
    await bench.clean()
    assert cleaner.figures.cleaned_count == 1
    assert len(told) == 1
