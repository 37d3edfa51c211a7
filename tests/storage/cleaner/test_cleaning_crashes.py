"""Every crash point between two file operations of cleanings and swaps: the log that comes back has
the newest value of each key, every record where it was, and no aborted one to be seen.
"""

from __future__ import annotations

import os
import random as random_module

import pytest

from moldau.protocol.records import (
    ControlRecordType,
    Record,
    decode_end_txn_marker,
    decode_records,
)
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.kit.dice import drawn_seed
from tests.storage.cleaner.cleaner_bench import (
    Told,
    batches_of,
    committed,
    newest_of,
    told,
)
from tests.storage.crash_model import Model, Stored, require
from tests.storage.crash_workloads import (
    CrashPoint,
    Rebooter,
    Workload,
    run_workload,
)
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import START_MS

POWER_LOSSES_PER_POINT = int(os.environ.get("MOLDAU_POWER_LOSSES", "1"))
ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT
CONFIG = LogConfig(
    segment_bytes=900,
    segment_index_bytes=96,
    index_interval_bytes=150,
    retention_ms=-1,
    file_delete_delay_ms=500,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=200,
)


class CompactedWorkload(Workload):
    """Writes keys, some of them tombstones, and cleans."""

    def _batch(
        self, count: int, producer_id: int = -1, *, transactional: bool = False
    ) -> bytearray:
        records = []
        for delta in range(count):
            self.counter += 1
            key = b"key-%d" % self.random.randrange(6)
            value = None if self.random.random() < 0.2 else b"%d:" % self.counter + b"v" * 20
            records.append(Record(delta, START_MS + self.counter * 10, key, value))
        return self._encoded(records, producer_id, transactional=transactional)

    async def clean(self) -> None:
        await self.settle()
        count = self.manager.cleaner.figures.cleaned_count
        self.manager.cleaner.soon()
        await self.settle()
        assert self.manager.cleaner.figures.cleaned_count > count
        assert not self.manager.cleaner.uncleanable


async def updates(workload: Workload) -> None:
    """Plain and idempotent updates with tombstones, cleaned three times, the last after their
    horizon. Rolled segments are not flushed by themselves: the cleaning has to see to it."""
    assert isinstance(workload, CompactedWorkload)
    await workload.start()
    workload.log.on_roll = None
    for round_number in range(3):
        for number in range(16):
            workload.append(1 + number % 3, producer_id=number % 3 - 1)
            if number == 9 and not round_number:
                await workload.flush()
        await workload.clean()
        await workload.checkpoint()
        await workload.pass_time(300 * round_number)


async def transactions(workload: Workload) -> None:
    """Committed and aborted transactions among other updates, cleaned until their markers go."""
    assert isinstance(workload, CompactedWorkload)
    await workload.start()
    for _ in range(3):
        for number in range(3):
            workload.append(2, producer_id=5, transactional=True)
            workload.append(1)
            workload.append(2, producer_id=6, transactional=True)
            workload.end_transaction(5, ABORT if number % 2 else COMMIT)
            workload.end_transaction(6, ABORT)
        workload.log.roll()
        await workload.clean()
        await workload.pass_time(300)


WORKLOADS = [updates, transactions]


def check_compacted(log: Log, model: Model, *, power_loss: bool) -> None:
    """Raises CheckFailed when `log`, opened after a crash at `model`, is not right."""
    require(not log.offline, f"offline: {log.offline_reason}")
    log.update_high_watermark(log.log_end_offset)
    written = (*model.history, *model.in_flight)
    end = log.log_end_offset
    required_end = model.flushed_end if power_loss else model.end
    require(end >= required_end, f"ends at {end}, {required_end} is promised")
    require(log.log_start_offset == 0, f"starts at {log.log_start_offset}")
    expected = _committed_of(written, end)
    every = {record.offset: record for record in _records_of(written)}
    last_offset = -1
    for header, records in batches_of(log):
        require(header.base_offset > last_offset, "batches out of order")
        last_offset = header.last_offset
        for record in records:
            if not header.is_control:
                require(told(record) == every[record.offset], f"{record} was never written")
    require(last_offset + 1 in (end, 0), f"the last batch ends at {last_offset}, the log at {end}")
    found = committed(log)
    stable = log.last_stable_offset
    expected = [record for record in expected if record.offset < stable]
    require(
        newest_of(found) == newest_of(expected),
        f"newest: {newest_of(found)}\ninstead of {newest_of(expected)}",
    )
    require({*found} <= {*expected}, "an aborted record is seen")


def _records_of(written: tuple[Stored, ...]) -> list[Told]:
    return [
        told(record)
        for each in written
        if not each.header.is_control
        for record in decode_records(each.data)
    ]


def _committed_of(written: tuple[Stored, ...], end: int) -> list[Told]:
    """What readers of committed data may see of batches below `end`, by a simple-minded walk."""
    pending: dict[int, list[Told]] = {}
    visible: list[Told] = []
    for each in written:
        header = each.header
        if header.next_offset > end:
            break
        records = decode_records(each.data)
        if header.is_control:
            its = pending.pop(header.producer_id, [])
            if decode_end_txn_marker(records[0]).type is COMMIT:
                visible += its
        elif header.is_transactional:
            pending.setdefault(header.producer_id, []).extend(told(r) for r in records)
        else:
            visible += [told(r) for r in records]
    return sorted(visible, key=lambda record: record.offset)


class CompactedRebooter(Rebooter):
    """Checks compacted logs."""

    def __init__(self) -> None:
        super().__init__(CONFIG)

    def judge(self, log: Log, model: Model, *, power_loss: bool) -> None:
        check_compacted(log, model, power_loss=power_loss)

    def kept_files(self, filesystem: SimulatedFilesystem, log: Log) -> dict[str, bytes]:
        names = filesystem.listdir(log.directory)
        assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))]
        return {path: data for path, data in filesystem.files().items() if ".log" in path}


def is_of_interest(point: CrashPoint) -> bool:
    """Crashes of ordinary appends are other tests' business; a few do here."""
    operation = str(point.operation)
    return point.number % 40 == 0 or any(
        word in operation for word in ("cleaned", "swap", "deleted", "cleaner-offset", "snapshot")
    )


@pytest.mark.parametrize("steps", WORKLOADS, ids=lambda steps: steps.__name__)
def test_every_crash_point_of_a_cleaning(steps: object) -> None:
    seed = drawn_seed(20241)
    workload = run_workload(steps, seed, CONFIG, CompactedWorkload)  # type: ignore[arg-type]
    points = [point for point in workload.points if is_of_interest(point)]
    swaps = [point for point in points if ".swap" in str(point.operation)]
    assert len(swaps) > 20
    with CompactedRebooter() as rebooter:
        for point in points:
            random = random_module.Random(seed * 7919 + point.number)
            rebooter.check_point(point, random, seed, POWER_LOSSES_PER_POINT)


@pytest.mark.parametrize("steps", WORKLOADS, ids=lambda steps: steps.__name__)
def test_crash_while_a_swap_is_finished(steps: object) -> None:
    """A crash inside a swap, and again at each operation of the start that finishes it."""
    seed = drawn_seed(77)
    random = random_module.Random(seed)
    workload = run_workload(steps, seed, CONFIG, CompactedWorkload)  # type: ignore[arg-type]
    swaps = [point for point in workload.points if ".swap" in str(point.operation)]
    with CompactedRebooter() as rebooter:
        for point in random.sample(swaps, 3):
            root = point.image.after_kill()
            rebooter.check_starts(point, root, random, seed, power_loss=False)
