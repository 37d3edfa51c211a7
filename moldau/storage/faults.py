"""The exceptions of the storage package, and which operating-system errors leave a log usable.

`log` raises what makes a log offline, `log_manager` knows which partitions are and why, and
`broker.replica.log_opener` what becomes of a damaged one.
"""

from __future__ import annotations

import errno

from moldau.protocol.errors import ErrorCode

_NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
_OUT_OF_ROOM_ERRNOS = _NO_DESCRIPTOR_ERRNOS | {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_out_of_room(error: OSError) -> bool:
    """Whether the disk or the process's descriptor table was full: a later attempt may succeed."""
    return error.errno in _OUT_OF_ROOM_ERRNOS


def lacks_room(error: BaseException) -> bool:
    """`is_out_of_room` for any error, `DiskFull` too."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and is_out_of_room(error))


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether no descriptor was left to open a file; unlike a full disk, no fsync says this."""
    return error.errno in _NO_DESCRIPTOR_ERRNOS


def describe(error: OSError) -> str:
    """An OSError in words, without the path that its caller names."""
    return error.strerror or str(error)


class CorruptFile(ValueError):
    """A checkpoint, property file, index or snapshot that does not parse.

    `path` is the file, `reason` what is wrong with it; the text is one line with both. What a
    damaged file costs is decided where it is read.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
        self.reason = reason


class LogDamaged(Exception):
    """Flushed bytes are not what was written: the partition must not be served."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {position}: {reason}")


class LogOffline(Exception):
    """The partition's log is offline, for `reason`. Answer KAFKA_STORAGE_ERROR."""

    error = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the log of {name} is offline: {reason}")
        self.reason = reason


class DiskFull(Exception):
    """There was no room for an operation; the log is as it was and stays online."""

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
