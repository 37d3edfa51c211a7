"""`python -m tests.system.replication.slow_node CONFIG`: a node whose disk can be slow or hang.

Owns a Filesystem port that asks, before each write and each flush, how the disk is today; the
answer is in the file that MOLDAU_TEST_DISK names (`disk_mood.py`). Must not: change what is written
or read; the node is the product's own, started through its own main. Invariant: with an absent or
empty file the disk is the machine's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

import moldau.node.node
import moldau.node.quorum_node
from moldau.broker.__main__ import main
from moldau.runtime.files import Buffer, File, OsFile
from moldau.runtime.filesystem import OsFilesystem
from tests.system.replication.disk_mood import MOOD_VARIABLE, DiskMood

LOOK_INTERVAL_S: Final = 0.1


def _pass(wait_ms: float) -> None:
    if wait_ms > 0:
        threading.Event().wait(wait_ms / 1000)


class Disk:
    """What every file of the process asks before it touches the disk; safe from any thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mood = DiskMood()
        self._changed = threading.Condition()
        if path is not None:
            threading.Thread(target=self._look, name="test-disk", daemon=True).start()

    def before_write(self) -> None:
        """Return when a write may go on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._mood.stalls_writes)
            wait_ms = self._mood.write_ms
        _pass(wait_ms)

    def before_flush(self) -> None:
        """Return when a flush may go on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._mood.stalls_flushes)
            wait_ms = self._mood.flush_ms
        _pass(wait_ms)

    def _look(self) -> None:
        assert self._path is not None, "there is a file to look at"
        while True:
            try:
                mood = DiskMood(**json.loads(self._path.read_text()))
            except (FileNotFoundError, ValueError):
                mood = DiskMood()
            with self._changed:
                self._mood = mood
                self._changed.notify_all()
            _pass(LOOK_INTERVAL_S * 1000)


DISK = Disk(Path(os.environ[MOOD_VARIABLE]) if MOOD_VARIABLE in os.environ else None)


class SlowFile(OsFile):
    """An OsFile that asks `DISK` first."""

    __slots__ = ()

    def append(self, data: Buffer) -> None:
        DISK.before_write()
        OsFile.append(self, data)

    def pwrite(self, data: Buffer, position: int) -> None:
        DISK.before_write()
        OsFile.pwrite(self, data, position)

    def fdatasync(self) -> None:
        DISK.before_flush()
        OsFile.fdatasync(self)

    def fsync(self) -> None:
        DISK.before_flush()
        OsFile.fsync(self)


class SlowFilesystem(OsFilesystem):
    """An OsFilesystem whose files are SlowFiles."""

    __slots__ = ()

    def open(self, path: str, **options: Any) -> File:
        file = super().open(path, **options)
        assert isinstance(file, OsFile)
        file.__class__ = SlowFile  # the same descriptor, with nothing to carry over
        return file

    def fsync_directory(self, path: str) -> None:
        DISK.before_flush()
        super().fsync_directory(path)

    def write_atomically(self, path: str, data: bytes) -> None:
        DISK.before_flush()
        super().write_atomically(path, data)


if __name__ == "__main__":
    moldau.node.node.OsFilesystem = SlowFilesystem  # type: ignore[attr-defined]
    moldau.node.quorum_node.OsFilesystem = SlowFilesystem  # type: ignore[attr-defined]
    sys.exit(main())
