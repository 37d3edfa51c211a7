"""Opening a log: clean, unclean, damaged above and below the recovery point, written by Kafka."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.append import RecordBatches
from moldau.storage.checkpoints import (
    read_leader_epoch_checkpoint,
    write_rows,
)
from moldau.storage.faults import DiskFull
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.kit.dice import drawn_seed
from tests.kit.manual_clock import ManualClock
from tests.storage.log_fixtures import (
    START_MS,
    LogBench,
    append,
    as_records,
    batch_of,
    fill,
    offset_for_timestamp,
    read_all,
    read_once,
    values_of,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.storage.transaction_reader import aborted_transactions

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, segment_index_bytes=4096)
GOLDEN = Path(__file__).parent / "golden"


def test_a_new_log_begins_at_the_offset_that_is_given() -> None:
    bench = LogBench()
    log = bench.open(log_start_offset=42)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (42, 42, 42)
    assert append(log, "a").base_offset == 42
    log = bench.reopen(log, clean=True)
    assert values_of(log) == ["a"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_all_records_are_read_after_a_restart(clean: bool, flushed: bool) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    for number in range(60):
        append(log, f"{number}", "x" * 50, leader_epoch=number // 25)
    if flushed:
        log.flush()
    expected, epochs = read_all(log), log.leader_epoch_cache.entries
    bases = [s.base_offset for s in log.segments]
    log = bench.reopen(log, clean=clean)
    assert not log.offline
    assert read_all(log) == expected
    assert log.leader_epoch_cache.entries == epochs
    assert [s.base_offset for s in log.segments] == bases
    assert append(log, "next", leader_epoch=2).base_offset == 120
    assert log.read(120, max_bytes=100).next_offset == 121


@pytest.mark.parametrize("flushed_count", [0, 7, 20])
def test_indexes_after_recovery_are_those_of_the_running_log(flushed_count: int) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    for number in range(40):
        append(log, f"{number}" * 10)
        if number + 1 == flushed_count:
            log.flush()
    log.close()
    names = [n for n in bench.names() if n.endswith(("index", ".snapshot"))]
    before = {n: bench.filesystem.read_bytes(f"{bench.directory}/{n}") for n in names}
    for name in names:
        if not name.endswith(".snapshot"):
            bench.overwrite(f"{bench.directory}/{name}", 0, b"\0" * 4096)
    log = bench.open(recovery_point=flushed_count)
    log.close()
    after = {n: bench.filesystem.read_bytes(f"{bench.directory}/{n}") for n in names}
    assert after == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("stop_after", range(1, 12))
def test_index_entries_are_as_far_apart_after_a_restart(stop_after: int, clean: bool) -> None:
    contents = []
    for is_restarted in (False, True):
        bench = LogBench(config=LogConfig(index_interval_bytes=400))
        log = bench.open()
        for number in range(20):
            append(log, "x" * 80, timestamp_ms=START_MS + number)
            if is_restarted and number == stop_after:
                log.flush()
                log = bench.reopen(log, clean=clean)
        log.roll()
        segment = log.segments[0]
        assert segment.indexes_are_true(None)
        index = segment.offset_index
        contents.append([index.entry(number) for number in range(index.entry_count)])
    assert contents[0] == contents[1]
    assert len(contents[0]) > 3


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_missing_index_below_the_recovery_point_is_rebuilt(suffix: str) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 40)
    expected = read_all(log)
    path = bench.path(log.segments[1].base_offset, suffix)
    log.close()
    before = bench.filesystem.read_bytes(path)
    bench.filesystem.unlink(path)
    log = bench.open(clean=True, recovery_point=40)
    assert read_all(log) == expected
    assert bench.filesystem.read_bytes(path) == before


def cut_points(size: int) -> list[int]:
    return sorted({0, 1, 11, 12, 16, 60, 61, 62, 100, size // 2, size - 1})


@pytest.mark.parametrize("cut", cut_points(170))
def test_a_torn_tail_ends_the_log(cut: int) -> None:
    bench = LogBench()
    log = bench.open()
    append(log, "a" * 100)
    append(log, "b" * 100)
    expected = values_of(log)
    size = log.size_bytes
    append(log, "c" * 100)
    log.abandon()
    file = bench.filesystem.open(bench.path(0))
    file.truncate(size + cut)
    file.close()
    log = bench.open()
    assert values_of(log) == expected
    assert bench.filesystem.size_bytes(bench.path(0)) == size
    assert append(log, "d").base_offset == 2


@pytest.mark.parametrize("recovery_point", [0, 10, 22])
def test_a_hole_above_the_recovery_point_ends_the_log_whatever_follows(recovery_point: int) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 60)
    segment = log.segments[4]
    victim = segment.base_offset + 2
    assert victim >= recovery_point
    position = segment.find(victim)
    assert position is not None
    log.abandon()
    bench.overwrite(segment.path, position[0], b"\0" * 40)
    log = bench.open(recovery_point=recovery_point)
    assert not log.offline
    assert log.log_end_offset == victim
    assert [r.offset for r in read_all(log)] == list(range(victim))
    assert len(bench.names(".log")) == 5
    assert append(log, "again").base_offset == victim


def test_a_lost_segment_above_the_recovery_point_ends_the_log() -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 60)
    lost = log.segments[3].base_offset
    log.abandon()
    bench.filesystem.unlink(bench.path(lost))
    log = bench.open()
    assert log.log_end_offset == lost
    assert len(bench.names(".log")) == 3


DAMAGES = ["garbled", "shorter", "missing", "all missing", "last shorter"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
def test_damage_below_the_recovery_point_takes_the_partition_offline(
    damage: str, clean: bool
) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    fill(log, 60)
    log.flush()
    bases = [s.base_offset for s in log.segments]
    log.close()
    filesystem = bench.filesystem
    last = bench.path(bases[-1])
    if damage == "garbled":
        bench.overwrite(last, 70, b"\xff\xff")
    elif damage in ("shorter", "last shorter"):
        path = last if damage == "last shorter" else bench.path(bases[2])
        file = filesystem.open(path)
        file.truncate(file.size_bytes - 5)
        file.close()
    elif damage == "missing":
        filesystem.unlink(bench.path(bases[2]))
    else:
        for base in bases:
            filesystem.unlink(bench.path(base))
    sizes = {n: filesystem.size_bytes(f"{bench.directory}/{n}") for n in bench.names(".log")}
    log = bench.open(clean=clean, recovery_point=60)
    if damage == "garbled" and clean:
        assert not log.offline, "found when it is read"
        assert read_once(log, bases[-1])[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline
    assert log.read(0, max_bytes=1).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.append_as_leader(RecordBatches.read(batch_of("x")), leader_epoch=0).error is (
        ErrorCode.KAFKA_STORAGE_ERROR
    )
    kept = {n: filesystem.size_bytes(f"{bench.directory}/{n}") for n in bench.names(".log")}
    assert kept == sizes, "evidence was destroyed"
    assert isinstance(filesystem, SimulatedFilesystem)
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0)


def test_random_tails_recover_to_a_prefix() -> None:
    seed = drawn_seed(20261121)
    rng = random.Random(seed)
    bench = LogBench(config=LogConfig(segment_index_bytes=1200, index_interval_bytes=300))
    log = bench.open()
    for number in range(12):
        append(log, *[f"{number}-{n}" * rng.randint(1, 20) for n in range(rng.randint(1, 4))])
        if number == 3:
            log.flush()
    flushed = log.recovery_point
    flushed_size = log.segments.active.hints[flushed]
    expected = as_records(read_all(log))
    log.abandon()
    intact = bench.filesystem.read_bytes(bench.path(0))
    for _ in range(400):
        damaged = bytearray(intact)
        for _ in range(rng.randint(1, 3)):
            at = rng.randint(flushed_size, max(flushed_size, len(damaged) - 1))
            if at >= len(damaged):
                break
            match rng.randint(0, 3):
                case 0:
                    damaged[at] ^= rng.randint(1, 255)
                case 1:
                    del damaged[at:]
                case 2:
                    damaged[at : at + 64] = rng.randbytes(len(damaged[at : at + 64]))
                case 3:
                    damaged[at:at] = bytes(rng.randint(1, 600))
        file = bench.filesystem.open(bench.path(0))
        file.truncate(0)
        file.append(damaged)
        file.close()
        log = bench.open(recovery_point=flushed)
        assert not log.offline, (seed, log.offline_reason)
        found = as_records(read_all(log))
        assert found == expected[: len(found)], seed
        assert log.log_end_offset >= flushed, seed
        assert len(found) == log.log_end_offset, seed
        log.abandon()


def test_leftovers_of_a_stop_are_removed() -> None:
    bench = LogBench()
    log = bench.open()
    append(log, "a")
    log.close()
    for name in (
        "00000000000000000009.log.deleted",
        "00000000000000000009.index",
        "00000000000000000004.timeindex",
        "00000000000000000000.log.cleaned",
        "leader-epoch-checkpoint.tmp",
    ):
        bench.filesystem.open(f"{bench.directory}/{name}", create=True).close()
    log = bench.open(clean=True, recovery_point=1)
    assert values_of(log) == ["a"]
    assert bench.names() == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
        "segment-seals",
    ]


def epochs_written(segment_bytes: int) -> LogBench:
    """Batches of one record: fifteen of epoch 3, fifteen of epoch 4, all flushed and sealed."""
    bench = LogBench(config=LogConfig(segment_bytes=segment_bytes, segment_index_bytes=4096))
    log = bench.open()
    for number in range(30):
        append(log, "x" * 50, leader_epoch=3 + number // 15)
    log.flush()
    log.close()
    return bench


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("segment_bytes", [1000, 100_000], ids=["many segments", "one segment"])
@pytest.mark.parametrize(
    "entries",
    [[], [(7, 0)], [(3, 0)], [(3, 0), (4, 13)], [(3, 0), (4, 16)], [(3, 0), (4, 15), (5, 29)]],
)
def test_an_epoch_file_that_no_seal_speaks_for_is_the_wrong_one(
    entries: list[tuple[int, int]], segment_bytes: int, clean: bool
) -> None:
    bench = epochs_written(segment_bytes)
    path = f"{bench.directory}/leader-epoch-checkpoint"
    write_rows(bench.filesystem, path, entries)
    log = bench.open(clean=clean, recovery_point=30)
    assert not log.offline, log.offline_reason
    assert log.leader_epoch_cache.entries == [(3, 0), (4, 15)]
    assert len(read_all(log)) == 30
    log.close()
    assert read_leader_epoch_checkpoint(bench.filesystem, path) == [(3, 0), (4, 15)]


COMPACTED = [(0, 0), (1, 2), (2, 4), (3, 9)]
LEFT = {0: 0, 1: 0, 7: 2, 8: 2, 9: 3}
"""Leader epochs by offset."""


@pytest.mark.parametrize("recovery_point", [0, 5, 10])
@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (COMPACTED, COMPACTED),
        ([(0, 0), (1, 2), (2, 4), (3, 10)], COMPACTED),
        ([(0, 0), (2, 3), (3, 9)], [(0, 0), (2, 3), (3, 9)]),
        ([(0, 0), (1, 1), (3, 8)], [(0, 0), (2, 7), (3, 9)]),
        ([(1, 4), (3, 5)], [(0, 0), (1, 4), (2, 7), (3, 9)]),
    ],
)
def test_an_epoch_begins_where_it_began_though_its_first_records_are_compacted(
    entries: list[tuple[int, int]], found: list[tuple[int, int]], recovery_point: int
) -> None:
    """A replica with other records from there on is cut there, and not only at what is left."""
    bench = LogBench(config=LogConfig(cleanup_policy=("compact",)))
    log = bench.open()
    for offset, leader_epoch in LEFT.items():
        data = batch_of(f"{offset}")
        data[:8] = offset.to_bytes(8)
        data[12:16] = leader_epoch.to_bytes(4)
        assert log.append_as_follower(data, leader_epoch=3).error is ErrorCode.NONE
    log.flush()
    log.abandon()
    path = f"{bench.directory}/leader-epoch-checkpoint"
    write_rows(bench.filesystem, path, entries)
    log = bench.open(recovery_point=recovery_point)
    assert not log.offline, log.offline_reason
    assert log.leader_epoch_cache.entries == found


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_an_epoch_file_with_an_epoch_that_begins_within_a_batch_is_wrong(clean: bool) -> None:
    """As one that is cut within a number."""
    bench = LogBench()
    log = bench.open()
    for number in range(8):
        append(log, "a", "b", "c", "d", "e", "f", leader_epoch=number // 3)
    log.flush()
    log.close()
    path = f"{bench.directory}/leader-epoch-checkpoint"
    write_rows(bench.filesystem, path, [(0, 0), (1, 1), (2, 36)])
    log = bench.open(clean=clean, recovery_point=48)
    assert log.leader_epoch_cache.entries == [(0, 0), (1, 18), (2, 36)]
    assert len(read_all(log)) == 48


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("segment_bytes", [1000, 100_000], ids=["many segments", "one segment"])
@pytest.mark.parametrize(("number", "epoch"), [(0, 1), (14, 4), (29, 5)])
def test_a_batch_that_contradicts_the_sealed_epochs_is_damaged(
    number: int, epoch: int, segment_bytes: int, clean: bool
) -> None:
    """No batch beside it contradicts it: it is the log's first or last, or that of an epoch."""
    bench = epochs_written(segment_bytes)
    log = bench.open(clean=True, recovery_point=30)
    segment = log.segments[log.segments.index_for(number)]
    found = segment.find(number)
    assert found is not None
    log.abandon()
    bench.overwrite(segment.path, found[0] + 12, epoch.to_bytes(4, "big"))
    log = bench.open(clean=clean, recovery_point=30)
    assert f"leader epoch {epoch} where the log has" in log.offline_reason
    assert segment.path in log.offline_reason


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_leader_epochs_are_taken_from_the_batches_when_the_file_is_lost(
    clean: bool, damage: str
) -> None:
    bench = LogBench(config=SMALL)
    log = bench.open()
    for number in range(40):
        append(log, "x" * 50, leader_epoch=number // 15)
    log.flush()
    log.close()
    path = f"{bench.directory}/leader-epoch-checkpoint"
    if damage == "missing":
        bench.filesystem.unlink(path)
    else:
        bench.overwrite(path, 0, b"zz")
    log = bench.open(clean=clean, recovery_point=40)
    assert log.leader_epoch_cache.entries == [(0, 0), (1, 15), (2, 30)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("start_offset", "epochs"),
    [(14, [(3, 14), (4, 15)]), (15, [(4, 15)]), (20, [(4, 20)])],
)
def test_the_epochs_of_a_log_begin_where_its_records_do(
    start_offset: int, epochs: list[tuple[int, int]], clean: bool
) -> None:
    """Its records were deleted by request, and the file that has the epochs was not written yet."""
    bench = epochs_written(100_000)
    log = bench.open(clean=clean, recovery_point=30, log_start_offset=start_offset)
    assert log.leader_epoch_cache.entries == epochs


def test_a_log_start_past_the_surviving_end_begins_there() -> None:
    bench = LogBench()
    log = bench.open()
    fill(log, 10)
    log.abandon()
    file = bench.filesystem.open(bench.path(0))
    file.truncate(200)
    file.close()
    log = bench.open(log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
    assert append(log, "a").base_offset == 7
    assert bench.names(".log") == ["00000000000000000007.log"]


def test_a_disk_error_while_all_is_cut_at_the_start_takes_only_this_log_offline() -> None:
    """The whole node did not start (replication simulation, seed 682199838)."""
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    fill(log, 10)
    log.abandon()
    file = bench.filesystem.open(bench.path(0))
    file.truncate(200)
    file.close()
    filesystem.faults.append(
        Fault("write_atomically", "leader-epoch-checkpoint", errno.EIO, count=None)
    )
    filesystem.faults.append(Fault("create", "leader-epoch-checkpoint", errno.EIO, count=None))
    log = bench.open(log_start_offset=7)
    assert log.offline
    assert "restart at 7 failed" in log.offline_reason


def test_a_disk_error_while_opening_takes_only_this_log_offline() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    append(log, "a")
    log.abandon()
    filesystem.faults.append(Fault("pread", ".log", errno.EIO))
    log = bench.open()
    assert log.offline
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0)
    filesystem.faults.append(Fault("create", "topic-9", errno.ENOSPC))
    with pytest.raises(DiskFull):
        LogBench(filesystem, "/data/topic-9").open()


def test_the_recovery_point_moves_only_with_a_successful_flush() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=LogConfig(flush_messages=3))
    log = bench.open()
    fill(log, 2)
    assert (log.recovery_point, log.needs_flush) == (0, False)
    fill(log, 1)
    assert log.needs_flush
    job = log.start_flush()
    assert job is not None
    fill(log, 1)
    job.run()
    log.finish_flush(job)
    assert (log.recovery_point, log.needs_flush) == (3, False)
    log.flush()
    assert log.start_flush() is None
    fill(log, 1)
    filesystem.faults.append(Fault("fdatasync", ".log", errno.EIO))
    with pytest.raises(Exception, match="flush failed"):
        log.flush()
    assert log.offline
    assert log.recovery_point == 4


