"""LogCleaner: keeps the compacted logs of a node clean, the dirtiest first.

Owns: which logs are due (`min.cleanable.dirty.ratio`) and up to where, the jobs (one per
`log.cleaner.threads`), which logs are being cleaned and which cannot be, taking new segments in,
the figures.
Must not: read or write records (workers do), or delay a log's other work: appends, reads, deletion
and truncation go on, and a cleaning that they make void ends.
Invariant: a cleaning touches nothing at or after the first uncleanable offset: the active segment,
what is not decided for readers of committed data, what is younger than `min.compaction.lag.ms`. A
new segment is taken in only if all it replaces is in the log as it was when the cleaning began, and
durable; a log is cleaned by one worker at a time. Sources: KIP-58, KIP-98, KIP-354.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from moldau.constants import MAX_INT64
from moldau.protocol.records import InvalidBatch
from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.cleaner.cleaned_segment import CLEANED_SUFFIX, SWAP_SUFFIX, remove_cleaned_files
from moldau.storage.cleaner.job import (
    NO_TIME,
    CleaningAborted,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    CleaningStats,
    ProducerTail,
    SegmentCleaned,
    SourceSegment,
)
from moldau.storage.cleaner.workers import CleanerWorker, CleaningRun
from moldau.storage.faults import lacks_room
from moldau.storage.log import Log
from moldau.storage.log_config import NEVER_MS, CleanerSettings, LogConfig
from moldau.storage.log_jobs import LogJobs
from moldau.storage.log_table import LogTable
from moldau.storage.periodic import PeriodicJob
from moldau.storage.segment import SEGMENT_SUFFIXES, LogSegment, segment_path
from moldau.storage.served_directories import ServedDirectories
from moldau.storage.transaction_proof import prove

logger = logging.getLogger(__name__)

MAX_LOST_WORKERS = 3
"""So often in a row may a log's cleaning end its process (a fault of ours, or no memory left)."""

MAX_LOGS_PER_VISIT = 256
"""Logs looked at before other callbacks of the loop get their turn."""

CLEANER = "kafka.log:type=LogCleaner,name="
CLEANER_MANAGER = "kafka.log:type=LogCleanerManager,name="


