"""Files beside the log that were lost, cut or exchanged while no process ran.

Each file of a partition's directory except the `.log` files is, in turn, missing, empty, cut at
every entry, and one of another segment. Whatever of it the log believes must be what it said
before; what a segment's seal covers is on the disk again as it was.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from moldau.protocol.records import ControlRecordType
from moldau.storage.append import RecordBatches
from moldau.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SEALS,
    CleanShutdown,
    write_clean_shutdown_marker,
    write_offset_checkpoint,
)
from moldau.storage.indexes import TXN_ENTRY, OffsetIndex, TimeIndex
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.verify import Verification
from tests.storage.log_fixtures import (
    START_MS,
    TOPIC_PARTITION,
    LogBench,
    append,
    as_records,
    batch_of,
    fill,
    offset_for_timestamp,
    offset_of_max_timestamp,
    read_all,
)
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.storage.test_log_producers import end, send
from tests.storage.transaction_reader import read_committed

CONFIG = LogConfig(
    retention_ms=1000, segment_bytes=10_000, index_interval_bytes=200, segment_index_bytes=4096
)
ENTRY_BYTES = {
    ".index": OffsetIndex.ENTRY.size,
    ".timeindex": TimeIndex.ENTRY.size,
    ".txnindex": TXN_ENTRY.size,
}
SNAPSHOT_HEAD_BYTES, SNAPSHOT_ENTRY_BYTES = 10, 42
Files = dict[str, bytes]


def write_history(log: Log) -> None:
    """Four segments: transactions of both outcomes, one over three segments, one left open."""
    for number in range(4):
        epoch, at_ms = number // 2, START_MS + 1000 * number
        fill(log, 4, value_bytes=40 + 10 * number, leader_epoch=epoch, timestamp_ms=at_ms)
        for producer_id in (20, 21, 22)[: 1 + number]:
            sent = 3 * number
            for sequence in (sent, sent + 1, sent + 2):
                send(log, sequence, producer_id=producer_id, transactional=True, leader_epoch=epoch)
            aborts = (producer_id + number) % 2 == 0
            kind = ControlRecordType.ABORT if aborts else ControlRecordType.COMMIT
            if (producer_id, number) != (21, 1):
                end(log, kind, producer_id=producer_id, leader_epoch=epoch)
        send(log, number, producer_id=30, leader_epoch=epoch)
        append(log, "late", leader_epoch=epoch, timestamp_ms=at_ms + 500)
        if number < 3:
            log.roll()
            log.flush()
    send(log, 0, producer_id=40, transactional=True, leader_epoch=1)


class Seen(NamedTuple):
    """What the log says through its public face."""

    records: list[tuple[int, bytes | None]]
    committed: list[tuple[int, bytes | None]]
    times: list[object]
    epochs: list[tuple[int, int]]
    last_stable_offset: int
    duplicates: list[bool]


def look(log: Log) -> Seen:
    assert not log.offline, log.offline_reason
    log.update_high_watermark(log.log_end_offset)
    stamps = range(START_MS - 500, START_MS + 4000, 250)
    committed = as_records(read_committed(log))
    for start in range(log.log_start_offset, log.log_end_offset, 9):
        assert as_records(read_committed(log, start, max_bytes=300)) == [
            each for each in committed if each[0] >= start
        ]
    last = [batch_of("30/0/3", producer_id=30, base_sequence=3)]
    last.append(batch_of("40/0/0", producer_id=40, base_sequence=0, is_transactional=True))
    return Seen(
        as_records(read_all(log)),
        committed,
        [offset_of_max_timestamp(log), *[offset_for_timestamp(log, each) for each in stamps]],
        [log.end_offset_for_epoch(epoch) for epoch in range(4)],
        log.last_stable_offset,
        [
            log.append_as_leader(RecordBatches.read(each), leader_epoch=1).is_duplicate
            for each in last
        ],
    )


def read(bench: LogBench) -> Files:
    disk, directory = bench.filesystem, bench.directory
    return {name: disk.read_bytes(f"{directory}/{name}") for name in disk.listdir(directory)}


class Stopped:
    """A log's directory after a stop, and what a start on it has to say."""

    def __init__(self, *, clean: bool) -> None:
        self.clean = clean
        bench = LogBench(config=CONFIG)
        log = bench.open()
        write_history(log)
        log.flush()
        self.recovery_point = log.recovery_point
        if clean:
            log.close()
        else:
            log.abandon()
        self.directory = bench.directory
        self.files = read(bench)
        bench, log = self.open(self.files)
        self.seen = look(log)
        log.close()
        self.rebuilt = read(bench)
        """What the files hold after a start and a stop without damage."""

    def bench(self, files: Files) -> LogBench:
        disk = SimulatedFilesystem()
        disk.mkdirs(self.directory)
        for name, data in files.items():
            disk.put(f"{self.directory}/{name}", data)
        return LogBench(disk, self.directory, config=CONFIG)

    def open(self, files: Files) -> tuple[LogBench, Log]:
        bench = self.bench(files)
        return bench, bench.open(clean=self.clean, recovery_point=self.recovery_point)


