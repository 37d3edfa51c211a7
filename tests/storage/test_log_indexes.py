"""Offset, time and transaction index files; the set of open segments; hints and scans."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.records import InvalidBatch
from moldau.storage import batch_scan, indexes
from moldau.storage.batch_scan import BatchOrder, scan_headers, scan_verified
from moldau.storage.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from moldau.storage.leader_epoch_cache import LeaderEpochCache
from moldau.storage.segment import OpenSegments
from moldau.storage.verify import Verification
from tests.storage.log_fixtures import LogBench, append, batch_of, read_once
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

BASE = 1000


def filesystem() -> SimulatedFilesystem:
    made = SimulatedFilesystem()
    made.mkdirs("/d")
    return made


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=40))
def test_offset_index_finds_the_last_entry_at_or_before(steps: list[tuple[int, int]]) -> None:
    index = OffsetIndex(filesystem(), "/d/i.index", BASE)
    index.open_for_append(8 * 64)
    entries = [(BASE, 0)]
    for offset_step, position_step in steps:
        entry = (entries[-1][0] + offset_step, entries[-1][1] + position_step)
        assert index.append(*entry)
        entries.append(entry)
    for trimmed in (False, True):
        if trimmed:
            index.trim()
        for offset in {e[0] + d for e in entries for d in (-1, 0, 1)}:
            if offset >= BASE:
                assert index.lookup(offset) == max(e for e in entries if e[0] <= offset)
        for position in {e[1] + d for e in entries for d in (0, 1)}:
            assert index.position_at_most(position) == max(p for _, p in entries if p <= position)
    index.unmap()


def test_offset_index_bytes_and_truncation() -> None:
    disk = filesystem()
    index = OffsetIndex(disk, "/d/i.index", BASE)
    index.open_for_append(1000)
    assert disk.size_bytes("/d/i.index") == 1000
    for n in range(1, 6):
        index.append(BASE + n * 10, n * 100)
    index.truncate_to(BASE + 40)
    assert (index.entry_count, index.lookup(2**62)[0]) == (3, BASE + 30)
    index.append(BASE + 35, 350)
    index.trim()
    numbers = (10, 100, 20, 200, 30, 300, 35, 350)
    assert disk.read_bytes("/d/i.index") == b"".join(n.to_bytes(4, "big") for n in numbers)
    index.truncate_to(BASE + 20)
    assert disk.size_bytes("/d/i.index") == 8
    assert disk.open_maps <= 1
    index.unmap()


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        b"\0" * 16,
        b"\0\0\0\5\0\0\0\7" * 2,
        b"\xff" * 8,
        b"\0\0\0\1\0\0\1\0",
        b"\xff\xff\xff\xfe\0\0\0\7",
        b"\0\0\0\5\xff\xff\xff\xfe",
    ],
)
def test_impossible_offset_indexes_are_noticed(data: bytes) -> None:
    disk = filesystem()
    disk.put("/d/i.index", data)
    assert not OffsetIndex(disk, "/d/i.index", BASE).is_sane(log_size_bytes=200)


@pytest.mark.parametrize("data", [b"\0" * 13, b"\0" * 24, b"\xff" * 12, b"\xff" * 8 + b"\0\0\0\5"])
def test_impossible_time_indexes_are_noticed(data: bytes) -> None:
    disk = filesystem()
    disk.put("/d/i.timeindex", data)
    assert not TimeIndex(disk, "/d/i.timeindex", BASE).is_sane()


def test_what_indexes_may_hold_is_no_damage() -> None:
    disk = filesystem()
    disk.put("/d/i.index", b"\0" * 8)
    assert OffsetIndex(disk, "/d/i.index", BASE).is_sane(log_size_bytes=200)
    times = TimeIndex(disk, "/d/i.timeindex", BASE)
    times.open_for_append(12 * 5)
    times.maybe_append(100, BASE + 1)
    times.maybe_append(200, BASE + 1)
    times.trim()
    assert times.entry_count == 2
    assert times.is_sane()
    times.unmap()


@pytest.mark.parametrize(
    ("entries", "is_sane"),
    [
        ([(0, 199)], True),
        ([(5, 0)], True),
        ([(0, 200)], False),
        ([(4, 0), (5, 1)], True),
        ([(4, 1), (5, 1)], False),
        ([(4, 2), (5, 1)], False),
        ([(5, 1), (5, 2)], False),
        ([(6, 1), (5, 2)], False),
        ([(-1, 1), (5, 2)], False),
        ([(4, -1), (5, 2)], False),
    ],
)
def test_the_ends_of_an_offset_index_ascend_in_both_columns(
    entries: list[tuple[int, int]], is_sane: bool
) -> None:
    disk = filesystem()
    disk.put("/d/i.index", b"".join(OffsetIndex.ENTRY.pack(*each) for each in entries))
    assert OffsetIndex(disk, "/d/i.index", BASE).is_sane(log_size_bytes=200) is is_sane


@pytest.mark.parametrize(
    ("entries", "is_sane"),
    [
        ([], True),
        ([(0, 5)], True),
        ([(5, 0)], True),
        ([(5, -1)], False),
        ([(4, 3), (5, 3)], True),
        ([(4, 3), (5, 2)], False),
        ([(5, 3), (5, 4)], False),
        ([(6, 3), (5, 4)], False),
    ],
)
def test_the_ends_of_a_time_index_ascend(entries: list[tuple[int, int]], is_sane: bool) -> None:
    disk = filesystem()
    disk.put("/d/i.timeindex", b"".join(TimeIndex.ENTRY.pack(*each) for each in entries))
    assert TimeIndex(disk, "/d/i.timeindex", BASE).is_sane() is is_sane


def test_only_an_index_that_is_open_for_appending_is_full() -> None:
    disk = filesystem()
    offsets = OffsetIndex(disk, "/d/i.index", BASE)
    times = TimeIndex(disk, "/d/i.timeindex", BASE)
    offsets.open_for_append(8 * 3)
    times.open_for_append(12 * 3)
    for number in range(1, 4):
        assert not offsets.is_full
        assert offsets.append(BASE + number, number)
        assert times.is_full is (number == 3)
        assert times.maybe_append(number, BASE + number)
    assert offsets.is_full
    assert times.is_full
    offsets.trim()
    times.trim()
    assert not offsets.is_full
    assert not times.is_full
    offsets.unmap()
    times.unmap()


def test_a_time_index_takes_the_time_zero_and_the_same_offset_again() -> None:
    disk = filesystem()
    index = TimeIndex(disk, "/d/i.timeindex", BASE)
    index.open_for_append(12 * 5)
    index.maybe_append(0, BASE + 3)
    index.maybe_append(1, BASE + 3)
    index.maybe_append(2, BASE + 2)
    assert index.entry_count == 2
    assert index.last_entry == TimestampOffset(1, BASE + 3)
    index.abandon()


def test_verification_names_time_entries_behind_the_log() -> None:
    bench = LogBench()
    log = bench.open()
    append(log, "a", timestamp_ms=1)
    log.close()
    path = bench.path(0, ".timeindex")

    def found() -> list[tuple[int | None, str]]:
        every = Verification(bench.filesystem).findings(bench.directory)
        return [(each.position, each.reason) for each in every if each.file == path]

    whole = TimeIndex.ENTRY.pack(1, 0)
    assert bench.filesystem.read_bytes(path) == whole
    assert found() == []
    bench.overwrite(path, len(whole), TimeIndex.ENTRY.pack(1, 5))
    assert found() == [(len(whole), "offset 5 is not in the log")]


def test_time_index_takes_only_news() -> None:
    disk = filesystem()
    index = TimeIndex(disk, "/d/i.timeindex", BASE)
    index.open_for_append(12 * 5)
    assert index.lookup(10**15) == TimestampOffset(-1, BASE)
    index.maybe_append(-1, BASE + 1)
    for timestamp_ms, offset in ((100, 1), (100, 2), (90, 3), (200, 4), (300, 9)):
        index.maybe_append(timestamp_ms, BASE + offset)
    assert index.entry_count == 3
    found = {at: index.lookup(at).offset - BASE for at in (99, 100, 101, 199, 200, 299, 300, 301)}
    assert found == {99: 0, 100: 1, 101: 1, 199: 1, 200: 4, 299: 4, 300: 9, 301: 9}
    assert not index.is_full
    index.maybe_append(400, BASE + 10)
    assert index.is_full, "one entry is kept for the segment's last word"
    assert index.maybe_append(500, BASE + 11)
    assert not index.maybe_append(600, BASE + 12)
    index.truncate_to(BASE + 9)
    assert index.last_entry == TimestampOffset(200, BASE + 4)
    index.trim()
    assert disk.size_bytes("/d/i.timeindex") == 24
    index.unmap()


def test_a_trimmed_index_is_not_mapped_until_it_is_read() -> None:
    disk = filesystem()
    index = OffsetIndex(disk, "/d/i.index", BASE)
    index.open_for_append(80)
    index.append(BASE + 1, 100)
    index.trim()
    assert disk.open_maps == 0
    assert index.lookup(BASE + 1) == (BASE + 1, 100)
    index.trim()
    assert disk.open_maps == 0


def test_an_index_is_never_smaller_than_it_needs() -> None:
    index = OffsetIndex(filesystem(), "/d/i.index", BASE)
    index.open_for_append(4)
    assert index.append(BASE + 1, 100)
    assert index.append(BASE + 2, 200)
    assert index.is_full
    index.abandon()


def test_transaction_index_bytes_order_and_damage() -> None:
    disk = filesystem()
    index = TransactionIndex(disk, "/d/i.txnindex")
    assert index.entries() == []
    entries = [AbortedTransaction(7, n, n + 5, n + 6) for n in (10, 20, 30)]
    for entry in entries:
        index.append(entry)
    data = disk.read_bytes("/d/i.txnindex")
    assert len(data) == 3 * 34
    assert data[:34] == b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (7, 10, 15, 16))
    again = TransactionIndex(disk, "/d/i.txnindex")
    assert again.entries() == entries
    assert again.collect(16, 31) == (entries[1:], True)
    assert again.collect(0, 100) == (entries, False)
    again.truncate_to(35)
    assert TransactionIndex(disk, "/d/i.txnindex").entries() == entries[:2]
    for damaged in (data[:-1], b"\1" + data[1:], data[34:68] + data[:34], data[:34] * 2):
        disk.put("/d/i.txnindex", damaged)
        assert not TransactionIndex(disk, "/d/i.txnindex").is_sane()


def test_open_segments_close_the_least_recently_used() -> None:
    closed: list[str] = []

    class Thing:
        def __init__(self, name: str) -> None:
            self.name = name

        def close_descriptors(self) -> None:
            closed.append(self.name)

    things = [Thing(name) for name in "abcd"]
    budget = OpenSegments(limit=2)
    for thing in (things[0], things[1], things[0], things[2]):
        budget.touch(thing)
    assert closed == ["b"]
    budget.forget(things[0])
    budget.touch(things[3])
    assert closed == ["b"]
    budget.close_all()
    assert (closed, len(budget)) == (["b", "c", "d"], 0)


def test_positions_remembered_before_a_cut_are_forgotten() -> None:
    log = LogBench().open()
    for _ in range(4):
        append(log, "a" * 100)
    log.truncate_to(1)
    append(log, "b" * 10, "c" * 10, "d" * 300, "e")
    for offset in range(1, 5):
        result, found = read_once(log, offset)
        assert result.error == 0
        assert found[0].offset == 1
    log.close()


def test_hints_are_bounded() -> None:
    log = LogBench().open()
    for _ in range(300):
        append(log, "a")
        log.segments.active.hints.pop(0, None)
    for offset in range(0, 300, 7):
        read_once(log, offset, max_bytes=200)
    assert len(log.segments.active.hints) <= 128
    log.close()


# -- scans ---------------------------------------------------------------------------------------


def scanned(disk: SimulatedFilesystem, data: bytes) -> tuple[list[int], list[int]]:
    disk.put("/d/log", data)
    file = disk.open("/d/log")
    headers = [position for position, _ in scan_headers(file, 0, len(data), BatchOrder())]
    verified = []
    for position, header, view in scan_verified(file, 0, len(data), BatchOrder()):
        verified.append(position)
        if len(view):
            assert bytes(view) == data[position : position + header.size_bytes]
    file.close()
    return headers, verified


@given(st.lists(st.integers(0, 900), max_size=30))
def test_scans_visit_every_batch_whatever_the_buffers(sizes: list[int]) -> None:
    batches = [batch_of("x" * size, base_offset=number) for number, size in enumerate(sizes)]
    expected = [sum(len(b) for b in batches[:n]) for n in range(len(batches))]
    old = batch_scan.HEADER_SCAN_BYTES, batch_scan.VERIFY_SCAN_BYTES
    try:
        for small in (61, 100, 333, 5000):
            batch_scan.HEADER_SCAN_BYTES = batch_scan.VERIFY_SCAN_BYTES = small
            found = scanned(filesystem(), b"".join(batches))
            assert found == (expected, expected)
    finally:
        batch_scan.HEADER_SCAN_BYTES, batch_scan.VERIFY_SCAN_BYTES = old


@pytest.mark.parametrize("buffer_bytes", [100, 5000])
def test_a_flipped_bit_is_found_in_batches_smaller_and_larger_than_the_buffer(
    monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    monkeypatch.setattr(batch_scan, "VERIFY_SCAN_BYTES", buffer_bytes)
    good, bad = batch_of("x" * 900), batch_of("y" * 900, base_offset=1)
    bad[-1] ^= 1
    disk = filesystem()
    disk.put("/d/log", bytes(good + bad))
    file = disk.open("/d/log")
    scan = scan_verified(file, 0, file.size_bytes, BatchOrder())
    assert next(scan)[0] == 0
    with pytest.raises(InvalidBatch) as raised:
        next(scan)
    assert raised.value.position == len(good)
    file.close()


@pytest.mark.parametrize(
    ("at", "number"), [(0, (-1).to_bytes(8, "big", signed=True)), (23, b"\xff" * 4)]
)
def test_offsets_that_no_batch_can_have_are_noticed(at: int, number: bytes) -> None:
    data = batch_of("a")
    data[at : at + len(number)] = number
    disk = filesystem()
    disk.put("/d/log", bytes(data))
    file = disk.open("/d/log")
    for scan in (scan_headers, scan_verified):
        with pytest.raises(InvalidBatch, match=r"offset|CRC"):
            list(scan(file, 0, file.size_bytes, BatchOrder()))  # type: ignore[operator]
    file.close()


def test_an_index_gets_its_blocks_before_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write through the mapping would kill the process where the disk has no block for it."""
    monkeypatch.setattr(indexes, "POPULATE_BYTES", 4 * OffsetIndex.ENTRY.size)
    disk = filesystem()
    index = OffsetIndex(disk, "/d/i.index", BASE)
    index.open_for_append(16 * OffsetIndex.ENTRY.size)
    written = []
    for number in range(16):
        before = disk.operation_count
        disk.faults.append(Fault("pwrite", "i.index", errno.ENOSPC))
        if not index.append(BASE + 1 + number, number + 1):
            written.append(number)
            assert index.entry_count == number
            assert index.append(BASE + 1 + number, number + 1)
        disk.faults.clear()
        assert (disk.operation_count > before) is (number in written)
    assert written == [0, 5, 9, 13]
    assert index.lookup(BASE + 16) == (BASE + 16, 16)
    index.unmap()