class CleaningPlan(NamedTuple):
    """What a cleaning of one log would do.

    Segments below number `segment_count` are rewritten. `max_lag_excess_ms`: for how long records
    have stayed uncompacted beyond `max.compaction.lag.ms`.
    """

    first_dirty_offset: int
    segment_count: int
    clean_bytes: int
    dirty_bytes: int
    max_lag_excess_ms: int
    min_ratio: float
    is_horizon_past: bool = False
    """Whether all tombstones and markers that wait for their delete horizon may go."""

    @property
    def dirty_ratio(self) -> float:
        """The share of bytes no cleaning has seen, 0 to 1."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        if self.is_horizon_past and self.segment_count:
            return True
        if not self.dirty_bytes:
            return False
        return self.max_lag_excess_ms > 0 or self.dirty_ratio > self.min_ratio


def plan_cleaning(log: Log, now_ms: int, *, latest_horizon_ms: int = NO_TIME) -> CleaningPlan:
    """What cleaning `log` now would do.

    `latest_horizon_ms`: result of the last cleaning. Apache Kafka waits for new records instead; a
    log without appends then keeps its tombstones. Raises: OSError, InvalidBatch (its files).
    """
    segments, config = log.segments, log.config
    first_dirty_offset = first_dirty(log)
    first_dirty_index = log.segments.index_for(first_dirty_offset)
    end = _first_uncleanable_index(log, first_dirty_index, now_ms)
    clean_bytes = sum(segment.size_bytes for segment in segments[: min(first_dirty_index, end)])
    dirty_bytes = sum(segment.size_bytes for segment in segments[first_dirty_index:end])
    return CleaningPlan(
        first_dirty_offset,
        end,
        clean_bytes,
        dirty_bytes,
        _lag_excess_ms(config, segments[first_dirty_index:-1], now_ms),
        config.min_cleanable_dirty_ratio,
        latest_horizon_ms != NO_TIME and latest_horizon_ms <= now_ms,
    )


def first_dirty(log: Log) -> int:
    """The first offset that no cleaning has seen.

    The noted offset is void when the log was cut, or its start moved beyond it, since.
    """
    noted = log.first_dirty_offset
    if noted is None or not log.log_start_offset <= noted <= log.log_end_offset:
        return log.log_start_offset
    return noted


def _first_uncleanable_index(log: Log, first_dirty_index: int, now_ms: int) -> int:
    """The number of the first segment that must stay as it is."""
    segments = log.segments
    end = min(len(segments) - 1, log.segments.index_for(log.last_stable_offset))
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for index in range(first_dirty_index, end):
            if segments[index].largest_timestamp_ms() > now_ms - lag_ms:
                return index
    return end


def _lag_excess_ms(config: LogConfig, dirty: Iterable[LogSegment], now_ms: int) -> int:
    lag_ms = config.max_compaction_lag_ms
    if lag_ms >= MAX_INT64:
        return 0
    stamps = [each.rolling_base_timestamp_ms() for each in dirty if each.size_bytes]
    earliest_ms = min((each for each in stamps if each > 0), default=None)
    return 0 if earliest_ms is None else max(0, now_ms - lag_ms - earliest_ms)


class CleanerFigures:
    """The metrics of all cleaners of a node together, under the names of Kafka's cleaner."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_look_ms = clock.monotonic_ms()
        self.buffer_utilization = 0.0
        self.cleaned_count = 0
        self.last_clean_ms = 0.0
        self.max_compaction_delay_ms = 0
        self.max_dirty_ratio = 0.0
        self.recopy_ratio = 0.0

    def looked(self, max_dirty_ratio: float, max_compaction_delay_ms: int) -> None:
        self._last_look_ms = self._clock.monotonic_ms()
        self.max_dirty_ratio = max_dirty_ratio
        self.max_compaction_delay_ms = max_compaction_delay_ms

    def cleaned(self, stats: CleaningStats, elapsed_ms: float) -> None:
        self.cleaned_count += 1
        self.last_clean_ms = elapsed_ms
        self.buffer_utilization = stats.buffer_utilization
        self.recopy_ratio = stats.bytes_written / stats.bytes_read if stats.bytes_read else 0.0

    def values(self) -> dict[str, float]:
        return {
            CLEANER + "max-buffer-utilization-percent": float(int(100 * self.buffer_utilization)),
            CLEANER + "cleaner-recopy-percent": float(int(100 * self.recopy_ratio)),
            CLEANER + "max-clean-time-secs": float(int(self.last_clean_ms / 1000)),
            CLEANER + "max-compaction-delay-secs": float(self.max_compaction_delay_ms // 1000),
            CLEANER + "DeadThreadCount": 0.0,
            CLEANER_MANAGER + "max-dirty-percent": float(int(100 * self.max_dirty_ratio)),
            CLEANER_MANAGER + "time-since-last-run-ms": float(
                int(self._clock.monotonic_ms() - self._last_look_ms)
            ),
        }


@dataclass(slots=True)
class _Cleaning:
    """The cleaning of one log while it runs."""

    log: Log
    plan: CleaningPlan
    sources: dict[int, LogSegment]
    """The segments that have not been replaced, by base offset."""
    truncation_count: int
    run: CleaningRun | None = None
    is_aborted: bool = False

    @property
    def is_void(self) -> bool:
        """Whether the log is no longer what the cleaning began with."""
        log = self.log
        return self.is_aborted or log.offline or log.truncation_count != self.truncation_count

    def sources_of(self, event: SegmentCleaned) -> list[LogSegment] | None:
        """The sources of an event, if they are all still in the log, side by side."""
        if self.is_void or any(base not in self.sources for base in event.source_bases):
            return None
        sources = [self.sources[base] for base in event.source_bases]
        segments = self.log.segments
        first = self.log.segments.index_for(event.base_offset)
        if segments[first : first + len(sources)] != sources:
            return None
        if any(source.is_active for source in sources) or sources[-1] is segments[-1]:
            return None
        return sources


@dataclass(eq=False)
class LogCleaner:
    """States: made -> `start` -> running -> `stop`. Belongs to the log manager's loop."""

    _filesystem: Filesystem
    _clock: Clock
    _table: LogTable
    _directories: ServedDirectories
    _log_jobs: LogJobs
    settings: CleanerSettings
    _make_worker: Callable[[], CleanerWorker]
    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)
    """Logs that could not be cleaned, and why: left alone until the node restarts."""
    _jobs: list[PeriodicJob] = field(default_factory=list)
    _retired: list[PeriodicJob] = field(default_factory=list)
    _under_way: dict[TopicPartition, _Cleaning] = field(default_factory=dict)
    _horizons: dict[TopicPartition, int] = field(default_factory=dict)
    """When the newest tombstone of a cleaned log may go."""
    _lost_workers: dict[TopicPartition, int] = field(default_factory=dict)
    """How often in a row the cleaning of a log has ended its process."""
    _is_running: bool = False

    def __post_init__(self) -> None:
        self.figures = CleanerFigures(self._clock)

    def start(self) -> None:
        self._is_running = self.settings.enabled
        self._adjust_jobs()

    async def stop(self) -> None:
        """Abort all cleanings; no worker is left when this returns."""
        self._is_running = False
        for topic_partition in list(self._under_way):
            self.abort(topic_partition)
        for job in (*self._jobs, *self._retired):
            await job.stop()
        self._jobs.clear()
        self._retired.clear()

    def update_settings(self, settings: CleanerSettings) -> None:
        """Apply new node settings; a running cleaning goes on with the old ones."""
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
                self._clock,
                lambda: self.settings.backoff_ms if self._is_running else NEVER_MS,
                partial(self._clean_all, worker),
            )
            self._jobs.append(job)
            job.start()

    def soon(self) -> None:
        for job in self._jobs:
            job.soon()

    @property
    def is_busy(self) -> bool:
        """Whether some job is looking for dirty logs, or cleaning one."""
        return any(job.is_running for job in (*self._jobs, *self._retired))

    def is_cleaning(self, log: Log) -> bool:
        return log.topic_partition in self._under_way

    def abort(self, topic_partition: TopicPartition) -> None:
        """The partition's log is removed: abort its cleaning and forget its results."""
        self.uncleanable.pop(topic_partition, None)
        self._horizons.pop(topic_partition, None)
        self._lost_workers.pop(topic_partition, None)
        cleaning = self._under_way.get(topic_partition)
        if cleaning is not None:
            cleaning.is_aborted = True
            if cleaning.run is not None:
                cleaning.run.abort()

    async def _clean_all(self, worker: CleanerWorker) -> None:
        """Clean logs until none is dirty enough, then free the worker's memory."""
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
        now_ms = self._clock.now_ms()
        best: tuple[Log, CleaningPlan] | None = None
        highest_ratio = 0.0
        longest_excess_ms = 0
        for number, log in enumerate(list(self._table.logs.values()), start=1):
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
            except OSError as error:
                self._give_up(log, str(error))
                continue
            except InvalidBatch as error:
                log.take_offline(f"damage found before its compaction: {error}")
                continue
            highest_ratio = max(highest_ratio, plan.dirty_ratio)
            longest_excess_ms = max(longest_excess_ms, plan.max_lag_excess_ms)
            if plan.is_due and (best is None or plan.dirty_ratio > best[1].dirty_ratio):
                best = log, plan
        self.figures.looked(highest_ratio, longest_excess_ms)
        # Another job may have taken the log while this one yielded.
        if best is not None and best[0].topic_partition in self._under_way:
            return await self._choose(postponed)
        return best

    async def _clean(self, worker: CleanerWorker, log: Log, plan: CleaningPlan) -> bool:
        """One cleaning, from beginning to end; returns whether it succeeded."""
        sources = log.segments[: plan.segment_count]
        cleaning = _Cleaning(
            log, plan, {each.base_offset: each for each in sources}, log.truncation_count
        )
        self._under_way[log.topic_partition] = cleaning
        started_ms = self._clock.monotonic_ms()
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
                # The job restarts, and must not choose this log first every time.
                self._give_up(log, "its compaction raised, see the log")
        elapsed_ms = self._clock.monotonic_ms() - started_ms
        self._lost_workers.pop(log.topic_partition, None)
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
            self._log_jobs.retain(log)
        return True

    async def _carry_out(self, worker: CleanerWorker, cleaning: _Cleaning) -> CleaningDone:
        """Raises: CleaningFailed."""
        log, plan = cleaning.log, cleaning.plan
        end_offset = log.end_offset_of(plan.segment_count - 1)
        # The newest record of a key may be in a later segment than the record that it replaces.
        if log.recovery_point < end_offset and not await self._log_jobs.flush(log):
            raise CleaningFailed("it cannot be flushed now", is_out_of_room=True)
        # What is not known to be aborted would be kept as if it were committed.
        is_proved = await prove(log, log.segments[0].base_offset, log.log_end_offset)
        are_same = log.segments[: plan.segment_count] == [*cleaning.sources.values()]
        if not is_proved or cleaning.is_void or not are_same:
            raise CleaningAborted("aborted")
        job = self._job(cleaning)
        if log.first_dirty_offset is None:
            # Before the first hole: recovery must know that there may be some.
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
        """Record durably how far compaction has seen the log. Raises: CleaningFailed."""
        log.first_dirty_offset = offset
        if not await self._log_jobs.checkpoint_first_dirty(log):
            raise CleaningFailed("its checkpoint cannot be written now", is_out_of_room=True)

    async def _take_in(self, log: Log, sources: list[LogSegment], size_bytes: int) -> None:
        """Raises: CleaningFailed, with the log offline."""
        filesystem = self._filesystem
        try:
            removed = swap_in(log, sources, size_bytes)
            await filesystem.offload(filesystem.fsync_directory, log.directory)
            if not log.offline:
                number = log.segments.index_for(sources[0].base_offset)
                epochs = log.leader_epoch_cache.entries
                log.segments.seal_closed([number], log.log_end_offset, epochs)
        except (OSError, InvalidBatch) as error:
            log.take_offline(
                f"a compacted segment could not be put in place: {error}",
                lacks_room=lacks_room(error),
            )
            raise CleaningFailed(log.offline_reason, is_worker_lost=True) from None
        if log.segments.schedule_deletion is not None:
            log.segments.schedule_deletion(log.config.file_delete_delay_ms, removed)

    async def _failed(self, cleaning: _Cleaning, failure: CleaningFailed) -> None:
        log = cleaning.log
        if self._table.logs.get(log.topic_partition) is log and not log.offline:
            try:
                await self._filesystem.offload(
                    remove_cleaned_files, self._filesystem, log.directory
                )
            except OSError as error:
                logger.warning("%s: what its compaction left stays: %s", log.name, error)
        is_gone = cleaning.sources.keys() - {each.base_offset for each in log.segments}
        if cleaning.is_void or is_gone or isinstance(failure, CleaningAborted):
            logger.debug("%s: its compaction was given up", log.name)
        elif failure.is_damage:
            log.take_offline(f"damage found by its compaction: {failure}")
        elif failure.is_worker_lost and cleaning.run is not None:
            self._worker_lost(log, failure)
        elif failure.is_worker_lost or failure.is_out_of_room:
            logger.warning("%s: not compacted now: %s", log.name, failure)
        else:
            self._give_up(log, failure.reason)

    def _worker_lost(self, log: Log, failure: CleaningFailed) -> None:
        key = log.topic_partition
        count = self._lost_workers[key] = self._lost_workers.get(key, 0) + 1
        if count < MAX_LOST_WORKERS:
            logger.warning("%s: not compacted now: %s", log.name, failure)
        else:
            del self._lost_workers[key]
            self._give_up(log, f"{count} times in a row: {failure}")

    def _give_up(self, log: Log, reason: str) -> None:
        self.uncleanable[log.topic_partition] = reason
        logger.error("%s cannot be compacted and stays as it is: %s", log.name, reason)

    def _job(self, cleaning: _Cleaning) -> CleaningJob:
        log, plan, settings = cleaning.log, cleaning.plan, self.settings
        config = log.config
        return CleaningJob(
            directory=log.directory,
            segments=tuple(
                SourceSegment(segment.base_offset, log.end_offset_of(index), segment.size_bytes)
                for index, segment in enumerate(log.segments[: plan.segment_count])
            ),
            first_dirty_offset=plan.first_dirty_offset,
            index_bases=tuple(segment.base_offset for segment in log.segments),
            epochs=tuple(log.leader_epoch_cache.entries),
            producers=tuple(
                ProducerTail(producer_id, entry.last_offset, entry.producer_epoch)
                for producer_id, entry in log.producer_state.producers.items()
            ),
            now_ms=self._clock.now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=settings.map_bytes,
            load_factor=settings.buffer_load_factor,
            io_bytes=settings.io_bytes,
            max_bytes_per_second=settings.max_bytes_per_second,
        )

    def uncleanable_by_directory(self) -> dict[str, tuple[int, int]]:
        """Log directory -> `(count, bytes)` of the logs in it that cannot be compacted."""
        found = {each.path: (0, 0) for each in self._directories.all}
        for topic_partition in self.uncleanable:
            log = self._table.logs.get(topic_partition)
            if log is not None:
                path = self._table.directory_of[topic_partition].path
                count, size_bytes = found[path]
                found[path] = count + 1, size_bytes + log.size_bytes
        return found


