"""Which log a cleaner takes next, which one it leaves alone, and what its figures say of all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, encode_batch
from moldau.storage.append import RecordBatches
from moldau.storage.cleaner.job import CleaningEvent, CleaningFailed, CleaningJob
from moldau.storage.cleaner.log_cleaner import CLEANER, CLEANER_MANAGER, MAX_LOST_WORKERS
from moldau.storage.cleaner.workers import CleaningRun, InlineWorker
from moldau.storage.log import Log
from moldau.storage.log_config import CleanerSettings
from moldau.storage.log_manager import LogManager
from tests.kit.manual_clock import ManualClock
from tests.storage.cleaner.cleaner_bench import COMPACTED
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import (
    START_MS,
    format_directory,
    make_manager,
    topic_id,
    tp,
)


class WatchedWorker:
    """Works inside this process; it fails where the test says so."""

    def __init__(self, filesystem: SimulatedFilesystem) -> None:
        self._filesystem = filesystem
        self.cleaned: list[str] = []
        self.is_lost: Callable[[], bool] = lambda: False
        self.before_event: Callable[[], None] = lambda: None

    async def start(self, job: CleaningJob) -> CleaningRun:
        self.cleaned.append(job.directory.rpartition("/")[2])
        run = await InlineWorker(self._filesystem, random.Random(5)).start(job)
        return _WatchedRun(self, run)

    async def rest(self) -> None:
        """Nothing is kept."""


class _WatchedRun:
    def __init__(self, worker: WatchedWorker, run: CleaningRun) -> None:
        self._worker = worker
        self._run = run

    async def next_event(self) -> CleaningEvent:
        if self._worker.is_lost():
            raise CleaningFailed("its process has ended", is_worker_lost=True)
        self._worker.before_event()
        return await self._run.next_event()

    def abort(self) -> None:
        self._run.abort()


class Bench:
    """Several compacted logs in two log directories, and one cleaner."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.filesystem = SimulatedFilesystem(now_ms=self.clock.now_ms)
        for path in ("/one", "/two"):
            format_directory(self.filesystem, path)
        self.worker = WatchedWorker(self.filesystem)
        self.manager: LogManager = make_manager(
            self.filesystem,
            self.clock,
            ("/one", "/two"),
            config=COMPACTED,
            cleaner_settings=CleanerSettings(**options),
            make_cleaner_worker=lambda: self.worker,
        )

    async def log(self, name: str, count: int) -> Log:
        """A log of closed segments with so many records that are dirty."""
        log = self.manager.get_or_create(tp(name), topic_id(1))
        self.fill(log, count)
        return log

    def fill(self, log: Log, count: int) -> None:
        for number in range(count):
            key = b"k%d" % (number % 5)
            sent = encode_batch([Record(0, self.clock.now_ms(), key, b"v" * 60)])
            result = log.append_as_leader(RecordBatches.read(sent), leader_epoch=0)
            assert result.error is ErrorCode.NONE
        log.update_high_watermark(log.log_end_offset)
        log.roll()

    async def clean(self) -> list[str]:
        """Let the cleaner look, and wait until it has nothing to do; what it has cleaned."""
        cleaner = self.manager.cleaner
        self.worker.cleaned.clear()
        cleaner.soon()
        for _ in range(5_000):
            if not cleaner.is_busy:
                return list(self.worker.cleaned)
            await asyncio.sleep(0)
        raise AssertionError("the cleaner does not come to an end")

    @property
    def figures(self) -> dict[str, float]:
        return self.manager.cleaner.figures.values()


async def test_the_dirtiest_log_is_cleaned_first() -> None:
    bench = Bench()
    await bench.manager.start()
    logs = {name: await bench.log(name, 40) for name in ("a-0", "b-0", "c-0", "d-0")}
    assert sorted(await bench.clean()) == sorted(logs)
    for name, count in (("a-0", 12), ("b-0", 40), ("c-0", 25)):
        bench.fill(logs[name], count)
    assert await bench.clean() == ["b-0", "c-0", "a-0"]
    assert bench.figures[CLEANER_MANAGER + "max-dirty-percent"] == 0.0
    await bench.manager.shutdown(1)


