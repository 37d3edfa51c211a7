"""LogCleaner: keeps the compacted logs of a node clean, the dirtiest first.

Owns: the jobs (one per `log.cleaner.threads`), which logs are being cleaned and which cannot be,
taking new segments in, the figures.
Must not: read or write records (workers do, in a process of their own), or stop a log's other
business: appends, reads, deletion and truncation go on, and a cleaning that they make void ends.
Invariant: a new segment is taken in only if all it stands for is in the log as it was when the
cleaning began, and durable; a log is cleaned by one worker at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.records import InvalidBatch
from moldau.protocol.types import TopicPartition
from moldau.storage.cleaner.cleaned_segment import remove_cleaned_files
from moldau.storage.cleaner.figures import CleanerFigures
from moldau.storage.cleaner.job import (
    NO_TIME,
    CleaningAborted,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    ProducerTail,
    SegmentCleaned,
    SourceSegment,
)
from moldau.storage.cleaner.planning import CleaningPlan, plan_cleaning
from moldau.storage.cleaner.settings import CleanerSettings
from moldau.storage.cleaner.swap import swap_in
from moldau.storage.cleaner.worker import CleanerWorker, CleaningRun
from moldau.storage.log import Log
from moldau.storage.manager_settings import NEVER_MS
from moldau.storage.periodic import PeriodicJob
from moldau.storage.segment import LogSegment

if TYPE_CHECKING:
    from moldau.storage.log_manager import LogManager

MAX_LOGS_PER_VISIT = 256
"""Logs looked at before other callbacks of the loop get their turn."""

logger = logging.getLogger("moldau.storage")


@dataclass(slots=True)
class _Cleaning:
    """One log's cleaning under way."""

    log: Log
    plan: CleaningPlan
    sources: dict[int, LogSegment]
    """By base offset, those that have not been replaced."""
    truncation_count: int
    run: CleaningRun | None = None
    is_aborted: bool = False

    @property
    def is_void(self) -> bool:
        """Whether the log is no longer what the cleaning began with."""
        log = self.log
        return self.is_aborted or log.offline or log.truncation_count != self.truncation_count

    def sources_of(self, event: SegmentCleaned) -> list[LogSegment] | None:
        """The segments an event speaks of, if they are all still in the log, side by side."""
        if self.is_void or any(base not in self.sources for base in event.source_bases):
            return None
        sources = [self.sources[base] for base in event.source_bases]
        segments = self.log.segments
        first = self.log.segment_index_for(event.base_offset)
        if segments[first : first + len(sources)] != sources:
            return None
        if any(source.is_active for source in sources) or sources[-1] is segments[-1]:
            return None
        return sources