def beside(files: Files) -> list[str]:
    return [name for name in files if not name.endswith(".log")]


def cuts(name: str, data: bytes) -> Iterator[int]:
    """Where an entry of the file ends, its end excepted."""
    suffix = name[name.rfind(".") :]
    if suffix in ENTRY_BYTES:  # Without the room that was made beforehand.
        yield from range(ENTRY_BYTES[suffix], len(data.rstrip(b"\0")), ENTRY_BYTES[suffix])
    elif suffix == ".snapshot":
        yield from range(SNAPSHOT_HEAD_BYTES, len(data), SNAPSHOT_ENTRY_BYTES)
    else:
        yield from (at + 1 for at, byte in enumerate(data[:-1]) if byte == ord("\n"))


def damages(files: Files, other: Files) -> Iterator[tuple[str, Files]]:
    """Every single damage: what it is, and the files with it. `other`: another partition's."""
    for name in beside(files):
        data = files[name]
        rest = {each: files[each] for each in files if each != name}
        yield f"{name} missing", rest
        contents = {f"cut to {at}": data[:at] for at in {0, *cuts(name, data)}}
        for which, source in (("this", files), ("another", other)):
            alike = [each for each in source if each.endswith(name[name.rfind(".") :])]
            after = [each for each in alike if each > name and source[each] != data] + alike
            contents[f"is {after[0]} of {which}"] = source[after[0]]
        for what, found in contents.items():
            if found != data:
                yield f"{name} {what}", rest | {name: found}
    spare = next(data for name, data in files.items() if name.endswith(".txnindex"))
    for name in files:  # Where nothing was aborted there is no file, and may be one of another.
        index = name.removesuffix(".log") + ".txnindex"
        if name.endswith(".log") and index not in files:
            yield f"{index} is of another", files | {index: spare}


def other_partition() -> Files:
    bench = LogBench(config=CONFIG)
    log = bench.open()
    for number in range(3):
        fill(log, 6 + number, value_bytes=70, leader_epoch=number * 2, timestamp_ms=START_MS - 9000)
        send(log, number, producer_id=20, transactional=True, leader_epoch=number * 2)
        end(log, ControlRecordType.ABORT, producer_id=20, leader_epoch=number * 2)
        log.roll()
        log.flush()
    log.close()
    return read(bench)


@cache
def written(stop: str) -> tuple[Stopped, Files]:
    return Stopped(clean=stop == "clean"), other_partition()


STOPS = ["clean", "killed"]


def rebuilt(files: Files, *, is_sealed: bool) -> Files:
    """The files that have to lie there again as they were written.

    An offset index that nothing speaks for is compared with the batch at each use.
    """
    suffixes = (".timeindex", ".txnindex", LEADER_EPOCH_CHECKPOINT)
    return {
        name: data
        for name, data in files.items()
        if name.endswith(suffixes) or (is_sealed and name.endswith(".index"))
    }