def test_a_flush_covers_all_segments_since_the_last_one() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem, config=SMALL)
    log = bench.open()
    fill(log, 40)
    count = len(log.segments)
    before = filesystem.operation_count
    log.flush()
    names = [str(o) for o in filesystem.operations[before:]]
    assert sum(n.startswith("fdatasync") for n in names) == count
    assert sum(n.endswith(".index") and n.startswith("fsync") for n in names) == count
    assert sum(n.endswith(".snapshot") and n.startswith("fsync") for n in names) == count - 1
    assert names[-1].startswith("fsync_directory")
    fill(log, 1)
    before = filesystem.operation_count
    log.flush()
    rolled = len(log.segments) > count
    assert sum(o.name == "fdatasync" for o in filesystem.operations[before:]) == 1 + rolled


# -- directories that Apache Kafka wrote ---------------------------------------------------------


def golden(name: str) -> tuple[SimulatedFilesystem, str]:
    filesystem = SimulatedFilesystem()
    source = GOLDEN / name
    for path in source.iterdir():
        filesystem.put(f"/data/{source.name}/{path.name}", path.read_bytes())
    return filesystem, f"/data/{source.name}"


def open_golden(name: str, *, clean: bool, **options: int) -> Log:
    filesystem, directory = golden(name)
    topic, _, partition = directory.rpartition("/")[2].rpartition("-")
    config = LogConfig(segment_index_bytes=4096)
    log = Log.open(
        filesystem,
        ManualClock(1_763_700_000_000),
        directory,
        TopicPartition(topic, int(partition)),
        config,
        clean_shutdown=clean,
        **options,
    )
    assert not log.offline, log.offline_reason
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("name", "end_offset"),
    [
        ("kafka-4.3.0-clean/log-1/codecs-0", 107),
        ("kafka-4.3.0-clean/log-1/rolled-0", 20),
        ("kafka-4.3.0-clean/log-1/trimmed-0", 20),
        ("kafka-4.3.0-clean/log-2/append-time-0", 25),
        ("kafka-4.3.0-clean/log-2/dense-0", 40),
        ("kafka-4.3.0-clean/log-2/empty-0", 0),
        ("kafka-4.3.0-clean/log-2/transactions-0", 43),
        ("kafka-4.3.0-killed/log-1/codecs-0", 100),
        ("kafka-4.3.0-killed/log-1/trimmed-0", 20),
        ("kafka-4.3.0-killed/log-2/transactions-0", 37),
        ("kafka-4.3.0-killed/log-2/dense-0", 40),
    ],
)
def test_logs_written_by_kafka(name: str, end_offset: int, clean: bool) -> None:
    if clean and "killed" in name:
        pytest.skip("not a clean stop")
    log = open_golden(name, clean=clean)
    assert log.log_end_offset == end_offset
    offsets = [r.offset for r in read_all(log)]
    assert offsets == list(range(log.log_start_offset, end_offset))
    for offset in offsets:
        assert read_once(log, offset, max_bytes=1)[1]


