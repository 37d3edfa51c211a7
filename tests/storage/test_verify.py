"""`moldau log verify`: for each way in which files can contradict each other, the finding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.protocol.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
    iter_batches,
)
from moldau.protocol.types import TopicPartition
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    write_clean_shutdown_marker,
    write_offset_checkpoint,
    write_partition_metadata,
    write_rows,
)
from moldau.storage.indexes import TXN_ENTRY, OffsetIndex, TimeIndex
from moldau.storage.log_directory import marked_directory_name
from moldau.storage.meta_properties import META_PROPERTIES
from moldau.storage.verify import Severity, Verification
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import format_directory, topic_id, tp

NOTE, WARNING, DAMAGE = Severity.NOTE, Severity.WARNING, Severity.DAMAGE

BASE = 100
STEM = f"{BASE:020d}"
Row = tuple[Severity, str, int | None, str]


def batch(base_offset: int, count: int, timestamp_ms: int, leader_epoch: int = 3) -> bytes:
    records = [Record(n, timestamp_ms, None, b"v" * 30) for n in range(count)]
    options = {"base_offset": base_offset, "partition_leader_epoch": leader_epoch}
    return bytes(encode_batch(records, **options))  # type: ignore[arg-type]


BATCHES = [batch(100, 2, 1000), batch(102, 1, 1005), batch(103, 3, 1003)]
LOG = b"".join(BATCHES)
SECOND, THIRD = len(BATCHES[0]), len(BATCHES[0] + BATCHES[1])
INDEX = OffsetIndex.ENTRY.pack(2, SECOND) + OffsetIndex.ENTRY.pack(5, THIRD)
TIMES = TimeIndex.ENTRY.pack(1000, 1) + TimeIndex.ENTRY.pack(1005, 2)


def one_segment(
    log: bytes = LOG, index: bytes = INDEX, times: bytes = TIMES
) -> SimulatedFilesystem:
    """A log directory with one partition of one segment, in which nothing is wrong."""
    disk = SimulatedFilesystem()
    format_directory(disk, "/data")
    put(disk, ".log", log)
    put(disk, ".index", index)
    put(disk, ".timeindex", times)
    write_partition_metadata(disk, "/data/t-0", topic_id(1))
    return disk


def put(disk: SimulatedFilesystem, suffix: str, data: bytes) -> None:
    disk.put(f"/data/t-0/{STEM}{suffix}", data)


def second_segment(disk: SimulatedFilesystem, base_offset: int = 106) -> None:
    for suffix, data in [(".log", batch(base_offset, 1, 1)), (".index", b""), (".timeindex", b"")]:
        disk.put(f"/data/t-0/{base_offset:020d}{suffix}", data)


def recovery_point(disk: SimulatedFilesystem, offset: int) -> None:
    write_offset_checkpoint(disk, f"/data/{RECOVERY_POINT_CHECKPOINT}", {tp("t-0"): offset})


def findings(disk: SimulatedFilesystem, path: str = "/data", *, deep: bool = False) -> list[Row]:
    verification = Verification(disk, deep=deep)
    found = [
        (each.severity, each.file.removeprefix("/data/").removeprefix("t-0/"), each.position, each)
        for each in verification.findings(path)
    ]
    assert verification.is_damaged is any(severity is DAMAGE for severity, *_ in found)
    for severity in Severity:
        assert verification.counts[severity] == [each[0] for each in found].count(severity)
    return [(*each[:3], each[3].reason) for each in found]


def test_nothing_is_found_in_sound_files_and_everything_is_counted() -> None:
    disk = one_segment()
    second_segment(disk)
    recovery_point(disk, 107)
    write_rows(disk, f"/data/t-0/{LEADER_EPOCH_CHECKPOINT}", [(3, 100)])
    seen: list[int] = []
    verification = Verification(disk, deep=True, on_progress=seen.append)
    assert list(verification.findings("/data")) == []
    size = len(LOG) + len(batch(106, 1, 1))
    assert (sum(seen), verification.checked_bytes) == (size, size)
    counts = verification.partition_count, verification.segment_count, verification.batch_count
    assert (*counts, verification.record_count) == (1, 2, 4, 7)
    assert findings(disk, "/data/t-0/") == []


# -- the log file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flushed", "has_more", "severity"),
    [
        (None, False, DAMAGE),
        (103, False, DAMAGE),
        (102, False, NOTE),
        (102, True, WARNING),
        (0, True, WARNING),
    ],
)
def test_what_damage_means_depends_on_what_was_flushed(
    flushed: int | None, has_more: bool, severity: Severity
) -> None:
    disk = one_segment()
    if has_more:
        second_segment(disk)
    if flushed is not None:
        recovery_point(disk, flushed)
    file = disk.open(f"/data/t-0/{STEM}.log")
    file.pwrite(b"x", THIRD - 1)
    file.close()
    seen: list[int] = []
    found = list(Verification(disk, on_progress=seen.append).findings("/data"))
    bad = next(each for each in found if each.file.endswith(f"{STEM}.log"))
    assert (bad.severity, bad.position) == (severity, SECOND)
    left = len(LOG) - SECOND
    assert bad.reason.startswith(
        f"the CRC does not match; {left} bytes from offset 102 on cannot be read"
    )
    assert str(bad) == f"{severity.name}: {bad.file} at byte {SECOND}: {bad.reason}"
    index = next(each for each in found if each.file.endswith(".index"))
    assert (index.severity, index.position) == (WARNING, 0)
    assert index.reason == f"2 entries point behind the good bytes ({SECOND})"
    more = len(batch(106, 1, 1)) if has_more else 0
    assert sum(seen) == len(LOG) + more


def test_after_a_clean_stop_everything_was_flushed() -> None:
    disk = one_segment(LOG[:-1])
    recovery_point(disk, 100)
    assert findings(disk)[0][0] is NOTE
    write_clean_shutdown_marker(disk, "/data", CleanShutdown(7))
    assert findings(disk)[0][:3] == (DAMAGE, f"{STEM}.log", THIRD)


@pytest.mark.parametrize("left", [1, 60, 61, len(BATCHES[2]) - 1])
def test_a_last_batch_that_is_not_there_whole(left: int) -> None:
    ((severity, file, position, reason), *_) = findings(one_segment(LOG[: THIRD + left]))
    assert (severity, file, position) == (DAMAGE, f"{STEM}.log", THIRD)
    assert f"{left} bytes from offset 103 on cannot be read" in reason


def test_offsets_that_are_missing_are_reported_unless_the_log_is_compacted() -> None:
    disk = one_segment(BATCHES[0] + batch(104, 1, 1005), b"", b"")
    gap = [(WARNING, f"{STEM}.log", SECOND, "offsets 102 to 103 are missing")]
    assert findings(disk, deep=True) == gap
    write_offset_checkpoint(disk, f"/data/{CLEANER_CHECKPOINT}", {tp("other-0"): 1})
    assert findings(disk) == gap
    write_offset_checkpoint(disk, f"/data/{CLEANER_CHECKPOINT}", {tp("t-0"): 1})
    assert findings(disk, deep=True) == []
    assert findings(disk, "/data/t-0") == []


@pytest.mark.parametrize("base_offset", [100, 101])
def test_offsets_that_go_back_end_the_log(base_offset: int) -> None:
    disk = one_segment(BATCHES[0] + batch(base_offset, 1, 1), b"", b"")
    ((severity, _, position, reason),) = findings(disk)
    assert (severity, position) == (DAMAGE, SECOND)
    assert f"base offset {base_offset} where 102 is next" in reason


@pytest.mark.parametrize(("base_offset", "is_sound"), [(98, False), (99, True), (100, True)])
def test_a_first_batch_may_begin_below_its_segment_but_not_end_there(
    base_offset: int, is_sound: bool
) -> None:
    found = findings(one_segment(batch(base_offset, 2, 1), b"", b""))
    assert (found == []) is is_sound


def test_leader_epochs_never_go_down() -> None:
    log = batch(100, 1, 1, 3) + batch(101, 1, 1, 3) + batch(102, 1, 1, 2)
    position = len(log) // 3 * 2
    ((severity, file, at, reason),) = findings(one_segment(log, b"", b""))
    assert (severity, file, at) == (DAMAGE, f"{STEM}.log", position)
    assert reason.startswith("leader epoch 2 after 3; ")


def test_a_wrong_epoch_makes_one_segment_look_wrong_and_not_all_that_follow() -> None:
    disk = one_segment(batch(100, 1, 1, 3) + batch(101, 5, 1, 9), b"", b"")
    for base_offset in (106, 107, 108):
        second_segment(disk, base_offset)
    damages = [each[:3] for each in findings(disk) if each[0] is DAMAGE]
    assert damages == [(DAMAGE, f"{106:020d}.log", 0)]


def test_records_are_looked_at_only_on_request() -> None:
    records = [Record(offset, 1, None, b"v") for offset in (100, 102)]
    holes = bytes(encode_batch(records, base_offset=100, keep_offsets=True))
    assert len(list(iter_batches(holes))) == 1
    disk = one_segment(holes, b"", b"")
    assert findings(disk) == []
    ((severity, file, position, reason),) = findings(disk, deep=True)
    assert (severity, file, position) == (DAMAGE, f"{STEM}.log", 0)
    assert reason.startswith("the CRC matches, the records are not valid")
    write_offset_checkpoint(disk, f"/data/{CLEANER_CHECKPOINT}", {tp("t-0"): 1})
    assert findings(disk, deep=True) == []


@pytest.mark.parametrize(("base_offset", "found"), [(105, True), (106, False), (107, False)])
def test_a_segment_begins_where_the_one_before_it_ends_or_later(
    base_offset: int, found: bool
) -> None:
    disk = one_segment(index=b"")
    second_segment(disk, base_offset)
    reason = "offsets 103 to 105, the end is 105; 172 bytes from offset 103 on cannot be read"
    expected = [(DAMAGE, f"{STEM}.log", THIRD, reason)] if found else []
    assert findings(disk) == expected


# -- indexes -------------------------------------------------------------------------------------


def entry(relative: int, position: int) -> bytes:
    return OffsetIndex.ENTRY.pack(relative, position)


def time_entry(timestamp_ms: int, relative: int) -> bytes:
    return TimeIndex.ENTRY.pack(timestamp_ms, relative)


@pytest.mark.parametrize(
    ("index", "position", "reason"),
    [
        (entry(1, SECOND), 0, f"offset 101 at {SECOND}, the batch ends in 102"),
        (entry(2, SECOND) + entry(5, THIRD + 1), 8, f"offset 105 at {THIRD + 1}, where no batch"),
        (entry(2, SECOND) + entry(5, SECOND), 8, "entry 1 does not ascend"),
        (entry(-1, SECOND), 0, "entry 0 does not ascend"),
        (INDEX + b"xyz", 16, "19 bytes are no whole entries"),
        (INDEX + entry(9, len(LOG)), 16, f"1 entries point behind the good bytes ({len(LOG)})"),
    ],
)
def test_offset_index_entries_that_are_not_true(index: bytes, position: int, reason: str) -> None:
    ((severity, file, at, text),) = findings(one_segment(index=index))
    assert (severity, file, at) == (WARNING, f"{STEM}.index", position)
    assert text.startswith(reason)


@pytest.mark.parametrize(
    ("times", "position", "reason"),
    [
        (time_entry(999, 1), 0, "offset 101 with 999, the log has 1000 by then"),
        (time_entry(1000, 2), 0, "offset 102 with 1000, the log has 1005 by then"),
        (TIMES + time_entry(1004, 5), 24, "entry (1004, 5) after (1005, 2)"),
        (TIMES + time_entry(1006, 6), 24, "offset 106 is not in the log"),
        (
            TIMES + time_entry(1006, 6) + time_entry(1007, 7) + time_entry(1008, 8),
            24,
            "offset 106 is not in the log, nor 2 more behind it",
        ),
        (TIMES + b"xyz", 24, "27 bytes are no whole entries"),
    ],
)
def test_time_index_entries_that_are_not_true(times: bytes, position: int, reason: str) -> None:
    (severity, file, at, text) = findings(one_segment(times=times))[0]
    assert (severity, file, at) == (WARNING, f"{STEM}.timeindex", position)
    assert text == reason


@pytest.mark.parametrize(
    "times",
    [
        time_entry(0, 0) + TIMES,
        time_entry(1005, 5),
        TIMES + time_entry(1005, 5),
        TIMES + bytes(24),
    ],
)
def test_time_index_entries_that_may_be(times: bytes) -> None:
    found = findings(one_segment(times=times))
    assert [row for row in found if "by then" not in row[3]] == []


def test_a_closed_segment_without_timestamps_has_an_empty_time_index() -> None:
    disk = one_segment(batch(100, 6, -1), b"", b"")
    second_segment(disk)
    assert findings(disk) == []
    disk = one_segment(batch(100, 6, 0), b"", b"")
    second_segment(disk)
    reason = "it ends with -1, the log has 0"
    assert findings(disk) == [(WARNING, f"{STEM}.timeindex", None, reason)]


def test_an_empty_log_has_no_timestamps() -> None:
    disk = one_segment(b"", b"", time_entry(1000, 0))
    assert findings(disk) == [(WARNING, f"{STEM}.timeindex", 0, "offset 100 is not in the log")]


def test_room_kept_in_advance_is_no_damage_and_a_missing_index_is_reported() -> None:
    disk = one_segment(index=INDEX + bytes(80), times=TIMES + bytes(120))
    assert findings(disk) == []
    for suffix in (".index", ".timeindex"):
        disk.unlink(f"/data/t-0/{STEM}{suffix}")
    assert findings(disk) == [
        (WARNING, f"{STEM}.index", None, "the index is missing"),
        (WARNING, f"{STEM}.timeindex", None, "the index is missing"),
    ]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([(0, 1, 100, 102, 103)], ""),
        ([(0, 2, 90, 101, 102), (0, 1, 100, 102, 103)], ""),
        ([(0, 1, 101, 102, 103)], "the transaction that ends at 102 begins at 100"),
        ([(0, 1, 100, 102, 103), (0, 2, 103, 104, 0)], "producer 2 aborts nothing at offset 104"),
        ([(1, 1, 100, 100, 0)], "entry of unknown version 1"),
        ([(0, 1, 101, 100, 0)], "offsets 101 to 100 are not in order"),
        ([(0, 1, 100, 102, 0), (0, 1, 100, 102, 0)], "offsets 100 to 102 are not in order"),
        ([(0, 1, 90, 99, 0)], "offset 99 is not in the segment"),
        ([(0, 1, 90, 106, 0)], "offset 106 is not in the segment"),
    ],
)
def test_aborted_transactions(entries: list[tuple[int, ...]], reason: str) -> None:
    disk = one_aborted_transaction()
    put(disk, ".txnindex", b"".join(TXN_ENTRY.pack(*each) for each in entries))
    at = (len(entries) - 1) * TXN_ENTRY.size
    lacks = (WARNING, f"{STEM}.txnindex", None, "it lacks what producer 1 aborts at offset 102")
    expected = [(WARNING, f"{STEM}.txnindex", at, reason)] if reason else []
    if not any(each[1:4:2] == (1, 102) for each in entries):
        expected.append(lacks)
    assert findings(disk) == expected
    put(disk, ".txnindex", TXN_ENTRY.pack(0, 1, 100, 102, 103) + b"x")
    expected = [(WARNING, f"{STEM}.txnindex", 34, "35 bytes are no whole entries")]
    assert findings(disk) == expected
    disk.unlink(f"/data/t-0/{STEM}.txnindex")
    assert findings(disk) == [lacks]


def one_aborted_transaction() -> SimulatedFilesystem:
    """Offsets 100 and 101 of producer 1, its abort marker at 102, then three records outside."""
    options = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data = encode_batch(
        [Record(n, 1000, None, b"v") for n in range(2)],
        base_offset=100,
        partition_leader_epoch=3,
        **options,  # type: ignore[arg-type]
    )
    marker = encode_end_txn_batch(
        EndTxnMarker(ControlRecordType.ABORT, 1), producer_id=1, producer_epoch=0, timestamp_ms=1001
    )
    marker[0:8] = (102).to_bytes(8, "big")
    marker[12:16] = (3).to_bytes(4, "big")
    log = bytes(data) + bytes(marker) + batch(103, 3, 1002)
    return one_segment(log, b"", TimeIndex.ENTRY.pack(1002, 5))


# -- the partition's other files -----------------------------------------------------------------


@pytest.mark.parametrize(("offset", "found"), [(106, False), (107, True)])
def test_a_log_reaches_its_recovery_point(offset: int, found: bool) -> None:
    disk = one_segment()
    recovery_point(disk, offset)
    reason = "the log ends at 106, its recovery point is 107"
    assert findings(disk) == ([(DAMAGE, f"{STEM}.log", None, reason)] if found else [])


def test_a_recovery_point_without_a_log() -> None:
    disk = one_segment()
    for suffix in (".log", ".index", ".timeindex"):
        disk.unlink(f"/data/t-0/{STEM}{suffix}")
    recovery_point(disk, 0)
    assert findings(disk) == []
    recovery_point(disk, 1)
    expected = [(DAMAGE, "/data/t-0", None, "the log ends at None, its recovery point is 1")]
    assert [(row[0], "/data/t-0", *row[2:]) for row in findings(disk)] == expected


@pytest.mark.parametrize(("start_offset", "found"), [(106, False), (107, True)])
def test_a_leader_epoch_begins_in_the_log_or_at_its_end(start_offset: int, found: bool) -> None:
    disk = one_segment()
    path = f"/data/t-0/{LEADER_EPOCH_CHECKPOINT}"
    write_rows(disk, path, [(3, 100), (4, start_offset)])
    reason = "leader epoch 4 begins at 107, the log ends at 106"
    assert findings(disk) == ([(WARNING, LEADER_EPOCH_CHECKPOINT, None, reason)] if found else [])


def test_small_files_that_are_damaged_missing_or_left_over() -> None:
    disk = one_segment()
    disk.put(f"/data/t-0/{LEADER_EPOCH_CHECKPOINT}", b"0\n1\n")
    put(disk, ".snapshot", b"xx")
    for name in ("a.deleted", "b.cleaned", "c.swap", "d.tmp"):
        disk.put(f"/data/t-0/{name}", b"")
    disk.unlink(f"/data/t-0/{PARTITION_METADATA}")
    left_over = "left over, removed at the next start"
    assert sorted(findings(disk), key=lambda row: row[1]) == [
        (WARNING, f"{STEM}.snapshot", None, "2 bytes are no producer snapshot"),
        (NOTE, "a.deleted", None, left_over),
        (NOTE, "b.cleaned", None, left_over),
        (NOTE, "c.swap", None, left_over),
        (NOTE, "d.tmp", None, left_over),
        (WARNING, LEADER_EPOCH_CHECKPOINT, None, "1 entries are announced and 0 are there"),
        (WARNING, PARTITION_METADATA, None, "missing: the topic id is not known"),
    ]
    disk.put(f"/data/t-0/{PARTITION_METADATA}", b"garbage")
    assert (DAMAGE, PARTITION_METADATA) in {row[:2] for row in findings(disk)}


# -- the log directory ---------------------------------------------------------------------------


def damaged_properties(disk: SimulatedFilesystem) -> None:
    disk.put(f"/data/{META_PROPERTIES}", b"version=x\n")


def no_properties(disk: SimulatedFilesystem) -> None:
    disk.unlink(f"/data/{META_PROPERTIES}")


def damaged_checkpoint(disk: SimulatedFilesystem) -> None:
    disk.put(f"/data/{HIGH_WATERMARK_CHECKPOINT}", b"1\n0\n")


def missing_partition(disk: SimulatedFilesystem) -> None:
    points = {tp("t-0"): 106, tp("gone-1"): 5, tp("empty-0"): 0}
    write_offset_checkpoint(disk, f"/data/{RECOVERY_POINT_CHECKPOINT}", points)


@pytest.mark.parametrize(
    ("harm", "severity", "file", "reason"),
    [
        (damaged_properties, DAMAGE, META_PROPERTIES, ""),
        (no_properties, WARNING, META_PROPERTIES, "missing: this is not a formatted log directory"),
        (damaged_checkpoint, WARNING, HIGH_WATERMARK_CHECKPOINT, "version 1 is unknown"),
        (missing_partition, WARNING, RECOVERY_POINT_CHECKPOINT, "has recovery point 5 and no dir"),
    ],
)
def test_the_directorys_own_files(
    harm: Callable[[SimulatedFilesystem], None], severity: Severity, file: str, reason: str
) -> None:
    disk = one_segment()
    harm(disk)
    ((its_severity, its_file, position, its_reason),) = findings(disk)
    assert (its_severity, its_file, position) == (severity, file, None)
    assert reason in its_reason


def test_directories_on_their_way_out_are_named_and_not_looked_into() -> None:
    disk = one_segment()
    for mark in ("-delete", "-stray"):
        name = marked_directory_name(TopicPartition("t", 1), topic_id(2), mark)
        disk.put(f"/data/{name}/{STEM}.log", b"garbage")
    disk.put(f"/data/lost+found/{STEM}.log", b"garbage")
    assert [(row[0], row[3]) for row in findings(disk)] == [
        (NOTE, "waits for removal"),
        (NOTE, "is marked -stray"),
    ]


def test_a_path_that_is_no_directory() -> None:
    disk = one_segment()
    with pytest.raises(FileNotFoundError):
        next(Verification(disk).findings("/data/u-0"))
    with pytest.raises(NotADirectoryError):
        next(Verification(disk).findings(f"/data/t-0/{STEM}.log"))