def named_by_verify(bench: LogBench, stopped: Stopped) -> set[str]:
    checkpoint = f"/data/{RECOVERY_POINT_CHECKPOINT}"
    write_offset_checkpoint(bench.filesystem, checkpoint, {TOPIC_PARTITION: stopped.recovery_point})
    if stopped.clean:
        write_clean_shutdown_marker(bench.filesystem, "/data", CleanShutdown(1))
    verification = Verification(bench.filesystem, deep=True)
    found = [*verification.findings(bench.directory)]
    assert not verification.is_damaged
    return {each.file.rsplit("/", 1)[1] for each in found} - {PARTITION_METADATA}


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "by others"])
@pytest.mark.parametrize("stop", STOPS)
def test_no_file_beside_the_log_is_believed(stop: str, is_sealed: bool) -> None:
    """Also without seals: what Apache Kafka or an older release has written."""
    stopped, others = written(stop)
    files, other = (
        {name: data for name, data in each.items() if is_sealed or name != SEGMENT_SEALS}
        for each in (stopped.files, others)
    )
    for what, damaged in [("nothing", files), *damages(files, other)]:
        bench, log = stopped.open(damaged)
        try:
            assert look(log) == stopped.seen
            log.close()
            found = rebuilt(read(bench), is_sealed=is_sealed)
            assert found == rebuilt(stopped.rebuilt, is_sealed=is_sealed)
            left = (".snapshot",) if is_sealed else (".snapshot", ".index")
            named = named_by_verify(bench, stopped)
            assert all(each.endswith(left) for each in named), "compared at use"
            log = bench.open(clean=True, recovery_point=log.log_end_offset)
            log.update_high_watermark(log.log_end_offset)
            assert log.apply_retention(START_MS + 2700) == 2, "by the times of the records"
        except AssertionError as error:
            raise AssertionError(f"{stop}, {what}: {error}") from error


@pytest.mark.parametrize("stop", STOPS)
def test_verify_names_each_file_that_is_not_believed(stop: str) -> None:
    """Except snapshots and epochs that are not there, which say nothing false, and fewer entries
    of a segment that was not closed.
    """
    stopped, others = written(stop)
    last = max(name for name in stopped.files if name.endswith(".log")).removesuffix(".log")
    assert named_by_verify(stopped.bench(stopped.files), stopped) == set()
    for what, damaged in damages(stopped.files, others):
        name = what.split()[0]
        is_gone = what.endswith("missing") and not name.endswith("index")
        is_open = stop == "killed" and name in (f"{last}.index", f"{last}.timeindex")
        if not (is_gone or is_open) and name != SEGMENT_SEALS:
            named = named_by_verify(stopped.bench(damaged), stopped)
            assert name in named, f"{stop}, {what}"


def test_a_start_reads_only_the_ends_of_sealed_segments() -> None:
    bench = LogBench()
    log = bench.open()
    for number in range(3):
        for at_ms in range(50):
            append(log, bytes(20_000), timestamp_ms=START_MS + 100 * number + at_ms)
        log.roll()
    log.close()
    disk = SimulatedFilesystem()
    for name, data in read(bench).items():
        disk.put(f"{bench.directory}/{name}", data)
    disk.record_reads = True
    bench = LogBench(disk, bench.directory)
    bench.open(clean=True, recovery_point=log.log_end_offset)
    read_bytes = sum(each.size for each in disk.operations if each.path.endswith(".log"))
    assert 0 < read_bytes < 3 * 32_768, "of three megabytes"


def test_without_room_for_seals_a_stop_is_clean_and_indexes_are_proved_when_needed() -> None:
    stopped, _ = written("clean")
    bench = LogBench(config=CONFIG)
    log = bench.open()
    assert isinstance(bench.filesystem, SimulatedFilesystem)
    bench.filesystem.faults.append(Fault("append", SEGMENT_SEALS, errno.ENOSPC, count=None))
    write_history(log)
    log.close()
    assert log.recovery_point == log.log_end_offset == stopped.recovery_point
    assert SEGMENT_SEALS not in bench.names()
    bench.filesystem.faults.clear()
    bench.filesystem.unlink(bench.path(0, ".txnindex"))
    log = bench.open(clean=True, recovery_point=log.recovery_point)
    assert look(log) == stopped.seen
    assert SEGMENT_SEALS not in bench.names()
    log.close()
    assert SEGMENT_SEALS in bench.names()