def swap_in(log: Log, sources: Sequence[LogSegment], size_bytes: int) -> list[str]:
    """Put the `.cleaned` files at the first source's base offset in the place of `sources`.

    The sources are neighbours in `log.segments`; between two renames nothing else happens to the
    log (see `cleaned_segment` for the states of the names). Returns the sources' files under their
    new names, to be removed once the renames are durable. Raises: OSError; then the log must not
    be used any more.
    """
    filesystem, directory, segments = log.filesystem, log.directory, log.segments
    base_offset = sources[0].base_offset
    first = segments.index(sources[0])
    assert segments[first : first + len(sources)] == list(sources)
    assert not sources[-1].is_active
    assert sources[-1] is not log.segments.active
    paths = [segment_path(directory, base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
    paths = [path for path in paths if filesystem.exists(path + CLEANED_SUFFIX)]
    for path in paths:
        filesystem.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    removed: list[str] = []
    for source in sources:
        removed += source.rename_deleted()
    for path in paths:
        filesystem.rename(path + SWAP_SUFFIX, path)
    segment = segments.make(base_offset, size_bytes)
    segment.created_ms = sources[0].created_ms
    segment.verified.trusted_from = 0  # Each of its bytes was checked when it was written.
    segments.replacement_count += 1
    segments.replace([*segments[:first], segment, *segments[first + len(sources) :]])
    for source in sources[1:]:
        log.producer_state.remove_snapshot(source.base_offset)
    return removed