def test_an_index_that_was_emptied_takes_entries_again() -> None:
    disk = filesystem()
    index = OffsetIndex(disk, "/d/i.index", BASE)
    index.open_for_append(80)
    index.append(BASE + 1, 100)
    index.reset()
    assert (index.entry_count, disk.size_bytes("/d/i.index")) == (0, 0)
    index.open_for_append(80)
    assert disk.size_bytes("/d/i.index") == 80
    index.append(BASE + 2, 200)
    assert index.lookup(BASE + 5) == (BASE + 2, 200)
    index.unmap()


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_an_abandoned_index_can_be_read_and_let_go_again(
    kind: type[OffsetIndex] | type[TimeIndex],
) -> None:
    disk = filesystem()
    index = kind(disk, "/d/i", BASE)
    index.open_for_append(80)
    index.put(1, 2)
    index.abandon()
    assert disk.open_maps == 0
    assert not index.is_full
    assert index.last_raw() == (1, 2)
    assert disk.open_maps == 1
    index.unmap()
    assert disk.open_maps == 0
    index.open_for_append(80)
    index.put(3, 4)
    index.trim()
    assert (index.entry_count, disk.size_bytes("/d/i")) == (2, 2 * kind.ENTRY.size)
    index.unmap()


def test_a_scan_may_begin_at_any_batch() -> None:
    sizes = (5, 40, 7, 90)
    batches = [bytes(batch_of("v" * size, base_offset=n)) for n, size in enumerate(sizes)]
    disk = filesystem()
    disk.put("/d/log", b"".join(batches))
    file = disk.open("/d/log")
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    end = sum(map(len, batches))
    for number, start in enumerate(starts):
        order = BatchOrder(next_offset=number, contiguous=True)
        assert [at for at, _ in scan_headers(file, start, end, order)] == starts[number:]
        scan = scan_verified(file, start, end, BatchOrder())
        found = [(at, bytes(data)) for at, _, data in scan]
        assert found == list(zip(starts, batches, strict=True))[number:]
    file.close()


