"""A log directory's checkpoint files as the log manager writes them: in order, and only if changed.

Owns: which contents of a file are the newest, across the loop and the disk threads.
Must not: decide which offsets belong into a file.
Invariant: a file never goes back to older contents. A write handed to a disk thread that comes
after a newer one does nothing. The race this closes: (1) the loop hands over recovery points,
(2) a truncation lowers one and writes it at once, (3) the thread of (1) gets its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_offset_checkpoint,
)
from moldau.storage.log_directory import LogDirectory
from moldau.storage.log_table import Offsets


class OffsetCheckpoint:
    """One checkpoint file. `prepare` on the loop, what it returns in any thread."""

    __slots__ = ("_filesystem", "_lock", "_newest", "_newest_number", "_written_number", "path")

    def __init__(self, filesystem: Filesystem, path: str, contents: Offsets | None = None) -> None:
        """`contents`: what the file is known to hold."""
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._newest = contents
        self._newest_number = 0
        self._written_number = 0
        self.path = path

    def loaded(self, contents: Offsets) -> None:
        """The file was read and holds `contents`."""
        self._newest = contents

    def prepare(self, offsets: Offsets) -> Callable[[], None] | None:
        """A call that makes the file hold `offsets`, or None when it does already."""
        if offsets == self._newest:
            return None
        self._newest = offsets
        self._newest_number += 1
        number = self._newest_number

        def write() -> None:
            with self._lock:
                if number <= self._written_number:
                    return
                try:
                    write_offset_checkpoint(self._filesystem, self.path, offsets)
                except OSError:
                    self._newest = None
                    raise
                self._written_number = number

        return write

    def write(self, offsets: Offsets) -> None:
        """Make the file hold `offsets` before returning, on the loop. Raises: OSError."""
        write = self.prepare(offsets)
        if write is not None:
            write()
            return
        # The same contents may still be on their way in a thread: be sure they have arrived.
        with self._lock:
            if self._written_number < self._newest_number:
                write_offset_checkpoint(self._filesystem, self.path, offsets)
                self._written_number = self._newest_number


class DirectoryCheckpoints:
    """The checkpoint files of one log directory."""

    __slots__ = ("first_dirty_offsets", "high_watermarks", "log_start_offsets", "recovery_points")

    def __init__(self, filesystem: Filesystem, directory: LogDirectory) -> None:
        self.first_dirty_offsets = OffsetCheckpoint(filesystem, directory.join(CLEANER_CHECKPOINT))
        self.recovery_points = OffsetCheckpoint(
            filesystem, directory.join(RECOVERY_POINT_CHECKPOINT)
        )
        self.log_start_offsets = OffsetCheckpoint(
            filesystem, directory.join(LOG_START_OFFSET_CHECKPOINT)
        )
        self.high_watermarks = OffsetCheckpoint(
            filesystem, directory.join(HIGH_WATERMARK_CHECKPOINT)
        )