class LogCleaner:
    """States: made -> `start` -> running -> `stop`. One loop's own, the log manager's."""

    def __init__(
        self,
        manager: LogManager,
        settings: CleanerSettings,
        make_worker: Callable[[], CleanerWorker],
    ) -> None:
        self._manager = manager
        self.settings = settings
        self._make_worker = make_worker
        self._jobs: list[PeriodicJob] = []
        self._retired: list[PeriodicJob] = []
        self._under_way: dict[TopicPartition, _Cleaning] = {}
        self.uncleanable: dict[TopicPartition, str] = {}
        """Logs that could not be cleaned, and why: left alone until the node restarts."""
        self._horizons: dict[TopicPartition, int] = {}
        """When the newest tombstone of a cleaned log may go."""
        self.figures = CleanerFigures(manager.clock)
        self._is_running = False

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look for dirty logs from now on."""
        self._is_running = self.settings.enabled
        self._adjust_jobs()

    async def stop(self) -> None:
        """Whatever is under way is given up; no worker is left when this returns."""
        self._is_running = False
        for topic_partition in list(self._under_way):
            self.abort(topic_partition)
        for job in (*self._jobs, *self._retired):
            await job.stop()
        self._jobs.clear()
        self._retired.clear()

    def update_settings(self, settings: CleanerSettings) -> None:
        """Settings of the node changed; a cleaning under way goes on with the old ones."""
        if settings == self.settings:
            return
        logger.info("log cleaner: %s", settings)
        self.settings = settings
        self._adjust_jobs()
        self.soon()

    def _adjust_jobs(self) -> None:
        if not self._is_running:
            return
        self._retired = [job for job in self._retired if job.is_running]
        while len(self._jobs) > self.settings.thread_count:
            job = self._jobs.pop()
            job.retire()
            self._retired.append(job)
        while len(self._jobs) < self.settings.thread_count:
            worker = self._make_worker()
            job = PeriodicJob(
                f"log cleaner {len(self._jobs)}",
                self._manager.clock,
                lambda: self.settings.backoff_ms if self._is_running else NEVER_MS,
                partial(self._clean_all, worker),
            )
            self._jobs.append(job)
            job.start()

    def soon(self) -> None:
        """Look now instead of after the pause."""
        for job in self._jobs:
            job.soon()

    # -- what others ask -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether some job is looking for dirty logs, or cleaning one."""
        return any(job.is_running for job in (*self._jobs, *self._retired))

    def is_cleaning(self, log: Log) -> bool:
        """Whether a cleaning of the log is under way."""
        return log.topic_partition in self._under_way

    def abort(self, topic_partition: TopicPartition) -> None:
        """The partition goes away: give up its cleaning, and forget what was said of it."""
        self.uncleanable.pop(topic_partition, None)
        self._horizons.pop(topic_partition, None)
        cleaning = self._under_way.get(topic_partition)
        if cleaning is not None:
            cleaning.is_aborted = True
            if cleaning.run is not None:
                cleaning.run.abort()

    # -- one job's round -------------------------------------------------------------------------

    async def _clean_all(self, worker: CleanerWorker) -> None:
        """Clean logs until none is dirty enough, then let the worker rest."""
        postponed: set[TopicPartition] = set()
        try:
            while self._is_running:
                chosen = await self._choose(postponed)
                if chosen is None:
                    break
                log, plan = chosen
                if not await self._clean(worker, log, plan):
                    postponed.add(log.topic_partition)
        finally:
            await worker.rest()

    async def _choose(self, postponed: set[TopicPartition]) -> tuple[Log, CleaningPlan] | None:
        """The dirtiest log that is due."""
        manager = self._manager
        now_ms = manager.clock.now_ms()
        best: tuple[Log, CleaningPlan] | None = None
        highest_ratio = 0.0
        longest_excess_ms = 0
        for number, log in enumerate(list(manager.logs()), start=1):
            if number % MAX_LOGS_PER_VISIT == 0:
                await asyncio.sleep(0)
            key = log.topic_partition
            if not log.config.compacts or log.offline or key in self._under_way:
                continue
            if key in postponed or key in self.uncleanable:
                continue
            try:
                plan = plan_cleaning(
                    log, now_ms, latest_horizon_ms=self._horizons.get(key, NO_TIME)
                )
            except (OSError, InvalidBatch) as error:
                self._give_up(log, str(error))
                continue
            highest_ratio = max(highest_ratio, plan.dirty_ratio)
            longest_excess_ms = max(longest_excess_ms, plan.max_lag_excess_ms)
            if plan.is_due and (best is None or plan.dirty_ratio > best[1].dirty_ratio):
                best = log, plan
        self.figures.looked(highest_ratio, longest_excess_ms)
        # While others had their turn the log may have been taken, or gone.
        if best is not None and best[0].topic_partition in self._under_way:
            return await self._choose(postponed)
        return best

    async def _clean(self, worker: CleanerWorker, log: Log, plan: CleaningPlan) -> bool:
        """One cleaning, from beginning to end; False when it came to nothing."""
        sources = log.segments[: plan.segment_count]
        cleaning = _Cleaning(
            log, plan, {each.base_offset: each for each in sources}, log.truncation_count
        )
        self._under_way[log.topic_partition] = cleaning
        started_ms = self._manager.clock.monotonic_ms()
        is_decided = False
        try:
            done = await self._carry_out(worker, cleaning)
            is_decided = True
        except CleaningFailed as failure:
            is_decided = True
            await self._failed(cleaning, failure)
            return False
        finally:
            del self._under_way[log.topic_partition]
            if not is_decided:
                # The job is begun again, and must not choose this log first every time.
                self._give_up(log, "its compaction raised, see the log")
        elapsed_ms = self._manager.clock.monotonic_ms() - started_ms
        self._horizons[log.topic_partition] = done.stats.latest_horizon_ms
        self.figures.cleaned(done.stats, elapsed_ms)
        stats = done.stats
        logger.info(
            "%s: compacted up to offset %d in %.0f ms: %d of %d bytes and %d of %d records stay",
            log.name,
            done.end_offset,
            elapsed_ms,
            stats.bytes_written,
            stats.bytes_read,
            stats.records_written,
            stats.records_read,
        )
        if not log.offline:
            self._manager.jobs.retain(log)
        return True

    async def _carry_out(self, worker: CleanerWorker, cleaning: _Cleaning) -> CleaningDone:
        """Raises: CleaningFailed."""
        log, plan = cleaning.log, cleaning.plan
        end_offset = log.end_offset_of(plan.segment_count - 1)
        # What stays of a key may be its record in a later segment than the one it is dropped from.
        if log.recovery_point < end_offset and not await self._manager.flush(log):
            raise CleaningFailed("it cannot be flushed now", is_out_of_room=True)
        if cleaning.is_void or log.segments[: plan.segment_count] != [*cleaning.sources.values()]:
            raise CleaningAborted("aborted")
        job = self._job(cleaning)
        if log.first_dirty_offset is None:
            # Before the first hole: whoever opens the log must know that there may be some.
            await self._note_first_dirty(log, plan.first_dirty_offset)
        run = cleaning.run = await worker.start(job)
        if cleaning.is_void:
            run.abort()
        while True:
            event = await run.next_event()
            if isinstance(event, CleaningDone):
                break
            sources = cleaning.sources_of(event)
            if sources is None:
                run.abort()
                raise CleaningAborted("aborted")
            for source in sources:
                del cleaning.sources[source.base_offset]
            await self._take_in(log, sources, event.size_bytes)
        if cleaning.is_void:
            raise CleaningAborted("aborted")
        await self._note_first_dirty(log, event.end_offset)
        return event

    async def _note_first_dirty(self, log: Log, offset: int) -> None:
        """Durable on return. Raises: CleaningFailed."""
        log.first_dirty_offset = offset
        if not await self._manager.jobs.checkpoint_first_dirty(log):
            raise CleaningFailed("its checkpoint cannot be written now", is_out_of_room=True)

    async def _take_in(self, log: Log, sources: list[LogSegment], size_bytes: int) -> None:
        """Raises: CleaningFailed, with the log offline."""
        filesystem = self._manager.filesystem
        try:
            removed = swap_in(log, sources, size_bytes)
            await filesystem.offload(filesystem.fsync_directory, log.directory)
        except OSError as error:
            log.take_offline(f"a compacted segment could not be put in place: {error}")
            raise CleaningFailed(log.offline_reason, is_worker_lost=True) from None
        if log.schedule_deletion is not None:
            log.schedule_deletion(log.config.file_delete_delay_ms, removed)

    async def _failed(self, cleaning: _Cleaning, failure: CleaningFailed) -> None:
        log = cleaning.log
        if self._manager.get(log.topic_partition) is log and not log.offline:
            try:
                await self._manager.filesystem.offload(
                    remove_cleaned_files, self._manager.filesystem, log.directory
                )
            except OSError as error:
                logger.warning("%s: what its compaction left stays: %s", log.name, error)
        is_gone = cleaning.sources.keys() - {each.base_offset for each in log.segments}
        if cleaning.is_void or is_gone or isinstance(failure, CleaningAborted):
            logger.debug("%s: its compaction was given up", log.name)
        elif failure.is_worker_lost or failure.is_out_of_room:
            logger.warning("%s: not compacted now: %s", log.name, failure)
        else:
            self._give_up(log, failure.reason)

    def _give_up(self, log: Log, reason: str) -> None:
        self.uncleanable[log.topic_partition] = reason
        logger.error("%s cannot be compacted and stays as it is: %s", log.name, reason)

    # -- the job ---------------------------------------------------------------------------------

    def _job(self, cleaning: _Cleaning) -> CleaningJob:
        log, plan, settings = cleaning.log, cleaning.plan, self.settings
        config = log.config
        return CleaningJob(
            name=log.name,
            directory=log.directory,
            segments=tuple(
                SourceSegment(segment.base_offset, log.end_offset_of(index), segment.size_bytes)
                for index, segment in enumerate(log.segments[: plan.segment_count])
            ),
            first_dirty_offset=plan.first_dirty_offset,
            index_bases=tuple(segment.base_offset for segment in log.segments),
            producers=tuple(
                ProducerTail(producer_id, entry.last_offset, entry.producer_epoch)
                for producer_id, entry in log.producer_state.producers.items()
            ),
            now_ms=self._manager.clock.now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=settings.map_bytes,
            load_factor=settings.buffer_load_factor,
            io_bytes=settings.io_bytes,
            max_bytes_per_second=settings.max_bytes_per_second,
        )

    # -- figures ---------------------------------------------------------------------------------

    def uncleanable_by_directory(self) -> dict[str, tuple[int, int]]:
        """Log directory -> `(count, bytes)` of the logs in it that cannot be compacted."""
        found = {each.path: (0, 0) for each in self._manager.directories}
        for topic_partition in self.uncleanable:
            log = self._manager.get(topic_partition)
            directory = self._manager.directory_of(topic_partition)
            if log is not None and directory is not None and directory.path in found:
                count, size_bytes = found[directory.path]
                found[directory.path] = count + 1, size_bytes + log.size_bytes
        return found
