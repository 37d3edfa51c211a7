"""A log whose disk refuses a change, and one whose index points to the wrong place."""

from __future__ import annotations

import errno

import pytest

from moldau.storage.faults import LogOffline
from moldau.storage.indexes import OffsetIndex
from moldau.storage.log_config import LogConfig
from moldau.storage.timestamp_search import TimestampedOffset
from tests.storage.log_fixtures import START_MS, LogBench, append, fill, offset_for_timestamp
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


@pytest.mark.parametrize(
    "fault",
    [Fault("truncate", ".log", errno.EIO), Fault("rename", ".log", errno.EIO)],
    ids=lambda fault: fault.operation,
)
def test_a_cut_that_the_disk_refuses_takes_the_log_offline(fault: Fault) -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem, config=SMALL).open()
    fill(log, 50)
    filesystem.faults.append(fault)
    with pytest.raises(LogOffline):
        log.truncate_to(5)
    assert log.offline
    assert "truncation to 5" in log.offline_reason


def test_a_flush_whose_leader_epochs_cannot_be_written_takes_the_log_offline() -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem).open()
    append(log, "a")
    filesystem.faults.append(Fault("append", "leader-epoch-checkpoint", errno.EIO))
    with pytest.raises(LogOffline):
        log.flush()
    assert log.offline
    assert log.recovery_point == 0


def test_a_lookup_by_time_in_a_sound_log_changes_no_file() -> None:
    filesystem = SimulatedFilesystem()
    log = LogBench(filesystem, config=SMALL).open()
    for number in range(40):
        append(log, f"{number:0100d}", timestamp_ms=START_MS + number)
    before = filesystem.operation_count
    for number in range(40):
        found = offset_for_timestamp(log, START_MS + number)
        assert found == TimestampedOffset(START_MS + number, number, 0)
    assert filesystem.operation_count == before


def test_offsets_beyond_31_bits_share_a_segment() -> None:
    log = LogBench().open()
    log.truncate_fully_and_start_at(3_000_000_000)
    assert [append(log, value).base_offset for value in "ab"] == [3_000_000_000, 3_000_000_001]
    assert len(log.segments) == 1


def test_a_torn_tail_costs_no_descriptor() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    append(log, "a")
    size_bytes = log.size_bytes
    append(log, "b")
    log.abandon()
    file = filesystem.open(bench.path(0))
    file.truncate(size_bytes + 20)
    file.close()
    log = bench.open()
    assert log.log_end_offset == 1
    log.close()
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0)


def test_a_lookup_by_time_makes_an_offset_index_again_that_leads_astray() -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    for number in range(40):
        append(log, f"{number:0100d}", timestamp_ms=START_MS + number)
    log = bench.reopen(log, clean=True)
    segment = log.segments[1]
    path = bench.path(segment.base_offset, ".index")
    whole = bench.filesystem.read_bytes(path)
    assert len(whole) > 2 * OffsetIndex.ENTRY.size
    for end in range(OffsetIndex.ENTRY.size, len(whole) + 1, OffsetIndex.ENTRY.size):
        # A position in the segment at which no batch begins.
        bench.overwrite(path, end - 1, bytes([whole[end - 1] ^ 1]))
    for number in range(segment.base_offset, log.segments[2].base_offset):
        found = offset_for_timestamp(log, START_MS + number)
        assert found == TimestampedOffset(START_MS + number, number, 0)
    assert not log.offline
    log.close()
    assert bench.filesystem.read_bytes(path) == whole
