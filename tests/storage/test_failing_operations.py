"""A log on a disk on which one operation fails, each of them once.

Whatever the operation is: nothing but what a caller expects comes out, no descriptor stays open,
and the next process reads every record that was acknowledged and not cut.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import ControlRecordType, EndTxnMarker, encode_end_txn_batch
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.storage.log_fixtures import START_MS, LogBench, batch_of, offset_for_timestamp, read_all
from tests.storage.simulated_filesystem import SimulatedFilesystem

TOLD = (LogOffline, DiskFull)
NEVER_FAIL = ("exists", "is_directory")
CUT_AT, DELETED_BELOW = 5, 2


class OneFailure(SimulatedFilesystem):
    """Counts its operations; that number `fails_at` raises."""

    def __init__(self, fails_at: int = -1, error_number: int = 0) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.error_number = error_number
        self.seen = 0

    def check_fault(self, name: str, path: str) -> None:
        if name in NEVER_FAIL:
            return
        self.seen += 1
        if self.seen - 1 == self.fails_at:
            raise OSError(self.error_number, os.strerror(self.error_number), f"{name} {path}")


class Life:
    """What a log goes through in one process, step by step, and what was acknowledged."""

    def __init__(self, filesystem: OneFailure) -> None:
        self.filesystem = filesystem
        config = LogConfig(segment_bytes=400, segment_index_bytes=400, index_interval_bytes=1)
        self.bench = LogBench(filesystem, config=config)
        self.acknowledged: dict[int, str] = {}
        self.log: Log | None = None
        with suppress(DiskFull):
            self.log = self.bench.open()

    def run(self, *, is_clean: bool = True) -> None:
        """Every step, whatever becomes of those before it."""
        steps: list[Callable[[Log], None]] = [self._fill, self._flush, self._read]
        steps += [self._abort, self._cut, self._more]
        if is_clean:
            steps.append(Log.close)
        for step in steps:
            if self.log is not None:
                with suppress(*TOLD):
                    step(self.log)

    def end(self) -> None:
        """The process ends, with its checkpoints as they are."""
        if self.log is not None:
            self.log.abandon()

    def open(self, *, is_clean: bool = False) -> Log:
        """What the next process does."""
        recovery_point = 0 if self.log is None else self.log.recovery_point
        start = 0 if self.log is None else self.log.log_start_offset
        return self.bench.open(
            recovery_point=recovery_point, log_start_offset=start, clean=is_clean
        )

    def _append(self, log: Log, value: str, sequence: int = -1) -> None:
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        options: dict[str, Any] = {**producer, "is_transactional": True} if sequence >= 0 else {}
        result = log.append_as_leader(
            RecordBatches.read(batch_of(value, **options)), leader_epoch=0
        )
        if result.error is ErrorCode.NONE:
            self.acknowledged[result.base_offset] = value
        else:
            assert result.error is ErrorCode.KAFKA_STORAGE_ERROR

    def _fill(self, log: Log) -> None:
        for number in range(4):
            self._append(log, f"{number:0100d}")

    def _flush(self, log: Log) -> None:
        log.flush()
        log.update_high_watermark(DELETED_BELOW)
        log.delete_records(DELETED_BELOW)

    def _read(self, log: Log) -> None:
        result = log.read(DELETED_BELOW, max_bytes=1000)
        assert result.error in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
        if not isinstance(result.records, bytes):
            result.records.release()
        offset_for_timestamp(log, START_MS)

    def _abort(self, log: Log) -> None:
        self._append(log, "undecided", 0)
        marker = encode_end_txn_batch(
            EndTxnMarker(ControlRecordType.ABORT, 1),
            producer_id=7,
            producer_epoch=0,
            timestamp_ms=START_MS,
        )
        log.append_as_leader(
            RecordBatches.read(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        )

    def _cut(self, log: Log) -> None:
        self.acknowledged = {at: value for at, value in self.acknowledged.items() if at < CUT_AT}
        log.truncate_to(CUT_AT)

    def _more(self, log: Log) -> None:
        if log.log_end_offset <= CUT_AT:
            self._append(log, "more")
        log.roll()
        log.rest()


ERRORS = pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EMFILE])


def check_next_process(life: Life, where: str) -> None:
    """Nothing is open any more, and the next opening of the log finds what was acknowledged."""
    filesystem, log = life.filesystem, life.log
    if log is not None:
        assert log.offline_reason
    assert (filesystem.open_files, filesystem.open_maps) == (0, 0), where
    filesystem.fails_at = -1
    found = life.open()
    assert not found.offline, f"{where}: {found.offline_reason}"
    values = {each.offset: bytes(each.value or b"").decode() for each in read_all(found)}
    start = found.log_start_offset
    expected = {at: value for at, value in life.acknowledged.items() if at >= start}
    assert {at: values.get(at) for at in expected} == expected, where
    found.abandon()


def check_want_of_room(life: Life, where: str) -> None:
    """A log that is offline for want of room alone counts as one that can be opened again. A failed
    fsync says nothing about what is on the disk, whatever its reason.
    """
    log = life.log
    if log is not None and log.offline and log.offline_reason != "closed":
        is_trusted = "flush failed" not in log.offline_reason
        has_no_room = life.filesystem.error_number != errno.EIO
        assert log.lacks_room == (has_no_room and is_trusted), where


@ERRORS
def test_any_operation_of_a_life_may_fail(error_number: int) -> None:
    undisturbed = OneFailure()
    Life(undisturbed).run()
    assert undisturbed.seen > 150
    for fails_at in range(undisturbed.seen):
        life = Life(OneFailure(fails_at, error_number))
        life.run()
        check_want_of_room(life, f"operation {fails_at}")
        life.end()
        check_next_process(life, f"operation {fails_at}")


@ERRORS
@pytest.mark.parametrize("is_clean", [False, True])
def test_any_operation_of_a_start_may_fail(error_number: int, *, is_clean: bool) -> None:
    fails_at = 0
    while True:
        life = Life(OneFailure())
        life.run(is_clean=is_clean)
        life.end()
        filesystem = life.filesystem
        filesystem.seen, filesystem.fails_at, filesystem.error_number = 0, fails_at, error_number
        with suppress(DiskFull):
            life.open(is_clean=is_clean).abandon()
        if filesystem.seen <= fails_at:
            break
        check_next_process(life, f"operation {fails_at} of a start")
        fails_at += 1
    assert fails_at > 20
