"""Loading one log directory: what is in it, and opening each partition found.

Owns: reading the checkpoints, sorting directory entries, opening one partition off the loop.
Must not: keep logs or schedule anything (log_manager does).
Invariant: no partition is refused because of another; what cannot be opened is returned with the
reason, and nothing in its directory is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    read_clean_shutdown_marker,
    read_offset_checkpoint,
    remove_clean_shutdown_marker,
)
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.faults import DiskFull
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.log_directory import (
    DELETE_SUFFIX,
    METADATA_PARTITION,
    LogDirectory,
    describe,
    directory_mark,
    parse_partition_directory,
)
from moldau.storage.partition_metadata import read_partition_metadata

logger = logging.getLogger("moldau.storage")


@dataclass(slots=True)
class Checkpoints:
    """The offsets a directory's checkpoint files hold."""

    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    first_dirty_offsets: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class DirectoryContents:
    """What a log directory holds at start-up.

    `clean_shutdown` is None after an unclean stop. `has_names`: whether a checkpoint tells which
    partitions were here.
    """

    directory: LogDirectory
    checkpoints: Checkpoints
    clean_shutdown: CleanShutdown | None
    has_names: bool
    partitions: list[TopicPartition]
    to_delete: list[str]

    @property
    def was_clean_shutdown(self) -> bool:
        """Whether the last stop left its mark."""
        return self.clean_shutdown is not None

    def names(self) -> Iterator[TopicPartition]:
        """The partitions that were here when the checkpoints were written."""
        for topic_partition in {
            **self.checkpoints.recovery_points,
            **self.checkpoints.high_watermarks,
        }:
            if topic_partition != METADATA_PARTITION:
                yield topic_partition


@dataclass(slots=True)
class LoadedPartition:
    """A partition that was found: its log, or why there is none."""

    topic_partition: TopicPartition
    directory: LogDirectory
    log: Log | None
    offline_reason: str = ""
    topic_id: UUID = ZERO_UUID


def scan_directory(filesystem: Filesystem, directory: LogDirectory) -> DirectoryContents:
    """Read a directory's checkpoints and names, and take its clean-shutdown marker away.

    A damaged checkpoint costs recovery time, not the directory: without recovery points everything
    is checked again, without log start offsets the segments tell, without high watermarks leader
    and followers agree on one anew, without those of compaction logs are cleaned from the start.

    Raises: OSError when the directory cannot be read or written.
    """
    clean_shutdown = read_clean_shutdown_marker(filesystem, directory.path)
    remove_clean_shutdown_marker(filesystem, directory.path)
    recovery_points = _read(filesystem, directory.join(RECOVERY_POINT_CHECKPOINT))
    high_watermarks = _read(filesystem, directory.join(HIGH_WATERMARK_CHECKPOINT))
    checkpoints = Checkpoints(
        recovery_points or {},
        _read(filesystem, directory.join(LOG_START_OFFSET_CHECKPOINT)) or {},
        high_watermarks or {},
        _read(filesystem, directory.join(CLEANER_CHECKPOINT)) or {},
    )
    has_names = recovery_points is not None or high_watermarks is not None
    contents = DirectoryContents(directory, checkpoints, clean_shutdown, has_names, [], [])
    for name in filesystem.listdir(directory.path):
        topic_partition = parse_partition_directory(name)
        mark = directory_mark(name)
        if topic_partition is not None:
            if topic_partition != METADATA_PARTITION:
                contents.partitions.append(topic_partition)
        elif mark == DELETE_SUFFIX:
            contents.to_delete.append(directory.join(name))
        elif mark is not None:
            logger.warning(
                "%s is left alone: it is marked %s; remove it when nobody needs it",
                directory.join(name),
                mark,
            )
        elif filesystem.is_directory(directory.join(name)):
            logger.warning("%s is no partition and is left alone", directory.join(name))
    return contents


def _read(filesystem: Filesystem, path: str) -> dict[TopicPartition, int] | None:
    """What a checkpoint holds; None when there is none that can be read."""
    if not filesystem.exists(path):
        return None
    try:
        return read_offset_checkpoint(filesystem, path)
    except CorruptFile as error:
        logger.warning("%s; going on without it", error)
        return None


def load_partition(
    filesystem: Filesystem,
    clock: Clock,
    contents: DirectoryContents,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    producer_expiration_ms: int,
) -> LoadedPartition:
    """Open one partition, recovering it if need be. Blocks: runs in the disk threads."""
    directory = contents.directory
    path = directory.join(str(topic_partition))
    loaded = LoadedPartition(topic_partition, directory, None)
    checkpoints = contents.checkpoints
    try:
        topic_id = _topic_id(filesystem, path, contents.was_clean_shutdown)
        loaded.topic_id = topic_id
        log = Log.open(
            filesystem,
            clock,
            path,
            topic_partition,
            config,
            topic_id=topic_id,
            log_start_offset=checkpoints.log_start_offsets.get(topic_partition, 0),
            recovery_point=checkpoints.recovery_points.get(topic_partition, 0),
            clean_shutdown=contents.was_clean_shutdown,
            first_dirty_offset=checkpoints.first_dirty_offsets.get(topic_partition),
            producer_expiration_ms=producer_expiration_ms,
        )
    except (CorruptFile, DiskFull) as error:
        loaded.offline_reason = str(error)
    except OSError as error:
        loaded.offline_reason = f"{error.filename or path}: {describe(error)}"
    else:
        if log.offline:
            loaded.offline_reason = log.offline_reason
        loaded.log = log
    if loaded.offline_reason:
        logger.error("%s is offline: %s", topic_partition, loaded.offline_reason)
    return loaded


def _topic_id(filesystem: Filesystem, path: str, was_clean_shutdown: bool) -> UUID:
    """The topic id, zero when it is not known (the metadata will tell).

    Raises: CorruptFile; OSError.
    """
    try:
        return read_partition_metadata(filesystem, path) or ZERO_UUID
    except CorruptFile as error:
        if was_clean_shutdown:
            raise
        # A partition made just before a power loss: its name survived, this file's bytes did not.
        logger.warning("%s; the topic id will be written again", error)
        return ZERO_UUID
