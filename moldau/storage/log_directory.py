"""Log directories: identity, lock, contents, and whether a directory can still be written to.

Owns: `.lock`, the check of `meta.properties` of all directories against the node and each other,
the ids of directories that were formatted before there were ids, Kafka's directory names, what a
directory holds at start-up, and the online/offline state of each directory.
Must not: format a directory (node/formatting does), or open partitions (log_manager does).
Invariant: nothing is written to a directory before it is locked and its identity is proven; a
directory that failed stays offline until the process restarts.
"""

from __future__ import annotations

import errno
import logging
import os
import random as random_module
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.protocol.types import TopicPartition, random_topic_id
from moldau.runtime.filesystem import DirectoryLock, Filesystem, LockHeld
from moldau.storage.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdown,
    Offsets,
    read_clean_shutdown_marker,
    read_offset_checkpoint,
    remove_clean_shutdown_marker,
)
from moldau.storage.faults import CorruptFile, describe
from moldau.storage.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)

LOCK_FILE: Final = ".lock"
MAX_NAME_BYTES: Final = 255
DELETE_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"
STRAY_SUFFIX: Final = "-stray"
METADATA_PARTITION: Final = TopicPartition("__cluster_metadata", 0)

_MAX_PARTITION = (1 << 31) - 1
_MARKED_NAME = re.compile(r"(\S+)-(\d+)\.(\S+)-(delete|future|stray)")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LOG_FILE = re.compile(r"\d{20}\..+|\d{20}-\d{10}\.checkpoint")

logger = logging.getLogger(__name__)


class LogDirectoryError(Exception):
    """A log directory cannot be used; the text is one line naming the directory and why."""


@dataclass(slots=True)
class LogDirectory:
    """One of the node's `log.dirs`. Online until `fail` is called, then offline for good."""

    path: str
    cluster_id: str
    node_id: int
    directory_id: UUID
    lock: DirectoryLock | None = None
    offline_reason: str | None = None

    @property
    def is_online(self) -> bool:
        return self.offline_reason is None

    def fail(self, reason: str) -> bool:
        """Take it offline; False when it already was. The first reason is kept."""
        if self.offline_reason is not None:
            return False
        self.offline_reason = reason
        logger.error("log directory %s is offline: %s", self.path, reason)
        return True

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def join(self, name: str) -> str:
        return os.path.join(self.path, name)


@dataclass(slots=True)
class LogDirectories:
    """All of the node's directories: the usable ones, and why the others are not."""

    online: list[LogDirectory]
    offline: dict[str, str]

    def release(self) -> None:
        for directory in self.online:
            directory.release()


def open_log_directories(
    filesystem: Filesystem,
    paths: Sequence[str],
    *,
    cluster_id: str | None,
    node_id: int,
    random: random_module.Random,
) -> LogDirectories:
    """Lock every directory and prove that it belongs to this node.

    A directory with an I/O error is left out as offline while another one works. An identity that
    does not fit is refused for all, because going on would mix two nodes' data.

    Args:
        cluster_id: what the directories must say; None accepts any one id they all agree on.
        random: draws the directory id for a directory formatted before there were ids.

    Raises:
        LogDirectoryError: unformatted, another cluster's or node's, two with the same id, held by
            another process, or no usable directory at all. Nothing has been changed then.
    """
    assert paths, "a node has at least one log directory"
    offline: dict[str, str] = {}
    found: list[tuple[str, DirectoryLock, MetaProperties]] = []
    try:
        for path in _distinct(paths):
            opened = _lock_and_read(filesystem, path, offline)
            if opened is not None:
                found.append((path, *opened))
        if not found:
            raise LogDirectoryError("; ".join(offline.values()))
        _check_identities([(path, meta) for path, _, meta in found], cluster_id, node_id)
    except LogDirectoryError:
        for _, lock, _ in found:
            lock.release()
        raise
    return _claim(filesystem, found, offline, random)


