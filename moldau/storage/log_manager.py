"""LogManager: all partitions' logs of one node, in all its log directories.

Owns: which log is where, and in which directory a new one is made that the metadata leaves to the
broker; loading and creating and deleting them, which partitions are offline and why, and the
orderly end. Must not: read or write records, know leaders or replicas, or answer clients. Regular
work is in log_jobs, the comparison with the metadata in found_partitions, what becomes of a
directory that fails in served_directories. Invariant: a partition is in exactly one of: online,
offline, unknown. A partition that cannot be served never keeps another from being served; nothing
in the directory of one that cannot be opened is removed. Offsets of a deleted partition are out of
the checkpoint files before a partition of the same name is made.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID, TopicPartition, uuid_to_base64
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    read_partition_metadata,
    write_clean_shutdown_marker,
    write_partition_metadata_unsynced,
)
from moldau.storage.cleaner.log_cleaner import LogCleaner
from moldau.storage.cleaner.workers import CleanerWorker, InlineWorker
from moldau.storage.faults import (
    CorruptFile,
    DiskFull,
    LogOffline,
    describe,
    is_out_of_room,
    lacks_room,
)
from moldau.storage.found_partitions import FoundPartitions
from moldau.storage.log import Log
from moldau.storage.log_config import CleanerSettings, LogConfig, LogManagerSettings
from moldau.storage.log_directory import (
    DELETE_SUFFIX,
    STRAY_SUFFIX,
    DirectoryContents,
    LogDirectories,
    LogDirectory,
    scan_directory,
)
from moldau.storage.log_jobs import MAX_LOGS_PER_VISIT, LogJobs
from moldau.storage.log_table import LogTable, OfflinePartition
from moldau.storage.segment import OpenSegments
from moldau.storage.served_directories import ServedDirectories

PROGRESS_INTERVAL_MS = 5_000
"""How often a long start logs its progress."""

_DEFAULT_DELETE_DELAY_MS = LogConfig().file_delete_delay_ms

logger = logging.getLogger(__name__)


class InconsistentTopicId(Exception):
    """The partition on disk belongs to another topic of the same name."""

    error = ErrorCode.INCONSISTENT_TOPIC_ID

    def __init__(self, topic_partition: TopicPartition, found: UUID, wanted: UUID) -> None:
        super().__init__(
            f"{topic_partition} on disk has topic id {uuid_to_base64(found)}, "
            f"not {uuid_to_base64(wanted)}"
        )


class LoadReport(NamedTuple):
    """What `LogManager.start` found."""

    loaded_count: int
    offline_count: int
    clean_directory_count: int
    previous_broker_epoch: int
    elapsed_ms: float


class LogDirDescription(NamedTuple):
    """One directory for DescribeLogDirs (KIP-113, KIP-827); unknown sizes of the volume are -1."""

    directory: str
    error: ErrorCode
    logs: list[Log]
    total_bytes: int
    usable_bytes: int


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

        `on_directory_offline` is called once for each directory that fails while the node runs.
        `make_cleaner_worker`: where compaction works; None: in this process.
        """
        self.filesystem = filesystem
        self.clock = clock
        self.settings = settings
        self.table = LogTable()
        self.directories = ServedDirectories(
            filesystem, directories, self.table, random, on_directory_offline
        )
        self.open_segments = OpenSegments(settings.max_open_closed_segments)
        self.jobs = LogJobs(
            filesystem,
            clock,
            self.table,
            self.directories,
            settings,
            lambda log: self.cleaner.is_cleaning(log),
        )
        self.on_log_offline: Callable[[Log], object] | None = None
        """Called for each log that fails, alone or with its directory."""
        self._topic_config = topic_config
        self.found = FoundPartitions(
            filesystem,
            self.table,
            self.directories,
            self.jobs.recovery_points.soon,
            self.mark_stray,
            self._load,
        )
        self._opening_again: set[TopicPartition] = set()
        """Those that the disk threads are opening: no other log may be made of that name."""
        self._is_closing = False
        self.cleaner = LogCleaner(
            filesystem,
            clock,
            self.table,
            self.directories,
            self.jobs,
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
        for directory in list(self.directories.all):
            try:
                found.append(
                    await self.filesystem.offload(scan_directory, self.filesystem, directory)
                )
            except OSError as error:
                self.directories.fail(directory, f"it cannot be read: {describe(error)}")
        for contents in found:
            files = self.directories.checkpoints[contents.directory.path]
            files[CLEANER_CHECKPOINT].loaded(contents.checkpoints[CLEANER_CHECKPOINT])
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
            clean_directory_count=sum(each.clean_shutdown is not None for each in found),
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

    async def _load(self, contents: DirectoryContents, topic_partition: TopicPartition) -> None:
        """Open one partition that a directory has, once the node starts."""
        config = self._topic_config(topic_partition.topic)
        opened = await self.filesystem.offload(
            self._open,
            topic_partition,
            config,
            OfflinePartition(contents.directory, "", offsets=contents.offsets_of(topic_partition)),
            contents.clean_shutdown is not None,
        )
        self._put(topic_partition, opened)

    async def open_again(self, topic_partition: TopicPartition) -> None:
        """Open a partition that `lacks_room`, if there is room now."""
        if not self.lacks_room(topic_partition) or self._is_closing:
            return
        before = self.table.offline[topic_partition]
        self._opening_again.add(topic_partition)
        try:
            # What an attempt has left half done is looked through, as after an unclean stop.
            opened = await self.filesystem.offload(
                self._open,
                topic_partition,
                self._topic_config(topic_partition.topic),
                before,
                False,
            )
        finally:
            self._opening_again.discard(topic_partition)
        log, _ = opened
        if self.table.offline.get(topic_partition) is before and not self._is_closing:
            self._put(topic_partition, opened)
        elif log is not None:
            log.abandon()  # The partition was put aside in between, or the node stops.

    def _put(
        self, topic_partition: TopicPartition, opened: tuple[Log | None, OfflinePartition]
    ) -> None:
        log, offline = opened
        directory = offline.directory
        if log is not None and not log.offline:
            if directory.is_online:
                log.update_high_watermark(offline.offsets[HIGH_WATERMARK_CHECKPOINT] or 0)
                self._install(log, directory)
                return
            log.abandon()
            offline = replace(offline, reason=directory.offline_reason or "")
        self.table.put_offline(topic_partition, offline)

    def _open(
        self,
        topic_partition: TopicPartition,
        config: LogConfig,
        found: OfflinePartition,
        is_clean: bool,
    ) -> tuple[Log | None, OfflinePartition]:
        """Open one partition, recovering it if need be. Blocks: runs in the disk threads.

        Returns its log (None when it cannot be opened), and why it is offline.
        """
        path = found.directory.join(str(topic_partition))
        offsets = found.offsets
        topic_id = ZERO_UUID
        log, reason, has_no_room = None, "", False
        try:
            topic_id = _topic_id(self.filesystem, path, is_clean)
            log = Log.open(
                self.filesystem,
                self.clock,
                path,
                topic_partition,
                config,
                topic_id=topic_id,
                log_start_offset=offsets[LOG_START_OFFSET_CHECKPOINT] or 0,
                recovery_point=offsets[RECOVERY_POINT_CHECKPOINT] or 0,
                clean_shutdown=is_clean,
                first_dirty_offset=offsets[CLEANER_CHECKPOINT],
                producer_expiration_ms=self.settings.producer_expiration_ms,
            )
        except (CorruptFile, DiskFull) as error:
            reason, has_no_room = str(error), lacks_room(error)
        except OSError as error:
            reason = f"{error.filename or path}: {describe(error)}"
            has_no_room = lacks_room(error)
        else:
            reason, has_no_room = log.offline_reason, log.lacks_room
        if reason:
            logger.error("%s is offline: %s", topic_partition, reason)
        return log, OfflinePartition(found.directory, reason, topic_id, offsets, has_no_room)

    async def _load_all(
        self, queue: deque[tuple[DirectoryContents, TopicPartition]], worker_count: int
    ) -> None:
        total = len(queue)
        next_report_ms = self.clock.monotonic_ms() + PROGRESS_INTERVAL_MS

        async def work() -> None:
            nonlocal next_report_ms
            while queue:
                await self._load(*queue.popleft())
                if self.clock.monotonic_ms() >= next_report_ms:
                    next_report_ms += PROGRESS_INTERVAL_MS
                    logger.info("loading partitions: %d of %d left", len(queue), total)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(max(worker_count, 1), total)):
                workers.create_task(work())

    def _install(self, log: Log, directory: LogDirectory) -> None:
        log.segments.share_open_segments(self.open_segments)
        log.on_offline = self._log_went_offline
        log.on_roll = self.jobs.flush_soon
        write = self.directories.write_next
        log.checkpoint_recovery_point = partial(write, RECOVERY_POINT_CHECKPOINT)
        log.checkpoint_first_dirty = partial(write, CLEANER_CHECKPOINT)
        log.segments.schedule_deletion = self.jobs.removal.add
        self.table.put_online(log, directory)

    # -- lookup ----------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self.table.logs.get(topic_partition)

    def offline_reason(self, topic_partition: TopicPartition) -> str | None:
        """Why a partition is offline; None when it is online or unknown."""
        offline = self.table.offline.get(topic_partition)
        return None if offline is None else offline.reason

    def lacks_room(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is offline only until there is room to open it."""
        offline = self.table.offline.get(topic_partition)
        return offline is not None and offline.lacks_room and offline.directory.is_online

    def logs(self) -> Collection[Log]:
        """All logs that are online (a live view: copy it before awaiting or deleting)."""
        return self.table.logs.values()

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory | None:
        return self.table.holder(topic_partition)

    def topic_id_of(self, topic_partition: TopicPartition) -> UUID:
        """The topic id of the partition, online or offline; zero when not known."""
        log = self.table.logs.get(topic_partition)
        if log is not None:
            return log.topic_id
        offline = self.table.offline.get(topic_partition)
        return ZERO_UUID if offline is None else offline.topic_id

    def update_producer_expiration(self, producer_expiration_ms: int) -> None:
        self.settings = replace(self.settings, producer_expiration_ms=producer_expiration_ms)
        for log in self.table.logs.values():
            log.producer_state.expiration_ms = producer_expiration_ms

    # -- create and delete -----------------------------------------------------------------------

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig | None = None,
        directory: LogDirectory | None = None,
    ) -> Log:
        """The partition's log; a new one is made in `directory`, or in that with fewest partitions.

        The new names become durable shortly after, at the latest before the first flush of the log.

        Raises:
            LogOffline: it is damaged, or no directory is online.
            InconsistentTopicId: the partition here has another topic id.
            DiskFull: there is no room for a new one, or to open the one that is here.
        """
        log = self.table.logs.get(topic_partition)
        if log is None:
            offline = self.table.offline.get(topic_partition)
            if self.lacks_room(topic_partition) or topic_partition in self._opening_again:
                raise DiskFull(f"no room to open {topic_partition}")
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
        if directory is not None:
            return self._create_in(directory, topic_partition, topic_id, config)
        while (chosen := self.table.emptiest(self.directories.all)) is not None:
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
            self.directories.check_presence(directory)
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
        self.jobs.created(topic_partition, path, directory)
        return log

    def _creation_failed(
        self,
        topic_partition: TopicPartition,
        directory: LogDirectory,
        path: str,
        error: OSError | DiskFull | CorruptFile,
    ) -> LogOffline | DiskFull:
        """Remove what exists of a partition that could not be made; returns what to raise."""
        if lacks_room(error):
            try:
                self.filesystem.rmtree(path)
            except FileNotFoundError:
                pass  # There was no room for its name.
            except OSError as cleanup_error:
                logger.warning("%s is left half made: %s", path, describe(cleanup_error))
            return DiskFull(f"no room to make {topic_partition} in {directory.path}")
        if isinstance(error, OSError):
            self.directories.fail(directory, f"{path} cannot be made: {describe(error)}")
        return LogOffline(str(topic_partition), str(error))

    def _write_topic_id(self, log: Log, topic_id: UUID) -> None:
        try:
            write_partition_metadata_unsynced(self.filesystem, log.directory, topic_id)
        except OSError as error:
            if is_out_of_room(error):
                raise DiskFull(f"no room for the topic id of {log.name}") from None
            directory = self.table.directory_of[log.topic_partition]
            reason = f"{log.directory} cannot be written: {describe(error)}"
            self.directories.fail(directory, reason)
            raise LogOffline(log.name, reason) from None
        log.topic_id = topic_id
        self.jobs.sync_soon(log.directory, self.table.directory_of[log.topic_partition])

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Rename the partition's directory away and remove it after `file.delete.delay.ms`.

        Works for offline partitions too. Returns whether there was one. Raises: LogOffline when
        the directory fails.
        """
        return self._put_aside(topic_partition, DELETE_SUFFIX)

    def mark_stray(self, topic_partition: TopicPartition) -> bool:
        """Put aside a partition unknown to the metadata: renamed `-stray`, never removed."""
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
        self.jobs.unsynced.pop(path, None)
        try:
            aside = self.directories.rename_aside(directory, topic_partition, mark)
        except FileNotFoundError:
            return True
        except OSError as error:
            reason = f"{path} cannot be renamed: {describe(error)}"
            self.table.put_offline(topic_partition, OfflinePartition(directory, reason, topic_id))
            self.directories.fail(directory, reason)
            raise LogOffline(str(topic_partition), reason) from None
        if mark == DELETE_SUFFIX:
            self.jobs.removal.add(delay_ms, [aside])
        self.jobs.recovery_points.soon()
        return True

    def _forget_offsets(self, topic_partition: TopicPartition) -> None:
        """Remove a name's old offsets from the files before it is used again. Raises: DiskFull."""
        directory = self.table.removed.get(topic_partition)
        if directory is None or not directory.is_online:
            return
        removed = self.table.removed_from(directory)
        try:
            self.directories.write_all(directory)
        except OSError as error:
            if is_out_of_room(error):
                raise DiskFull(f"no room to forget an earlier {topic_partition}") from None
            self.directories.fail(
                directory, f"its checkpoints cannot be written: {describe(error)}"
            )
        else:
            self.table.offsets_forgotten(directory, removed)

    # -- failures --------------------------------------------------------------------------------

    def _log_went_offline(self, log: Log) -> None:
        """One log failed. The next write to its directory shows whether that failed too."""
        directory = self.table.log_failed(log)
        self.cleaner.abort(log.topic_partition)
        if directory is not None and directory.is_online and not self._is_closing:
            self.jobs.recovery_points.soon()
        if directory is not None and self.on_log_offline is not None and not self._is_closing:
            self.on_log_offline(log)

    # -- shutdown --------------------------------------------------------------------------------

    async def shutdown(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
        """Flush and close every log, write the checkpoints, mark the directories as clean.

        A directory with a damaged partition gets no mark, so that the next start checks that
        partition again; its other partitions are flushed, which makes the check cheap.
        """
        if self._is_closing:
            return
        self._is_closing = True
        await self.cleaner.stop()
        await self.jobs.stop()
        await self.jobs.flush_all(self.logs())
        for number, log in enumerate(list(self.logs()), start=1):
            try:
                log.close()
            except LogOffline as error:
                logger.error("%s", error)
            if number % MAX_LOGS_PER_VISIT == 0:
                await asyncio.sleep(0)
        for directory in self.directories.all:
            if directory.is_online:
                await self.filesystem.offload(self._finish_directory, directory, broker_epoch)
            directory.release()
        self.open_segments.close_all()

    def _finish_directory(self, directory: LogDirectory, broker_epoch: int) -> None:
        try:
            self.directories.write_all(directory)
            if self.table.has_offline_in(directory):
                logger.warning("%s is not marked clean: it has offline partitions", directory.path)
            else:
                # Directories that were not read may be among those that are unavailable now.
                kept = self.found.unread if self.directories.unavailable else frozenset()
                directory_ids = kept.union(each.directory_id for each in self.directories.all)
                shutdown = CleanShutdown(broker_epoch, directory_ids)
                write_clean_shutdown_marker(self.filesystem, directory.path, shutdown)
        except OSError as error:
            directory.fail(f"its checkpoints cannot be written: {describe(error)}")


def _topic_id(filesystem: Filesystem, path: str, was_clean_shutdown: bool) -> UUID:
    """The topic id; zero when it is not known (the metadata has it).

    Raises: CorruptFile; OSError.
    """
    try:
        return read_partition_metadata(filesystem, path) or ZERO_UUID
    except CorruptFile as error:
        if was_clean_shutdown:
            raise
        # Made just before a power loss: the partition's name survived, this file's bytes did not.
        logger.warning("%s; the topic id will be written again", error)
        return ZERO_UUID


def describe_log_dirs(manager: LogManager) -> list[LogDirDescription]:
    """Every configured directory with the log of each partition that is served from it.

    A directory whose volume is gone fails by this.
    """
    described = []
    for directory in manager.directories.all:
        if directory.is_online:
            try:
                total_bytes, usable_bytes = manager.filesystem.disk_usage(directory.path)
            except OSError as error:
                manager.directories.fail(directory, f"its volume is gone: {describe(error)}")
        if not directory.is_online:
            described.append(_offline(directory.path))
            continue
        logs = manager.table.logs_in(directory)
        described.append(
            LogDirDescription(directory.path, ErrorCode.NONE, logs, total_bytes, usable_bytes)
        )
    return described + [_offline(path) for path in manager.directories.unavailable]


def _offline(path: str) -> LogDirDescription:
    return LogDirDescription(path, ErrorCode.KAFKA_STORAGE_ERROR, [], -1, -1)
