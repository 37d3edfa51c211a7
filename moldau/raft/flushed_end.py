"""`flushed-end-offset`: how far the metadata log was on stable storage when that was last noted.

Owns the file. Must not: decide when to write it. Invariant: the file never says more than what was
flushed, and is lowered durably before the log is cut: records below it that are missing or damaged
at a start are therefore lost promises, not the ordinary end of a crash, and must not be cut off.

Apache Kafka has no such file and ignores it: there, damage anywhere above the latest snapshot is
taken for the tail of a crash.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from moldau.runtime.filesystem import Filesystem

logger = logging.getLogger("moldau.raft")

FLUSHED_END: Final = "flushed-end-offset"
NOTE_EVERY: Final = 10_000
"""Offsets that may be flushed before they are noted; a start and an orderly stop note all."""

_MAX_BYTES: Final = 20


def read_flushed_end(filesystem: Filesystem, directory: str) -> int:
    """The offset noted, 0 when there is no note or it makes no sense. Raises: OSError."""
    path = os.path.join(directory, FLUSHED_END)
    try:
        size_bytes = filesystem.size_bytes(path)
        data = filesystem.read_bytes(path) if size_bytes <= _MAX_BYTES else b""
    except FileNotFoundError:
        return 0
    digits = data.strip()
    if not digits.isdigit():
        logger.warning(
            "%s holds no offset: damage above the latest snapshot counts as a crash's", path
        )
        return 0
    return int(digits)


def write_flushed_end(filesystem: Filesystem, directory: str, end_offset: int) -> None:
    """Note that everything below `end_offset` is on stable storage, durably. Raises: OSError."""
    assert end_offset >= 0
    filesystem.write_atomically(os.path.join(directory, FLUSHED_END), b"%d\n" % end_offset)


def forget_flushed_end(filesystem: Filesystem, directory: str) -> None:
    """Durably promise nothing; before a snapshot replaces the log. Raises: OSError."""
    path = os.path.join(directory, FLUSHED_END)
    if filesystem.exists(path):
        filesystem.unlink(path)
        filesystem.fsync_directory(directory)
