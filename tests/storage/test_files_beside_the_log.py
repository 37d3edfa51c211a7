"""Files beside the log that were lost, cut or exchanged while no process ran.

Each file of a partition's directory except the `.log` files is, in turn, missing, empty, cut at
every entry, and one of another segment. Whatever of it the log believes must be what it said
before; what a segment's seal covers is on the disk again as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from moldau.protocol.records import ControlRecordType
from moldau.storage.indexes import TXN_ENTRY, OffsetIndex, TimeIndex
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.storage.log_fixtures import (
    START_MS,
    LogBench,
    append,
    as_records,
    batch_of,
    fill,
    offset_for_timestamp,
    offset_of_max_timestamp,
    read_all,
)
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.test_log_producers import end, send
from tests.storage.transaction_reader import read_committed

CONFIG = LogConfig(
    retention_ms=1000, segment_bytes=10_000, index_interval_bytes=200, segment_index_bytes=4096
)
ENTRY_BYTES = {
    ".index": OffsetIndex.ENTRY.size,
    ".timeindex": TimeIndex.ENTRY.size,
    ".txnindex": 34,
}
assert TXN_ENTRY.size == 34
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
                send(log, sequence, producer_id=producer_id, transactional=True)
            aborts = (producer_id + number) % 2 == 0
            kind = ControlRecordType.ABORT if aborts else ControlRecordType.COMMIT
            if (producer_id, number) != (21, 1):
                end(log, kind, producer_id=producer_id)
        send(log, number, producer_id=30)
        append(log, "late", leader_epoch=epoch, timestamp_ms=at_ms + 500)
        if number < 3:
            log.roll()
            log.flush()
    send(log, 0, producer_id=40, transactional=True)


class Seen(NamedTuple):
    """What the log says through its public face."""

    records: list[tuple[int, bytes | None]]
    committed: list[tuple[int, bytes | None]]
    times: list[object]
    epochs: list[tuple[int, int]]
    last_stable_offset: int
    duplicates: list[bool]
    retained: int


def look(log: Log) -> Seen:
    assert not log.offline, log.offline_reason
    log.update_high_watermark(log.log_end_offset)
    stamps = range(START_MS - 500, START_MS + 4000, 250)
    committed = as_records(read_committed(log))
    for start in range(log.log_start_offset, log.log_end_offset, 3):
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
        [log.append_as_leader(each, leader_epoch=1).is_duplicate for each in last],
        log.apply_retention(START_MS + 2000),
    )


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
        self.files = self.read(bench)
        self.seen = look(self.open(self.files)[1])

    def read(self, bench: LogBench) -> Files:
        return {
            name: bench.filesystem.read_bytes(f"{bench.directory}/{name}")
            for name in bench.filesystem.listdir(bench.directory)
        }

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
        suffix = name[name.rfind(".") :]
        for source in (files, other):
            for each in source:
                if each.endswith(suffix):
                    contents[f"is {each} of {'another' if source is other else 'this'}"] = source[
                        each
                    ]
        for what, found in contents.items():
            if found != data:
                yield f"{name} {what}", rest | {name: found}
    without = [
        name for name in files if name.endswith(".log") and name[:-4] + ".txnindex" not in files
    ]
    for name in without:  # Where nothing was aborted there is no file, and may be one of another.
        for each in files:
            if each.endswith(".txnindex"):
                yield (
                    f"{name[:-4]}.txnindex is {each}",
                    files | {name[:-4] + ".txnindex": files[each]},
                )


def other_partition() -> Files:
    bench = LogBench(config=CONFIG)
    log = bench.open()
    for number in range(3):
        fill(log, 6 + number, value_bytes=70, leader_epoch=number * 2, timestamp_ms=START_MS - 9000)
        send(log, number, producer_id=20, transactional=True)
        end(log, ControlRecordType.ABORT, producer_id=20)
        log.roll()
        log.flush()
    log.close()
    return Stopped.read(None, bench)  # type: ignore[arg-type]


STOPPED = {"clean": Stopped(clean=True), "killed": Stopped(clean=False)}
OTHER = other_partition()


@pytest.mark.parametrize("stop", STOPPED)
def test_no_file_beside_the_log_is_believed(stop: str) -> None:
    stopped = STOPPED[stop]
    for what, files in damages(stopped.files, OTHER):
        log = stopped.open(files)[1]
        try:
            assert look(log) == stopped.seen
        except AssertionError as error:
            raise AssertionError(f"{stop}, {what}: {error}") from error