def _claim(
    filesystem: Filesystem,
    found: Sequence[tuple[str, DirectoryLock, MetaProperties]],
    offline: dict[str, str],
    random: random_module.Random,
) -> LogDirectories:
    """Give ids to directories without one, after every identity was checked."""
    online = []
    for path, lock, meta in found:
        directory_id = meta.directory_id
        if directory_id is None or meta.version == 0:
            directory_id = directory_id or random_topic_id(random)
            completed = MetaProperties(meta.cluster_id, meta.node_id, directory_id)
            try:
                write_meta_properties(filesystem, path, completed)
            except OSError as error:
                offline[path] = f"log directory {path} is not writable: {describe(error)}"
                lock.release()
                continue
        online.append(LogDirectory(path, meta.cluster_id, meta.node_id, directory_id, lock))
    if not online:
        raise LogDirectoryError("; ".join(offline.values()))
    for reason in offline.values():
        logger.error("starting without it: %s", reason)
    return LogDirectories(online, offline)


def _distinct(paths: Sequence[str]) -> list[str]:
    absolute = [os.path.abspath(path) for path in paths]
    for index, path in enumerate(absolute):
        if path in absolute[:index]:
            raise LogDirectoryError(f"log directory {path} is configured twice")
    return absolute


def _lock_and_read(
    filesystem: Filesystem, path: str, offline: dict[str, str]
) -> tuple[DirectoryLock, MetaProperties] | None:
    """The lock and identity of a directory, or None with the reason in `offline`."""
    try:
        lock = _lock(filesystem, path)
    except OSError as error:
        offline[path] = f"log directory {path} cannot be used: {describe(error)}"
        return None
    try:
        meta = read_meta_properties(filesystem, path)
    except OSError as error:
        lock.release()
        offline[path] = f"log directory {path} cannot be read: {describe(error)}"
        return None
    except CorruptFile as error:
        lock.release()
        raise LogDirectoryError(str(error)) from None
    if meta is None:
        lock.release()
        raise LogDirectoryError(
            f"log directory {path} is not formatted (it has no {META_PROPERTIES})"
        )
    return lock, meta


def _lock(filesystem: Filesystem, path: str) -> DirectoryLock:
    if not filesystem.exists(path):
        # Not made on the fly: a disk that is not mounted must not look like an empty directory.
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", path)
    if not filesystem.is_directory(path):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", path)
    try:
        return filesystem.lock(os.path.join(path, LOCK_FILE))
    except LockHeld:
        raise LogDirectoryError(
            f"log directory {path} is in use by another process (it holds {LOCK_FILE})"
        ) from None


def _check_identities(
    found: Sequence[tuple[str, MetaProperties]], cluster_id: str | None, node_id: int
) -> None:
    expected_cluster_id = cluster_id if cluster_id is not None else found[0][1].cluster_id
    by_directory_id: dict[UUID, str] = {}
    for path, meta in found:
        if meta.cluster_id != expected_cluster_id:
            raise LogDirectoryError(
                f"log directory {path} belongs to cluster {meta.cluster_id!r}, "
                f"not to {expected_cluster_id!r}"
            )
        if meta.node_id != node_id:
            raise LogDirectoryError(
                f"log directory {path} belongs to node {meta.node_id}, and this is node {node_id}"
            )
        if meta.directory_id is not None:
            other = by_directory_id.setdefault(meta.directory_id, path)
            if other != path:
                raise LogDirectoryError(
                    f"log directories {other} and {path} have the same directory.id: "
                    "one is a copy of the other"
                )