@given(st.binary(max_size=300), st.integers(0, 3))
def test_garbage_is_an_invalid_batch_and_nothing_else(garbage: bytes, good_count: int) -> None:
    good = b"".join(batch_of("good", base_offset=number) for number in range(good_count))
    disk = filesystem()
    disk.put("/d/log", good + garbage)
    file = disk.open("/d/log")
    end = file.size_bytes
    for scan in (scan_headers, scan_verified):
        count, failed_at = 0, None
        try:
            for _ in scan(file, 0, end, BatchOrder()):  # type: ignore[operator]
                count += 1
        except InvalidBatch as error:
            failed_at = error.position
        assert (failed_at is None) == (not garbage)
        assert failed_at is None or failed_at >= len(good)
        assert count >= good_count
    file.close()


# -- leader epochs -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=15), st.integers(0, 45))
def test_epoch_cache_stays_ordered(steps: list[tuple[int, int]], cut: int) -> None:
    cache = LeaderEpochCache(filesystem(), "/d")
    for leader_epoch, start_offset in steps:
        cache.assign(leader_epoch, start_offset)
        entries = cache.entries
        assert [e.leader_epoch for e in entries] == sorted({e.leader_epoch for e in entries})
        assert [e.start_offset for e in entries] == sorted({e.start_offset for e in entries})
        assert cache.latest_epoch == entries[-1].leader_epoch
    before = {o: cache.epoch_for_offset(o) for o in range(cut, 50)}
    cache.truncate_from_start(cut)
    assert {o: cache.epoch_for_offset(o) for o in range(cut, 50)} == before
    cache.truncate_from_end(cut + 5)
    assert all(e.start_offset < cut + 5 for e in cache.entries)
    cache.write()
    again = LeaderEpochCache(cache._filesystem, "/d")
    again.load()
    assert again.entries == cache.entries


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
    st.integers(0, 20),
)
def test_what_an_epoch_cache_answers(steps: list[tuple[int, int]], end_offset: int) -> None:
    """Against a plain look at its entries. Source: KIP-279."""
    cache = LeaderEpochCache(filesystem(), "/d")
    entries: list[tuple[int, int]] = []
    for epoch_step, offset_step in steps:
        last_epoch, last_start = entries[-1] if entries else (-1, -1)
        entries.append((last_epoch + 1 + epoch_step, last_start + 1 + offset_step))
        cache.assign(*entries[-1])
        cache.assign(*entries[-1])
    assert cache.entries == entries
    for offset in range(-1, 25):
        epochs = [epoch for epoch, start in entries if start <= offset]
        assert cache.epoch_for_offset(offset) == (epochs[-1] if epochs else -1)
    for epoch in range(-1, 25):
        newer = [start for each, start in entries if each > epoch]
        known = [each for each, _ in entries if each <= epoch]
        if epoch == -1 or not entries or epoch > entries[-1][0]:
            expected = (-1, -1)
        else:
            expected = (known[-1] if known else epoch, newer[0] if newer else end_offset)
        assert cache.end_offset_for(epoch, end_offset) == expected


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 20))
def test_cuts_of_an_epoch_cache(gaps: list[int], offset: int) -> None:
    starts = [sum(gaps[:number]) for number in range(1, len(gaps) + 1)]
    entries = [(10 + number, start) for number, start in enumerate(starts)]

    def cut(from_start: bool) -> LeaderEpochCache:
        cache = LeaderEpochCache(filesystem(), "/d")
        for each in entries:
            cache.assign(*each)
        cache.write()
        assert not cache.is_dirty
        (cache.truncate_from_start if from_start else cache.truncate_from_end)(offset)
        assert cache.is_dirty is (cache.entries != entries)
        assert cache.latest_epoch == (cache.entries[-1].leader_epoch if cache.entries else -1)
        return cache

    assert cut(from_start=False).entries == [each for each in entries if each[1] < offset]
    holder = [epoch for epoch, start in entries if start <= offset]
    later = [each for each in entries if each[1] > offset]
    expected = [(holder[-1], offset), *later] if holder else entries
    assert cut(from_start=True).entries == expected