@pytest.mark.parametrize(
    "name",
    [
        "kafka-4.3.0-clean/log-1/rolled-0",
        "kafka-4.3.0-clean/log-2/dense-0",
    ],
)
def test_rebuilt_indexes_are_kafkas_bytes(name: str) -> None:
    filesystem, directory = golden(name)
    suffixes = (".index", ".timeindex")
    before = {p: d for p, d in filesystem.files().items() if p.endswith(suffixes)}
    assert any(before.values())
    topic, _, partition = directory.rpartition("/")[2].rpartition("-")
    for path in before:
        filesystem.put(path, b"")
    log = Log.open(
        filesystem,
        ManualClock(1_763_700_000_000),
        directory,
        TopicPartition(topic, int(partition)),
        LogConfig(index_interval_bytes=256 if topic == "dense" else 4096),
    )
    log.close()
    after = {p: d for p, d in filesystem.files().items() if p.endswith(suffixes)}
    assert after == before


def test_transactions_of_kafka_are_understood() -> None:
    log = open_golden("kafka-4.3.0-clean/log-2/transactions-0", clean=True)
    assert log.last_stable_offset < log.log_end_offset, "one was open at the stop"
    aborted = aborted_transactions(log, 0, log.log_end_offset)
    assert len(aborted) == 5
    assert log.producer_state.producers
    again = open_golden("kafka-4.3.0-clean/log-2/transactions-0", clean=False)
    assert again.last_stable_offset == log.last_stable_offset
    assert aborted_transactions(again, 0, again.log_end_offset) == aborted


