"""LogJobs: the regular work on all logs: flush, retention, checkpoints, expiry, removal of files.

Owns: the timers, which logs are due for a flush (`flush.ms`), the flushes under way, and the queue
of renamed files and directories.
Must not: decide what retention deletes (`log_segments` does, by the logs' configs), rename, or keep
logs.
Invariant: whatever waits for a disk is offloaded; one visit to the loop handles at most
MAX_LOGS_PER_VISIT logs. Per log at most one flush runs; callers during a flush share the next one.
What is not removed before the process ends is found by its name at the next start.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    sync_partition_metadata,
)
from moldau.storage.faults import DiskFull, LogOffline, describe, is_out_of_room
from moldau.storage.log import Log
from moldau.storage.log_config import NEVER_MS, LogManagerSettings
from moldau.storage.log_directory import LogDirectory
from moldau.storage.log_table import LogTable
from moldau.storage.periodic import PeriodicJob
from moldau.storage.served_directories import ServedDirectories

logger = logging.getLogger(__name__)

MAX_REMOVALS_PER_CALL = 64
"""Paths removed in one visit to a disk thread, so that others get their turn."""

MAX_LOGS_PER_VISIT = 64
"""Logs looked at before other callbacks of the loop get their turn."""

MAX_PARALLEL_FLUSHES = 4
"""Logs flushed at a time, regularly and at shutdown; as many as there are disk threads."""


class DelayedRemoval:
    """A heap of (deadline, path); one timer for the earliest."""

    def __init__(self, filesystem: Filesystem, clock: Clock) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._heap: list[tuple[float, int, str]] = []
        self._sequence = 0
        self._job = PeriodicJob("removal", clock, self._next_ms, self._run)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, delay_ms: float, paths: list[str]) -> None:
        deadline_ms = self._clock.monotonic_ms() + delay_ms
        for path in paths:
            self._sequence += 1
            heapq.heappush(self._heap, (deadline_ms, self._sequence, path))
        if paths and not self._job.is_running:
            self._job.start()

    async def stop(self) -> None:
        """Remove nothing more; a running removal is finished first."""
        await self._job.stop()

    def _next_ms(self) -> int:
        if not self._heap:
            return NEVER_MS
        return max(0, ceil(self._heap[0][0] - self._clock.monotonic_ms()))

    async def _run(self) -> None:
        heap = self._heap
        while True:
            now_ms = self._clock.monotonic_ms()
            due: list[str] = []
            while heap and heap[0][0] <= now_ms and len(due) < MAX_REMOVALS_PER_CALL:
                due.append(heapq.heappop(heap)[2])
            if not due:
                return
            await self._filesystem.offload(_remove_all, self._filesystem, due)


def _remove_all(filesystem: Filesystem, paths: list[str]) -> None:
    for path in paths:
        try:
            if filesystem.is_directory(path):
                filesystem.rmtree(path)
                logger.info("removed %s", path)
            else:
                filesystem.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s could not be removed: %s", path, describe(error))


@dataclass(eq=False)
class LogJobs:
    """States: made -> `start` -> running -> `stop`."""

    _filesystem: Filesystem
    _clock: Clock
    _table: LogTable
    _directories: ServedDirectories
    _settings: LogManagerSettings
    _is_cleaning: Callable[[Log], bool]
    on_flushed: Callable[[float], object] | None = None
    """Called with the milliseconds that each flush of a log took."""
    unsynced: dict[str, str] = field(default_factory=dict)
    """Partition directories that are not durable yet -> their log directory's path."""
    _made: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """New partition directories, for the log: by topic and log directory's path."""

    def __post_init__(self) -> None:
        settings = self._settings
        self.removal = DelayedRemoval(self._filesystem, self._clock)
        self._flushes: dict[TopicPartition, asyncio.Future[None]] = {}
        self._rolled: dict[TopicPartition, Log] = {}
        self._troubled: set[tuple[str, TopicPartition]] = set()
        """Kind of work and log: what raised and has not succeeded since, or is being done."""
        self._ends_when_last_seen: dict[TopicPartition, int] = {}
        self._jobs: list[PeriodicJob] = []
        self.retention = self._job(
            "retention",
            settings.retention_check_interval_ms,
            partial(self._visit, "retention", self.retain),
        )
        self._job("flush", settings.flush_check_interval_ms, self._flush_due)
        self.recovery_points = self._job(
            "recovery points",
            settings.recovery_point_checkpoint_interval_ms,
            self._checkpoint_recovery_points,
        )
        self.log_start_offsets = self._job(
            "log start offsets",
            settings.log_start_offset_checkpoint_interval_ms,
            partial(self._checkpoint, LOG_START_OFFSET_CHECKPOINT),
        )
        self.high_watermarks = self._job(
            "high watermarks",
            settings.high_watermark_checkpoint_interval_ms,
            partial(self._checkpoint, HIGH_WATERMARK_CHECKPOINT),
        )
        self._job(
            "producer expiry",
            settings.producer_expiration_check_interval_ms,
            partial(self._visit, "expiry", Log.expire_producers),
        )
        self.rest = self._job("rest", settings.idle_check_interval_ms, self._rest_idle)
        self.rolled_flush = self._job("flush after roll", NEVER_MS, self._flush_rolled)
        self.sync_created = self._job("sync of new", NEVER_MS, self._sync_created)

    def _job(
        self, name: str, interval_ms: int, run: Callable[[], Coroutine[object, None, None]]
    ) -> PeriodicJob:
        job = PeriodicJob(name, self._clock, interval_ms, run)
        self._jobs.append(job)
        return job

    def start(self) -> None:
        """Begin; retention waits for `initial_delay_ms`, so that it does not slow down a start."""
        for job in self._jobs:
            is_delayed = job is self.retention
            job.start(self._settings.initial_delay_ms if is_delayed else None)

    async def stop(self) -> None:
        """No job runs any more when this returns; requested flushes are finished too."""
        for job in self._jobs:
            await job.stop()
        await self.removal.stop()
        while self._flushes:
            await asyncio.wait(list(self._flushes.values()))

    async def flush(self, log: Log) -> bool:
        """Make durable what the log holds at the time of the call; concurrent calls share fsyncs.

        Returns False when the log went offline instead, or the disk is too full to promise it.
        """
        goal = log.log_end_offset
        flushes = self._flushes
        key = log.topic_partition
        while not log.offline:
            running = flushes.get(key)
            if running is not None:
                await asyncio.wait([running])
                if log.recovery_point >= min(goal, log.log_end_offset):
                    break
                continue
            done = flushes[key] = asyncio.get_running_loop().create_future()
            try:
                await self._flush_once(log)
            except DiskFull as error:
                logger.warning("%s", error)
                return False
            finally:
                del flushes[key]
                done.set_result(None)
            if log.recovery_point >= min(goal, log.log_end_offset):
                break
        return not log.offline

    async def _flush_once(self, log: Log) -> None:
        """Raises: DiskFull."""
        if log.directory in self.unsynced:
            await self._sync_created()
            if log.directory in self.unsynced:
                raise DiskFull(f"{log.name}: its directory cannot be made durable now")
        try:
            job = log.start_flush()
            if job is None:
                return
            started_ms = self._clock.monotonic_ms()
            await self._filesystem.offload(job.run)
            if self.on_flushed is not None:
                self.on_flushed(self._clock.monotonic_ms() - started_ms)
            if not log.offline:
                log.finish_flush(job)
        except LogOffline as error:
            logger.error("%s", error)

    async def flush_all(self, logs: Iterable[Log]) -> None:
        waiting = list(reversed(self._troubled_last("flush", logs)))

        async def work() -> None:
            while waiting:
                log = waiting.pop()
                if not log.offline:
                    with self._in_trouble("flush", log):
                        await self.flush(log)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(MAX_PARALLEL_FLUSHES, len(waiting))):
                workers.create_task(work())

    def flush_soon(self, log: Log) -> None:
        """The log rolled: its closed segments will not change, so make them durable."""
        self._rolled[log.topic_partition] = log
        self.rolled_flush.soon()

    async def _flush_rolled(self) -> None:
        while self._rolled:
            logs = list(self._rolled.values())
            self._rolled.clear()
            try:
                await self.flush_all(logs)
                logs.clear()
            finally:
                for log in logs:
                    self._rolled.setdefault(log.topic_partition, log)

    async def _flush_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due = [
            log
            for log in self._table.logs.values()
            if log.recovery_point < log.log_end_offset
            and now_ms - log.last_flush_ms >= log.config.flush_ms
        ]
        await self.flush_all(due)

    def created(self, topic_partition: TopicPartition, path: str, directory: LogDirectory) -> None:
        """A new partition has that directory."""
        self._made.setdefault((topic_partition.topic, directory.path), []).append(path)
        self.sync_soon(path, directory)

    def sync_soon(self, path: str, directory: LogDirectory) -> None:
        """The partition's directory is new, or has a new file: make both durable."""
        self.unsynced[path] = directory.path
        self.sync_created.soon()

    async def _sync_created(self) -> None:
        """Make new partition directories durable, names before anything that refers to them."""
        unsynced = self.unsynced
        while unsynced:
            batch = dict(list(unsynced.items())[:MAX_LOGS_PER_VISIT])
            failed = await self._filesystem.offload(_sync_all, self._filesystem, batch)
            postponed = {parent for parent, error in failed.items() if is_out_of_room(error)}
            for path, parent in batch.items():
                if parent not in postponed and unsynced.get(path) == parent:
                    del unsynced[path]
            for parent, error in failed.items():
                directory = self._directories.at(parent)
                self._directories.failed_to_write(directory, "a new partition", error)
            while self._made:
                (topic, parent), paths = self._made.popitem()
                many = f"{len(paths)} partitions of {topic} in {parent}"
                logger.info("made %s", paths[0] if len(paths) == 1 else many)
            if postponed:
                return  # A flush of such a partition, or the next new one, retries.

    def retain(self, log: Log) -> None:
        """Apply the topic's retention, unless the log is being cleaned (the cleaner calls then)."""
        if self._is_cleaning(log):
            return
        try:
            log.apply_retention(self._clock.now_ms())
        except LogOffline as error:
            logger.error("%s", error)
        except DiskFull as error:
            logger.warning("%s", error)

    async def _rest_idle(self) -> None:
        seen = self._ends_when_last_seen
        still_open: dict[TopicPartition, int] = {}

        def look(log: Log) -> None:
            if not log.segments.active.is_active:
                return
            key = log.topic_partition
            if seen.get(key) != log.log_end_offset:
                still_open[key] = log.log_end_offset
                return
            try:
                log.rest()
            except LogOffline as error:
                logger.error("%s", error)

        await self._visit("rest", look)
        self._ends_when_last_seen = still_open

    async def _visit(self, what: str, action: Callable[[Log], object]) -> None:
        logs = self._troubled_last(what, self._table.logs.values())
        for number, log in enumerate(logs, start=1):
            if not log.offline:
                with self._in_trouble(what, log):
                    action(log)
            if number % MAX_LOGS_PER_VISIT == 0:
                await asyncio.sleep(0)

    def _troubled_last(self, what: str, logs: Iterable[Log]) -> list[Log]:
        """A log that raises ends the run; it comes last from then on and delays no other."""
        return sorted(logs, key=lambda log: (what, log.topic_partition) in self._troubled)

    @contextmanager
    def _in_trouble(self, what: str, log: Log) -> Iterator[None]:
        key = what, log.topic_partition
        self._troubled.add(key)
        try:
            yield
        except asyncio.CancelledError:
            self._troubled.discard(key)  # another log raised
            raise
        self._troubled.discard(key)

    async def _checkpoint_recovery_points(self) -> None:
        table, directories = self._table, self._directories
        for directory in directories.online():
            removed = table.removed_from(directory)
            # All files: a partition made under an old name must not meet the old one's offsets.
            names = OFFSET_CHECKPOINTS if removed else (RECOVERY_POINT_CHECKPOINT,)
            for name in names:
                if not await self._write(directory, name):
                    break
            else:
                table.offsets_forgotten(directory, removed)
                try:
                    # Nothing is written where nothing has changed: a directory that is gone is
                    # noticed here, as fast as in Apache Kafka.
                    await self._filesystem.offload(directories.check_presence, directory)
                except OSError as error:
                    directories.failed_to_write(directory, directory.path, error)

    async def checkpoint_first_dirty(self, log: Log) -> bool:
        """Whether it is durable now how far compaction has seen the log."""
        directory = self._table.directory_of.get(log.topic_partition)
        return directory is not None and await self._write(directory, CLEANER_CHECKPOINT)

    async def _checkpoint(self, name: str) -> None:
        for directory in self._directories.online():
            await self._write(directory, name)

    async def _write(self, directory: LogDirectory, name: str) -> bool:
        write = self._directories.prepare(directory, name)
        if write is None:
            return True
        try:
            await self._filesystem.offload(write)
        except OSError as error:
            self._directories.failed_to_write(directory, directory.join(name), error)
            return False
        return True


def _sync_all(filesystem: Filesystem, paths: dict[str, str]) -> dict[str, OSError]:
    """Sync new partition directories, then their log directories; returns errors by the latter.

    A partition that was deleted since has nothing left to sync.
    """
    failed: dict[str, OSError] = {}
    for path, parent in paths.items():
        try:
            sync_partition_metadata(filesystem, path)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed[parent] = error
    for parent in sorted(set(paths.values())):
        try:
            filesystem.fsync_directory(parent)
        except OSError as error:
            failed[parent] = error
    return failed