def test_an_epoch_below_the_newest_or_without_a_number_is_no_news() -> None:
    cache = LeaderEpochCache(filesystem(), "/d")
    cache.assign(-1, 0)
    assert (cache.entries, cache.is_dirty) == ([], False)
    cache.assign(5, 10)
    cache.write()
    cache.assign(5, 20)
    cache.assign(-1, 30)
    assert (cache.entries, cache.is_dirty) == ([(5, 10)], False)
    cache.assign(3, 20)  # a leader that does not know of its successor
    assert (cache.entries, cache.is_dirty) == ([(5, 10)], False)
    cache.assign(6, 20)
    cache.assign(7, 20)  # nothing was written in the one before
    assert (cache.entries, cache.is_dirty) == ([(5, 10), (7, 20)], True)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=6),
    st.integers(0, 20),
    st.integers(1, 6),
)
def test_aborted_transactions_of_a_range(
    steps: list[tuple[int, int]], fetch_offset: int, length: int
) -> None:
    """Those that overlap [fetch_offset, upper_bound); complete once the last stable offset passes
    the bound.
    """
    upper_bound = fetch_offset + length
    index = TransactionIndex(filesystem(), "/d/i.txnindex")
    every = []
    end = 0
    for before, size in steps:
        end += size
        every.append(AbortedTransaction(7, max(end - size - before, 0), end, end + 1 - before % 2))
        index.append(every[-1])
    passed = [n for n, each in enumerate(every) if each.last_stable_offset >= upper_bound]
    looked_at = every[: passed[0] + 1] if passed else every
    overlapping = [
        each
        for each in looked_at
        if not (each.last_offset < fetch_offset or each.first_offset >= upper_bound)
    ]
    assert index.collect(fetch_offset, upper_bound) == (overlapping, bool(passed))
    index.truncate_to(fetch_offset)
    kept = [each for each in every if each.last_offset < fetch_offset]
    again = TransactionIndex(index._filesystem, "/d/i.txnindex")
    assert index.entries() == again.entries() == kept
