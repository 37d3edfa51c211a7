"""LogManager: all partitions' logs of one node, in all its log directories.

Owns: which log is where, loading and creating and deleting them, which partitions and directories
are offline and why, and the orderly end.
Must not: read or write records, know leaders or replicas, or answer clients. What happens
regularly is in log_jobs, loading in log_loader, what was found in found_partitions.
Invariant: a partition is in exactly one of: online, offline, unknown. One that cannot be served
never keeps another from being served. Offsets of a deleted partition are out of the checkpoint
files before a partition of the same name is made.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random as random_module
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID, TopicPartition, uuid_to_base64
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    write_clean_shutdown_marker,
)
from moldau.storage.cleaner.log_cleaner import LogCleaner
from moldau.storage.cleaner.settings import CleanerSettings
from moldau.storage.cleaner.worker import CleanerWorker, InlineWorker
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.faults import DiskFull, LogOffline, is_out_of_room
from moldau.storage.found_partitions import FoundPartitions
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.log_directory import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectories,
    LogDirectory,
    describe,
    marked_directory_name,
)
from moldau.storage.log_jobs import MAX_LOGS_PER_VISIT, LogJobs
from moldau.storage.log_loader import (
    Checkpoints,
    DirectoryContents,
    LoadedPartition,
    load_partition,
    scan_directory,
)
from moldau.storage.log_table import LogTable
from moldau.storage.manager_settings import LogManagerSettings
from moldau.storage.meta_properties import META_PROPERTIES
from moldau.storage.offset_checkpoints import DirectoryCheckpoints
from moldau.storage.open_files import OpenSegments
from moldau.storage.partition_metadata import (
    write_partition_metadata_unsynced,
)

PROGRESS_INTERVAL_MS = 5_000
"""How often a long start says how far it is."""

_DEFAULT_DELETE_DELAY_MS = LogConfig().file_delete_delay_ms

logger = logging.getLogger("moldau.storage")


class InconsistentTopicId(Exception):
    """The partition on disk belongs to another topic of the same name."""

    error = ErrorCode.INCONSISTENT_TOPIC_ID

    def __init__(self, topic_partition: TopicPartition, found: UUID, wanted: UUID) -> None:
        super().__init__(
            f"{topic_partition} on disk has topic id {uuid_to_base64(found)}, "
            f"not {uuid_to_base64(wanted)}"
        )


@dataclass(slots=True)
class LoadReport:
    """What `LogManager.start` found."""

    loaded_count: int
    offline_count: int
    clean_directory_count: int
    previous_broker_epoch: int
    elapsed_ms: float


class LogManager:
    """States: made -> `start` -> serving -> `shutdown`. All methods belong to one loop."""

    def __init__(
        self,
        filesystem: Filesystem,
        clock: Clock,
        directories: LogDirectories,
        settings: LogManagerSettings,
        *,
        topic_config: Callable[[str], LogConfig],
        random: random_module.Random,
        on_directory_offline: Callable[[LogDirectory], None] | None = None,
        cleaner_settings: CleanerSettings | None = None,
        make_cleaner_worker: Callable[[], CleanerWorker] | None = None,
    ) -> None:
        """`topic_config` gives a topic's effective settings, also while logs are loaded.

        `on_directory_offline` hears once of each directory that fails while the node runs.
        `make_cleaner_worker`: what compaction works with; None: this process.
        """
        self.filesystem = filesystem
        self.clock = clock
        self.settings = settings
        self.directories = directories.online
        self.unavailable_directories = directories.offline
        self.open_segments = OpenSegments(settings.max_open_closed_segments)
        self.jobs = LogJobs(self)
        self.checkpoints = {
            each.path: DirectoryCheckpoints(filesystem, each) for each in directories.online
        }
        self.on_flushed: Callable[[float], object] | None = None
        """Told how many milliseconds each flush of a log took."""
        self.on_log_offline: Callable[[Log], object] | None = None
        """Told of each log that cannot be used any more, with its directory or alone."""
        self.unsynced_directories: dict[str, str] = {}
        """Partition directories made and not yet durable -> their log directory's path."""
        self._topic_config = topic_config
        self._random = random
        self._on_directory_offline = on_directory_offline
        self.table = LogTable()
        self.found = FoundPartitions(self)
        self._is_closing = False
        self.cleaner = LogCleaner(
            self,
            cleaner_settings or CleanerSettings(),
            make_cleaner_worker or (lambda: InlineWorker(filesystem, random)),
        )

    # -- start -----------------------------------------------------------------------------------

    async def start(self) -> LoadReport:
        """Load every partition of every directory, then begin the regular work.

        Recovery runs in the disk threads, `num.recovery.threads.per.data.dir` per directory.
        """
        started_ms = self.clock.monotonic_ms()
        found: list[DirectoryContents] = []
        for directory in list(self.directories):
            try:
                found.append(
                    await self.filesystem.offload(scan_directory, self.filesystem, directory)
                )
            except OSError as error:
                self.fail_directory(directory, f"it cannot be read: {describe(error)}")
        for contents in found:
            files = self.checkpoints[contents.directory.path]
            files.first_dirty_offsets.loaded(contents.checkpoints.first_dirty_offsets)
        self.found.look_for_missing(found)
        queue = deque(self.found.without_twins(found))
        await self._load_all(queue, self.settings.recovery_threads_per_directory * len(found))
        for contents in found:
            self.jobs.removal.add(self.settings.initial_delay_ms, contents.to_delete)
        self.jobs.start()
        self.cleaner.start()
        report = LoadReport(
            loaded_count=len(self.table.logs),
            offline_count=len(self.table.offline),
            clean_directory_count=sum(contents.was_clean_shutdown for contents in found),
            previous_broker_epoch=self.found.previous_broker_epoch(found),
            elapsed_ms=self.clock.monotonic_ms() - started_ms,
        )
        logger.info(
            "loaded %d partitions in %.0f ms, %d offline, %d of %d directories were shut down "
            "cleanly",
            report.loaded_count,
            report.elapsed_ms,
            report.offline_count,
            report.clean_directory_count,
            len(found),
        )
        return report

    async def load(self, contents: DirectoryContents, topic_partition: TopicPartition) -> None:
        """Open one partition, recovering it if need be."""
        loaded = await self.filesystem.offload(
            load_partition,
            self.filesystem,
            self.clock,
            contents,
            topic_partition,
            self._topic_config(topic_partition.topic),
            producer_expiration_ms=self.settings.producer_expiration_ms,
        )
        self._adopt(contents, loaded)

    async def _load_all(
        self, queue: deque[tuple[DirectoryContents, TopicPartition]], worker_count: int
    ) -> None:
        total = len(queue)
        next_report_ms = self.clock.monotonic_ms() + PROGRESS_INTERVAL_MS

        async def work() -> None:
            nonlocal next_report_ms
            while queue:
                await self.load(*queue.popleft())
                if self.clock.monotonic_ms() >= next_report_ms:
                    next_report_ms += PROGRESS_INTERVAL_MS
                    logger.info("loading partitions: %d of %d left", len(queue), total)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(max(worker_count, 1), total)):
                workers.create_task(work())

    def _adopt(self, contents: DirectoryContents, loaded: LoadedPartition) -> None:
        topic_partition, directory, log = loaded.topic_partition, loaded.directory, loaded.log
        if log is None or log.offline:
            self._put_offline(
                contents, topic_partition, loaded.offline_reason, topic_id=loaded.topic_id
            )
            return
        if not directory.is_online:
            log.abandon()
            reason = directory.offline_reason or ""
            self._put_offline(contents, topic_partition, reason, topic_id=loaded.topic_id)
            return
        log.update_high_watermark(contents.checkpoints.high_watermarks.get(topic_partition, 0))
        self._install(log, directory)

    def _install(self, log: Log, directory: LogDirectory) -> None:
        for segment in log.segments:
            segment.adopt_by(self.open_segments)
        log.open_segments = self.open_segments
        log.on_offline = self._log_went_offline
        log.on_roll = self.jobs.flush_soon
        log.on_recovery_point_lowered = self._checkpoint_lowered_recovery_point
        log.on_first_dirty_changed = self._checkpoint_first_dirty
        log.schedule_deletion = self.jobs.removal.add
        self.table.put_online(log, directory)

    def _put_offline(
        self,
        contents: DirectoryContents,
        topic_partition: TopicPartition,
        reason: str,
        topic_id: UUID = ZERO_UUID,
    ) -> None:
        self.table.put_offline(
            topic_partition, contents.directory, reason, contents.checkpoints, topic_id
        )

    # -- lookup ----------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The partition's log; None when it is offline or not here."""
        return self.table.logs.get(topic_partition)

    def offline_reason(self, topic_partition: TopicPartition) -> str | None:
        """Why a partition that is here is not served; None when it is, or is unknown."""
        offline = self.table.offline.get(topic_partition)
        return None if offline is None else offline.reason

    def logs(self) -> Collection[Log]:
        """All logs that are online (a live view: copy it before awaiting or deleting)."""
        return self.table.logs.values()

    def offline_partitions(self) -> Collection[TopicPartition]:
        """All partitions that are here and not served (a live view)."""
        return self.table.offline.keys()

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The log directory the partition is in."""
        return self.table.holder(topic_partition)

    def topic_id_of(self, topic_partition: TopicPartition) -> UUID:
        """The topic id of what is here under that name, online or not; zero when not known."""
        log = self.table.logs.get(topic_partition)
        if log is not None:
            return log.topic_id
        offline = self.table.offline.get(topic_partition)
        return ZERO_UUID if offline is None else offline.topic_id

    def directory_at(self, path: str) -> LogDirectory:
        """The log directory with this path."""
        return next(each for each in self.directories if each.path == path)

    def directory_with_id(self, directory_id: UUID) -> LogDirectory | None:
        """The log directory with this id, online or not; None when this node has no such one."""
        found = (each for each in self.directories if each.directory_id == directory_id)
        return next(found, None)

    @property
    def has_failed_directories(self) -> bool:
        """Whether some log directory cannot be looked into, since the start or since later."""
        return bool(self.unavailable_directories) or not all(
            each.is_online for each in self.directories
        )

    def online_directories(self) -> list[LogDirectory]:
        """The log directories that have not failed."""
        return [each for each in self.directories if each.is_online]

    def update_producer_expiration(self, producer_expiration_ms: int) -> None:
        """`producer.id.expiration.ms` changed: for the logs there are and those to come."""
        self.settings = replace(self.settings, producer_expiration_ms=producer_expiration_ms)
        for log in self.table.logs.values():
            log.producer_state.expiration_ms = producer_expiration_ms

    def update_topic_config(self, topic: str, config: LogConfig) -> None:
        """The topic's settings changed."""
        for log in self.table.logs.values():
            if log.topic_partition.topic == topic:
                log.update_config(config)

    # -- create and delete -----------------------------------------------------------------------

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None = None,
        directory: LogDirectory | None = None,
    ) -> Log:
        """The partition's log; a new one is made in `directory`, or without one in that with the
        fewest partitions.

        The new names become durable shortly after, in any case before the first flush of the log.

        Raises:
            LogOffline: it is here and damaged, or no directory is online.
            InconsistentTopicId: what is here belongs to another topic id.
            DiskFull: there is no room for a new one.
        """
        log = self.table.logs.get(topic_partition)
        if log is None:
            offline = self.table.offline.get(topic_partition)
            if offline is not None:
                raise LogOffline(str(topic_partition), offline.reason)
            return self._create(topic_partition, topic_id, config, directory)
        if log.topic_id == ZERO_UUID and topic_id != ZERO_UUID:
            self._write_topic_id(log, topic_id)
        elif topic_id not in (log.topic_id, ZERO_UUID):
            raise InconsistentTopicId(topic_partition, log.topic_id, topic_id)
        return log

    def _create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None,
        directory: LogDirectory | None,
    ) -> Log:
        """In `directory`, or else in the first that does not turn out to have failed."""
        if directory is not None:
            return self._create_in(directory, topic_partition, topic_id, config)
        while (chosen := self.table.emptiest(self.directories)) is not None:
            try:
                return self._create_in(chosen, topic_partition, topic_id, config)
            except LogOffline:
                if chosen.is_online:
                    raise
        raise LogOffline(str(topic_partition), "no log directory is online")

    def _create_in(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None,
    ) -> Log:
        self._forget_offsets(topic_partition)
        if directory.offline_reason is not None:
            raise LogOffline(str(topic_partition), directory.offline_reason)
        path = directory.join(str(topic_partition))
        try:
            self.check_presence(directory)
            self.filesystem.mkdirs(path)
            if topic_id != ZERO_UUID:
                write_partition_metadata_unsynced(self.filesystem, path, topic_id)
            log = Log.open(
                self.filesystem,
                self.clock,
                path,
                topic_partition,
                config or self._topic_config(topic_partition.topic),
                topic_id=topic_id,
                producer_expiration_ms=self.settings.producer_expiration_ms,
            )
        except (OSError, DiskFull, CorruptFile) as error:
            raise self._creation_failed(topic_partition, directory, path, error) from None
        if log.offline:
            raise LogOffline(str(topic_partition), log.offline_reason)
        self._install(log, directory)
        self.unsynced_directories[path] = directory.path
        self.jobs.sync_created.soon()
        logger.info("made %s", path)
        return log

    def _creation_failed(
        self,
        topic_partition: TopicPartition,
        directory: LogDirectory,
        path: str,
        error: OSError | DiskFull | CorruptFile,
    ) -> LogOffline | DiskFull:
        """Take back what there is of a partition that could not be made."""
        if isinstance(error, DiskFull) or (isinstance(error, OSError) and is_out_of_room(error)):
            try:
                self.filesystem.rmtree(path)
            except OSError as cleanup_error:
                logger.warning("%s is left half made: %s", path, describe(cleanup_error))
            return DiskFull(f"no room to make {topic_partition} in {directory.path}")
        if isinstance(error, OSError):
            self.fail_directory(directory, f"{path} cannot be made: {describe(error)}")
        return LogOffline(str(topic_partition), str(error))

    def _write_topic_id(self, log: Log, topic_id: UUID) -> None:
        try:
            write_partition_metadata_unsynced(self.filesystem, log.directory, topic_id)
        except OSError as error:
            if is_out_of_room(error):
                raise DiskFull(f"no room for the topic id of {log.name}") from None
            directory = self.table.directory_of[log.topic_partition]
            reason = f"{log.directory} cannot be written: {describe(error)}"
            self.fail_directory(directory, reason)
            raise LogOffline(log.name, reason) from None
        log.topic_id = topic_id
        self.unsynced_directories[log.directory] = self.table.directory_of[log.topic_partition].path
        self.jobs.sync_created.soon()

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Rename the partition's directory away and remove it after `file.delete.delay.ms`.

        Works for offline partitions too. Returns whether there was one. Raises: LogOffline when
        the directory fails.
        """
        return self._put_aside(topic_partition, DELETE_SUFFIX)

    def mark_stray(self, topic_partition: TopicPartition) -> bool:
        """Put aside a partition the metadata does not know: renamed `-stray`, never removed."""
        return self._put_aside(topic_partition, STRAY_SUFFIX)

    def _put_aside(self, topic_partition: TopicPartition, mark: str) -> bool:
        directory = self.directory_of(topic_partition)
        if directory is None:
            return False
        topic_id = self.topic_id_of(topic_partition)
        log = self.table.remove(topic_partition)
        self.cleaner.abort(topic_partition)
        self.found.gone(topic_partition, directory)
        delay_ms = _DEFAULT_DELETE_DELAY_MS
        if log is not None:
            delay_ms = log.config.file_delete_delay_ms
            log.on_offline = None
            log.abandon()
        path = directory.join(str(topic_partition))
        self.unsynced_directories.pop(path, None)
        try:
            aside = self.rename_aside(directory, topic_partition, mark)
        except FileNotFoundError:
            return True
        except OSError as error:
            reason = f"{path} cannot be renamed: {describe(error)}"
            self.table.put_offline(topic_partition, directory, reason, Checkpoints(), topic_id)
            self.fail_directory(directory, reason)
            raise LogOffline(str(topic_partition), reason) from None
        if mark == DELETE_SUFFIX:
            self.jobs.removal.add(delay_ms, [aside])
        self.jobs.recovery_points.soon()
        return True

    def rename_aside(
        self, directory: LogDirectory, topic_partition: TopicPartition, mark: str
    ) -> str:
        """The partition's directory gets a marked name; returns its path. Raises: OSError."""
        path = directory.join(str(topic_partition))
        unique_id = UUID(int=self._random.getrandbits(128), version=4)
        aside = directory.join(marked_directory_name(topic_partition, unique_id, mark))
        self.filesystem.rename(path, aside)
        logger.info("%s is now %s", path, os.path.basename(aside))
        return aside

    # -- checkpoints -----------------------------------------------------------------------------

    def _checkpoint_lowered_recovery_point(self, log: Log) -> None:
        """Before bytes are cut off: durable when this returns. Raises: OSError."""
        directory = self.table.directory_of.get(log.topic_partition)
        if directory is not None:
            checkpoint = self.checkpoints[directory.path].recovery_points
            checkpoint.write(self.table.recovery_points(directory))

    def _checkpoint_first_dirty(self, log: Log) -> None:
        """How far compaction has looked at it is durable when this returns. Raises: OSError."""
        directory = self.table.directory_of.get(log.topic_partition)
        if directory is not None:
            checkpoint = self.checkpoints[directory.path].first_dirty_offsets
            checkpoint.write(self.table.first_dirty_offsets(directory))

    def _forget_offsets(self, topic_partition: TopicPartition) -> None:
        """The name is about to be used again: its old offsets leave the files first."""
        directory = self.table.removed.get(topic_partition)
        if directory is None or not directory.is_online:
            return
        removed = self.table.removed_from(directory)
        try:
            self._write_checkpoints(directory)
        except OSError as error:
            if is_out_of_room(error):
                raise DiskFull(f"no room to forget an earlier {topic_partition}") from None
            self.fail_directory(directory, f"its checkpoints cannot be written: {describe(error)}")
        else:
            self.table.offsets_forgotten(directory, removed)

    def check_presence(self, directory: LogDirectory) -> None:
        """A disk that is not mounted any more must not look like an empty directory.

        Raises: OSError when the directory, or what makes it one of this broker, is gone.
        """
        path = directory.join(META_PROPERTIES)
        if not self.filesystem.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def write_recovery_points(self) -> None:
        """Durable when this returns, but for a directory that fails or is full."""
        for directory in self.online_directories():
            checkpoint = self.checkpoints[directory.path].recovery_points
            try:
                checkpoint.write(self.table.recovery_points(directory))
            except OSError as error:
                self.jobs.directory_error(directory, checkpoint.path, error)

    def _write_checkpoints(self, directory: LogDirectory) -> None:
        """All files hold the present offsets when this returns. Raises: OSError."""
        files, table = self.checkpoints[directory.path], self.table
        files.log_start_offsets.write(table.log_start_offsets(directory))
        files.high_watermarks.write(table.high_watermarks(directory))
        files.first_dirty_offsets.write(table.first_dirty_offsets(directory))
        files.recovery_points.write(table.recovery_points(directory))

    # -- failures --------------------------------------------------------------------------------

    def fail_directory(self, directory: LogDirectory, reason: str) -> None:
        """Take a directory and all its partitions offline until the node restarts."""
        if not directory.fail(reason):
            return
        text = f"log directory {directory.path} is offline: {reason}"
        for log in self.table.logs_in(directory):
            log.take_offline(text)
        if self._on_directory_offline is not None:
            self._on_directory_offline(directory)

    def _log_went_offline(self, log: Log) -> None:
        """One log failed. Whether its directory did too shows the next write to the directory."""
        directory = self.table.log_failed(log)
        self.cleaner.abort(log.topic_partition)
        if directory is not None and directory.is_online and not self._is_closing:
            self.jobs.recovery_points.soon()
        if directory is not None and self.on_log_offline is not None and not self._is_closing:
            self.on_log_offline(log)

    # -- flush and shutdown ----------------------------------------------------------------------

    async def flush(self, log: Log) -> bool:
        """Make durable what the log holds at the time of the call; concurrent calls share fsyncs.

        Returns False when the log went offline instead, or the disk is too full to promise it.
        """
        return await self.jobs.flush(log)

    async def shutdown(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
        """Flush and close every log, write the checkpoints, mark the directories as clean.

        A directory with a damaged partition gets no mark, so that the next start looks at that
        partition again; its other partitions are flushed, which makes that cheap.
        """
        if self._is_closing:
            return
        self._is_closing = True
        await self.cleaner.stop()
        await self.jobs.stop()
        await self.jobs.flush_all()
        for number, log in enumerate(list(self.logs()), start=1):
            try:
                log.close()
            except LogOffline as error:
                logger.error("%s", error)
            if number % MAX_LOGS_PER_VISIT == 0:
                await asyncio.sleep(0)
        for directory in self.directories:
            if directory.is_online:
                await self.filesystem.offload(self._finish_directory, directory, broker_epoch)
            directory.release()
        self.open_segments.close_all()

    def _finish_directory(self, directory: LogDirectory, broker_epoch: int) -> None:
        """Checkpoints and mark of one directory; nothing else touches its logs any more."""
        try:
            self._write_checkpoints(directory)
            if self.table.has_offline_in(directory):
                logger.warning("%s is not marked clean: it has offline partitions", directory.path)
            else:
                # Those that were not read now may come with the ones that are unavailable now.
                kept = self.found.unread if self.unavailable_directories else frozenset()
                directory_ids = kept.union(each.directory_id for each in self.directories)
                shutdown = CleanShutdown(broker_epoch, directory_ids)
                write_clean_shutdown_marker(self.filesystem, directory.path, shutdown)
        except OSError as error:
            directory.fail(f"its checkpoints cannot be written: {describe(error)}")