async def test_figures_of_a_look_are_those_of_the_worst_log() -> None:
    bench = Bench()
    await bench.manager.start()
    logs = {name: await bench.log(name, 40) for name in ("a-0", "b-0", "c-0")}
    await bench.clean()
    for log in logs.values():
        log.update_config(replace(COMPACTED, min_cleanable_dirty_ratio=1.0))
    bench.fill(logs["a-0"], 10)
    bench.fill(logs["b-0"], 60)
    bench.fill(logs["c-0"], 10)
    assert await bench.clean() == [], "none is dirtier than its topic allows"
    ratios = {name: _ratio(log) for name, log in logs.items()}
    assert max(ratios, key=ratios.__getitem__) == "b-0"
    worst = float(int(100 * ratios["b-0"]))
    assert bench.figures[CLEANER_MANAGER + "max-dirty-percent"] == worst
    await bench.manager.shutdown(1)


def _ratio(log: Log) -> float:
    first_dirty = log.first_dirty_offset
    assert first_dirty is not None
    closed = [each for each in log.segments if each is not log.segments.active]
    dirty = sum(each.size_bytes for each in closed if each.base_offset >= first_dirty)
    return dirty / sum(each.size_bytes for each in closed)


async def test_the_time_of_the_last_cleaning_is_measured() -> None:
    bench = Bench()
    await bench.manager.start()
    await bench.log("a-0", 40)
    bench.worker.before_event = lambda: bench.clock.stand_still(1_500)
    await bench.clean()
    elapsed_ms = bench.manager.cleaner.figures.last_clean_ms
    assert elapsed_ms >= 3_000, "two events at least"
    assert elapsed_ms % 1_500 == 0
    assert bench.figures[CLEANER + "max-clean-time-secs"] == float(int(elapsed_ms / 1_000))
    await bench.manager.shutdown(1)


async def test_a_log_is_given_up_only_for_processes_that_it_ends_one_after_the_other() -> None:
    bench = Bench()
    await bench.manager.start()
    log = await bench.log("a-0", 40)
    for _ in range(3):
        bench.worker.is_lost = lambda: True
        for _ in range(MAX_LOST_WORKERS - 1):
            assert await bench.clean() == ["a-0"]
        bench.worker.is_lost = lambda: False
        assert await bench.clean() == ["a-0"]
        bench.fill(log, 20)
    assert not bench.manager.cleaner.uncleanable
    await bench.manager.shutdown(1)


async def test_what_a_deleted_partition_did_to_processes_is_forgotten() -> None:
    bench = Bench()
    await bench.manager.start()
    bench.worker.is_lost = lambda: True
    for _ in range(2):
        await bench.log("a-0", 40)
        for _ in range(MAX_LOST_WORKERS - 1):
            assert await bench.clean() == ["a-0"]
        bench.manager.delete(tp("a-0"))
    assert not bench.manager.cleaner.uncleanable
    await bench.manager.shutdown(1)


async def test_logs_that_cannot_be_compacted_are_counted_by_directory() -> None:
    bench = Bench()
    await bench.manager.start()
    assert bench.manager.cleaner.uncleanable_by_directory() == {"/one": (0, 0), "/two": (0, 0)}
    logs = [await bench.log(name, 40) for name in ("a-0", "b-0", "c-0", "d-0")]
    bench.worker.is_lost = lambda: True
    for _ in range(MAX_LOST_WORKERS):
        await bench.clean()
    sizes = {"/one": [0, 0], "/two": [0, 0]}
    for log in logs:
        place = sizes[log.directory[: len("/one")]]
        place[0] += 1
        place[1] += log.size_bytes
    expected = {path: (count, size_bytes) for path, (count, size_bytes) in sizes.items()}
    assert bench.manager.cleaner.uncleanable_by_directory() == expected
    assert [count for count, _ in expected.values()] == [2, 2]
    await bench.manager.shutdown(1)
