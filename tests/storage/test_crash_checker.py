"""The crash tests can fail: injected bugs are found by the same checker.

Each bug is one a storage engine could really have. A checker that lets one through is worthless.
"""

from __future__ import annotations

import random as random_module

import pytest

from moldau.storage import batch_scan, log_directory
from moldau.storage.checkpoints import RECOVERY_POINT_CHECKPOINT
from moldau.storage.indexes import OffsetIndex, TimeIndex, TransactionIndex
from moldau.storage.log import Log
from moldau.storage.log_segments import FlushJob
from moldau.storage.producer_state import ProducerState
from moldau.storage.segment import LogSegment
from moldau.storage.served_directories import ServedDirectories
from tests.kit.dice import drawn_seed
from tests.kit.injected_bugs import Inject, Patch
from tests.storage.crash_workloads import Rebooter, run_workload
from tests.storage.test_crash_points import (
    POWER_LOSSES_PER_POINT,
    appends_and_flushes,
    stops_and_starts,
    transactions,
    truncations,
)


def no_crc_check(patch: Patch) -> None:
    """Recovery believes whatever has a plausible header."""
    patch.setattr(batch_scan, "verify_crc", lambda *_: True)


def recovery_point_before_fsync(patch: Patch) -> None:
    """A flush that syncs nothing."""

    def run(self: FlushJob) -> None:
        for file in self.files:
            file.release()
        self.files.clear()

    patch.setattr(FlushJob, "run", run)


def no_directory_fsync(patch: Patch) -> None:
    """A flush that syncs files but not their names."""
    original = FlushJob.run

    class NoDirectories:
        def __init__(self, filesystem: object) -> None:
            self._filesystem = filesystem

        def __getattr__(self, name: str) -> object:
            return getattr(self._filesystem, name)

        def fsync_directory(self, path: str) -> None:
            pass

    def run(self: FlushJob) -> None:
        self.filesystem = NoDirectories(self.filesystem)  # type: ignore[assignment]
        self.seals = None  # Their file is renamed, which makes all names durable.
        original(self)

    patch.setattr(FlushJob, "run", run)


def marker_stays(patch: Patch) -> None:
    """The clean-shutdown marker survives the start."""
    patch.setattr(log_directory, "remove_clean_shutdown_marker", lambda *_: None)


def recovery_point_not_lowered(patch: Patch) -> None:
    """A truncation below the checkpointed recovery point."""
    original = ServedDirectories.write_next

    def write(self: ServedDirectories, name: str, log: Log, offset: int) -> None:
        if name != RECOVERY_POINT_CHECKPOINT:
            original(self, name, log, offset)

    patch.setattr(ServedDirectories, "write_next", write)


def wrong_index_position(patch: Patch) -> None:
    original = OffsetIndex.append
    patch.setattr(
        OffsetIndex, "append", lambda self, last, position: original(self, last, position + 1)
    )


def late_time_index(patch: Patch) -> None:
    """Time index entries that claim an earlier time than the log has."""
    original = TimeIndex.maybe_append
    patch.setattr(
        TimeIndex, "maybe_append", lambda self, time, offset: original(self, time - 1, offset)
    )


def forgotten_aborts(patch: Patch) -> None:
    patch.setattr(TransactionIndex, "append", lambda *_: None)


def producers_not_replayed(patch: Patch) -> None:
    """Recovery takes the snapshot and leaves out the batches after it."""
    patch.setattr(ProducerState, "replay", lambda *_, **__: None)


def lost_append(patch: Patch) -> None:
    """Every ninth append is acknowledged and not written."""
    original = LogSegment.append
    count = 0

    def append(self: LogSegment, records: object, batches: object, *more: object) -> None:
        nonlocal count
        count += 1
        if count % 9 == 0:
            original(self, b"", [], *more)  # type: ignore[arg-type]
        else:
            original(self, records, batches, *more)  # type: ignore[arg-type]

    patch.setattr(LogSegment, "append", append)


BUGS: list[tuple[Inject, object]] = [
    (no_crc_check, appends_and_flushes),
    (recovery_point_before_fsync, appends_and_flushes),
    (no_directory_fsync, appends_and_flushes),
    (marker_stays, stops_and_starts),
    (recovery_point_not_lowered, truncations),
    (wrong_index_position, appends_and_flushes),
    (late_time_index, appends_and_flushes),
    (forgotten_aborts, transactions),
    (producers_not_replayed, appends_and_flushes),
    (lost_append, appends_and_flushes),
]


@pytest.mark.parametrize(("inject", "steps"), BUGS, ids=lambda each: each.__name__)
def test_an_injected_bug_is_found(
    inject: Inject, steps: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = drawn_seed(20240229)
    inject(monkeypatch)
    with pytest.raises(AssertionError, match=f"seed {seed}"):
        check_all_points(steps, seed)


def check_all_points(steps: object, seed: int) -> None:
    with Rebooter() as rebooter:
        for point in run_workload(steps, seed).points:  # type: ignore[arg-type]
            random = random_module.Random(seed * 7919 + point.number)
            rebooter.check_point(point, random, seed, POWER_LOSSES_PER_POINT)
