"""The indexes that a cleaned segment gets while it is written."""

from __future__ import annotations

import pytest

from moldau.protocol.records import read_batch_header
from moldau.storage.cleaner import cleaned_segment
from moldau.storage.cleaner.cleaned_segment import CleanedSegment, SegmentTooLarge
from moldau.storage.cleaner.job import CleaningJob
from moldau.storage.indexes import AbortedTransaction, OffsetIndex
from tests.storage.log_fixtures import batch_of
from tests.storage.simulated_filesystem import SimulatedFilesystem

BASE = 1000


def new_segment(filesystem: SimulatedFilesystem, max_entries: int = 100) -> CleanedSegment:
    filesystem.mkdirs("/d")
    return CleanedSegment(
        filesystem,
        CleaningJob(
            directory="/d",
            segments=(),
            first_dirty_offset=0,
            index_bases=(),
            epochs=(),
            producers=(),
            now_ms=0,
            delete_retention_ms=0,
            segment_bytes=2**30,
            segment_index_bytes=max_entries * OffsetIndex.ENTRY.size,
            index_interval_bytes=200,
            map_bytes=0,
            load_factor=0.9,
            io_bytes=1000,
            max_bytes_per_second=float("inf"),
        ),
        BASE,
    )


def indexed(batch_count: int, max_entries: int = 100) -> list[tuple[int, int]]:
    """Relative offset and position of the entries for batches that are larger than half the
    interval; in batches instead of bytes.
    """
    filesystem = SimulatedFilesystem()
    segment = new_segment(filesystem, max_entries)
    size = 0
    for number in range(batch_count):
        batch = batch_of("v" * 50, base_offset=BASE + number)
        size = len(batch)
        assert 100 < size <= 200
        segment.add(read_batch_header(batch), batch)
    segment.finish()
    data = filesystem.read_bytes(f"/d/{BASE:020d}.index.cleaned")
    entries = OffsetIndex.ENTRY.iter_unpack(data)
    return [(relative, position // size) for relative, position in entries]


def test_an_entry_comes_after_each_interval_and_points_at_its_batch() -> None:
    assert indexed(10) == [(2, 2), (4, 4), (6, 6), (8, 8)]


def test_a_full_index_gets_no_more_entries() -> None:
    assert indexed(10, max_entries=3) == [(2, 2), (4, 4), (6, 6)]


def test_less_than_an_interval_needs_no_entry() -> None:
    assert indexed(2) == []


def test_a_segment_takes_as_much_as_an_index_can_point_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = batch_of("v", base_offset=BASE)
    header = read_batch_header(batch)
    monkeypatch.setattr(cleaned_segment, "MAX_SEGMENT_BYTES", 2 * len(batch))
    segment = new_segment(SimulatedFilesystem())
    segment.add(header, batch)
    segment.add(header, batch)
    with pytest.raises(SegmentTooLarge):
        segment.add(header, batch)
    assert segment.size_bytes == 2 * len(batch)
    segment.discard()


def test_a_finished_segment_is_durable_with_all_its_files() -> None:
    filesystem = SimulatedFilesystem()
    segment = new_segment(filesystem)
    for number in range(10):
        batch = batch_of("v" * 50, base_offset=BASE + number)
        segment.add(read_batch_header(batch), batch)
    segment.aborted.append(AbortedTransaction(7, BASE, BASE + 1, BASE + 2))
    segment.finish()
    names = filesystem.listdir("/d")
    assert {name.split(".", 1)[1] for name in names} == {
        f"{suffix}.cleaned" for suffix in ("log", "index", "timeindex", "txnindex")
    }
    for name in names:
        node = filesystem.file_node(f"/d/{name}")
        assert 0 < len(node.data) == len(node.durable), name
    assert str(filesystem.operations[-1]) == "fsync_directory /d", "and so are their names"