@pytest.mark.parametrize("left", [b"", bytes(12)], ids=["empty", "zeros"])
def test_a_time_index_that_a_power_loss_emptied_is_rebuilt(left: bytes) -> None:
    """Else retention takes the segment for ages old, and lookups by time pass it over."""
    bench = LogBench(config=LogConfig(retention_ms=1000))
    log = bench.open()
    append(log, "a")
    log.flush()
    log.roll()
    append(log, "b")
    log.abandon()
    path = bench.path(0, ".timeindex")
    bench.filesystem.open(path).truncate(0)
    bench.filesystem.open(path).append(left)
    log = bench.open(recovery_point=1)
    log.update_high_watermark(2)
    found = offset_for_timestamp(log, START_MS)
    assert found is not None
    assert found.offset == 0
    assert log.apply_retention(START_MS + 1000) == 0


def test_records_of_1970_are_found_after_their_time_index_was_emptied() -> None:
    bench = LogBench()
    log = bench.open()
    append(log, "a", timestamp_ms=0)
    log.flush()
    log.roll()
    append(log, "b", timestamp_ms=-1)
    log.abandon()
    bench.filesystem.open(bench.path(0, ".timeindex")).truncate(0)
    found = offset_for_timestamp(bench.open(recovery_point=1), 0)
    assert found is not None
    assert found.offset == 0


@pytest.mark.parametrize("base_offset", [0, 1, 2])
def test_a_batch_that_overlaps_the_one_before_ends_the_log(base_offset: int) -> None:
    """Also in the first segment, whose first batch may begin below the log's start."""
    bench = LogBench()
    log = bench.open()
    append(log, "a", "b", "c")
    position = log.size_bytes
    append(log, "d", "e")
    log.abandon()
    bench.overwrite(bench.path(0), position, base_offset.to_bytes(8, "big"))
    log = bench.open()
    assert (log.log_end_offset, log.size_bytes) == (3, position)
    assert values_of(log) == ["a", "b", "c"]
