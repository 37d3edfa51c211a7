"""ServedDirectories: a node's log directories at work, and the checkpoint files in them.

Owns: what is written into the checkpoint files, and that a failed directory takes its logs with it.
Must not: make, open or flush logs, nor choose the directory of a new one (`log_manager` does).
Invariant: a failed directory is written to no more, and none of
its logs is online.
"""

from __future__ import annotations

import errno
import logging
import os
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from moldau.protocol.types import TopicPartition
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
)
from moldau.storage.faults import describe, is_out_of_room
from moldau.storage.log import Log
from moldau.storage.log_directory import LogDirectories, LogDirectory, marked_directory_name
from moldau.storage.log_table import LogTable
from moldau.storage.meta_properties import META_PROPERTIES

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ServedDirectories:
    """Belongs to the log manager's loop.

    Args:
        on_offline: called once for each directory that fails while the node runs.
    """

    _filesystem: Filesystem
    _opened: LogDirectories
    _table: LogTable
    _random: random_module.Random
    _on_offline: Callable[[LogDirectory], None] | None

    def __post_init__(self) -> None:
        self.all = self._opened.online
        self.unavailable = self._opened.offline
        """Directories that could not be used at the start, and why."""
        self.checkpoints = {
            each.path: {
                name: OffsetCheckpoint(self._filesystem, each.join(name))
                for name in OFFSET_CHECKPOINTS
            }
            for each in self.all
        }
        """Directory -> file name -> the checkpoint file."""

    def online(self) -> list[LogDirectory]:
        return [each for each in self.all if each.is_online]

    @property
    def has_failed(self) -> bool:
        """Whether some log directory cannot be read, since the start or later."""
        return bool(self.unavailable) or not all(each.is_online for each in self.all)

    def at(self, path: str) -> LogDirectory:
        return next(each for each in self.all if each.path == path)

    def with_id(self, directory_id: UUID) -> LogDirectory | None:
        """The log directory with this id, online or not; None without one."""
        return next((each for each in self.all if each.directory_id == directory_id), None)

    def rename_aside(
        self, directory: LogDirectory, topic_partition: TopicPartition, mark: str
    ) -> str:
        """Give the partition's directory a marked name; returns its path. Raises: OSError."""
        path = directory.join(str(topic_partition))
        unique_id = UUID(int=self._random.getrandbits(128), version=4)
        aside = directory.join(marked_directory_name(topic_partition, unique_id, mark))
        self._filesystem.rename(path, aside)
        logger.info("%s is now %s", path, os.path.basename(aside))
        return aside

    # -- checkpoints -----------------------------------------------------------------------------

    def write_next(self, name: str, log: Log, next_offset: int) -> None:
        """Write a log's next offset durably, before what depends on it. Raises: OSError."""
        directory = self._table.directory_of.get(log.topic_partition)
        if directory is not None:
            offsets = self._table.offsets(directory, name)
            self.checkpoints[directory.path][name].write(
                {**offsets, log.topic_partition: next_offset}
            )

    def prepare(self, directory: LogDirectory, name: str) -> Callable[[], object] | None:
        """The write of the present offsets into a checkpoint file, for a thread that may wait for
        the disk; None if the file has them already.
        """
        return self.checkpoints[directory.path][name].prepare(self._table.offsets(directory, name))

    def write_all(self, directory: LogDirectory) -> None:
        """Write the present offsets into all checkpoint files. Raises: OSError."""
        for name in OFFSET_CHECKPOINTS:
            self._write(directory, name)

    def write_recovery_points(self) -> None:
        """Write all recovery points, durably except in a directory that fails or is full."""
        for directory in self.online():
            try:
                self._write(directory, RECOVERY_POINT_CHECKPOINT)
            except OSError as error:
                self.failed_to_write(directory, directory.join(RECOVERY_POINT_CHECKPOINT), error)

    def _write(self, directory: LogDirectory, name: str) -> None:
        self.checkpoints[directory.path][name].write(self._table.offsets(directory, name))

    # -- failures --------------------------------------------------------------------------------

    def check_presence(self, directory: LogDirectory) -> None:
        """A disk that is not mounted any more must not look like an empty directory.

        Raises: OSError when the directory, or what makes it one of this broker, is gone.
        """
        path = directory.join(META_PROPERTIES)
        if not self._filesystem.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def failed_to_write(self, directory: LogDirectory, what: str, error: OSError) -> None:
        """A write on a full disk is repeated later; any other error fails the directory."""
        if is_out_of_room(error):
            logger.warning("no room to write %s in %s", what, directory.path)
        else:
            self.fail(directory, f"{what}: {describe(error)}")

    def fail(self, directory: LogDirectory, reason: str) -> None:
        """Take a directory and all its partitions offline until the node restarts."""
        if not directory.fail(reason):
            return
        text = f"log directory {directory.path} is offline: {reason}"
        for log in self._table.logs_in(directory):
            log.take_offline(text)
        if self._on_offline is not None:
            self._on_offline(directory)