def make_durably(filesystem: Filesystem, path: str) -> None:
    """Make a directory with its parents; their names survive a power loss."""
    parents = []
    missing = os.path.abspath(path)
    while not filesystem.exists(missing):
        missing = os.path.dirname(missing)
        parents.append(missing)
    filesystem.mkdirs(path)
    for parent in parents:
        filesystem.fsync_directory(parent)


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition whose directory has this plain name (`topic-partition`), or None."""
    topic, separator, digits = name.rpartition("-")
    if not separator or not (digits.isascii() and digits.isdigit()):
        return None
    partition = int(digits)
    if partition > _MAX_PARTITION or str(partition) != digits:
        return None
    if topic in (".", "..") or not _TOPIC_NAME.fullmatch(topic):
        return None
    return TopicPartition(topic, partition)


def directory_mark(name: str) -> str | None:
    """`-delete`, `-future` or `-stray` when the directory name carries that mark, else None."""
    match = _MARKED_NAME.fullmatch(name)
    return None if match is None else "-" + match[4]


def marked_partition(name: str) -> TopicPartition | None:
    """The partition a marked directory belonged to; a long topic name may be cut short in it."""
    match = _MARKED_NAME.fullmatch(name)
    return None if match is None else TopicPartition(match[1], int(match[2]))


def marked_directory_name(topic_partition: TopicPartition, unique_id: UUID, mark: str) -> str:
    """The name of a partition's directory that is put aside; at most 255 bytes.

    The topic's end is cut when needed: the unique id keeps such names distinct.
    """
    assert mark in (DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX)
    ending = f"-{topic_partition.partition}.{unique_id.hex}{mark}"
    return topic_partition.topic[: MAX_NAME_BYTES - len(ending)] + ending


def is_log_directory(filesystem: Filesystem, path: str) -> bool:
    """Whether a directory is formatted, or has a partition's in it. Raises: OSError"""
    return filesystem.exists(os.path.join(path, META_PROPERTIES)) or any(
        partition_of(filesystem, os.path.join(path, name)) is not None
        for name in filesystem.listdir(path)
    )


def partition_of(filesystem: Filesystem, path: str) -> TopicPartition | None:
    """The partition of a directory that has a partition's name and its files, or None: `broker-1`
    may be a node's. Raises: OSError
    """
    name = os.path.basename(os.path.abspath(path))
    named = parse_partition_directory(name) or marked_partition(name)
    if named is None or not filesystem.is_directory(path):
        return None
    names = filesystem.listdir(path)
    has_files = PARTITION_METADATA in names or any(map(_LOG_FILE.fullmatch, names))
    return named if has_files else None


@dataclass(slots=True)
class DirectoryContents:
    """What a log directory holds at start-up.

    `checkpoints`: offsets by the file's name. `clean_shutdown` is None after an unclean stop.
    `has_names`: whether a checkpoint names the partitions that were here.
    """

    directory: LogDirectory
    checkpoints: dict[str, Offsets]
    clean_shutdown: CleanShutdown | None
    has_names: bool
    partitions: list[TopicPartition]
    to_delete: list[str]

    def offsets_of(self, topic_partition: TopicPartition) -> dict[str, int | None]:
        """What the checkpoints say of one partition, by the file's name."""
        return {name: each.get(topic_partition) for name, each in self.checkpoints.items()}

    def names(self) -> Iterator[TopicPartition]:
        """The partitions that were here when the checkpoints were written."""
        for topic_partition in {
            **self.checkpoints[RECOVERY_POINT_CHECKPOINT],
            **self.checkpoints[HIGH_WATERMARK_CHECKPOINT],
        }:
            if topic_partition != METADATA_PARTITION:
                yield topic_partition


def scan_directory(filesystem: Filesystem, directory: LogDirectory) -> DirectoryContents:
    """Read a directory's checkpoints and names, and remove its clean-shutdown marker.

    A damaged checkpoint costs recovery time, not the directory: without recovery points everything
    is checked again, without log start offsets the first segments give them, without high
    watermarks leader and followers agree on one again, without those of compaction logs are cleaned
    from the start.

    Raises: OSError when the directory cannot be read or written.
    """
    clean_shutdown = read_clean_shutdown_marker(filesystem, directory.path)
    remove_clean_shutdown_marker(filesystem, directory.path)
    read = {name: _read(filesystem, directory.join(name)) for name in OFFSET_CHECKPOINTS}
    contents = DirectoryContents(
        directory,
        {name: offsets or {} for name, offsets in read.items()},
        clean_shutdown,
        has_names=any(
            read[name] is not None
            for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
        ),
        partitions=[],
        to_delete=[],
    )
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


def _read(filesystem: Filesystem, path: str) -> Offsets | None:
    """The offsets of a checkpoint; None when no file can be read."""
    if not filesystem.exists(path):
        return None
    try:
        return read_offset_checkpoint(filesystem, path)
    except CorruptFile as error:
        logger.warning("%s; going on without it", error)
        return None
