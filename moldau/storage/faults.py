"""What can go wrong with a log, as exceptions: the storage package's own fault vocabulary.

Owns: the classes and the one decision which operating-system errors leave a log usable.
Must not: log, retry, or decide what becomes of a directory (log_manager does).
Invariant: a damaged or failing partition is reported with its file and, where known, position.
"""

from __future__ import annotations

import errno

from moldau.protocol.errors import ErrorCode

_NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
_OUT_OF_ROOM_ERRNOS = _NO_DESCRIPTOR_ERRNOS | {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_out_of_room(error: OSError) -> bool:
    """Whether it failed for want of room on the disk or among the process's descriptors: it may
    succeed later, nothing is broken.
    """
    return error.errno in _OUT_OF_ROOM_ERRNOS


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether a file could not be opened just now; unlike a full disk, no fsync says this."""
    return error.errno in _NO_DESCRIPTOR_ERRNOS


class LogDamaged(Exception):
    """Bytes that were flushed are not what was written: the partition must not be served."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {position}: {reason}")


class LogOffline(Exception):
    """The partition's log is offline; `reason` says since what. Answer KAFKA_STORAGE_ERROR."""

    error = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the log of {name} is offline: {reason}")
        self.reason = reason


class DiskFull(Exception):
    """An operation could not be done for want of room; the log is as it was and stays online."""

    error = ErrorCode.KAFKA_STORAGE_ERROR


class AppendRejected(Exception):
    """Records that are not appended, with the error code the producer gets."""

    keyless_count = 0
    """Records without a key where each needs one."""

    def __init__(
        self, error: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.record_errors = record_errors
