"""Files that a configuration names, read whole: keys, passwords, properties, key stores."""

from __future__ import annotations

import errno
import os
import stat

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0)


def read_small_file(path: str, max_bytes: int, *, takes_pipe: bool = False) -> bytes:
    """What is in a regular file. One that blocks or never ends (a pipe, a device) is not read.

    Args:
        max_bytes: a larger file is a mistake, and refused.
        takes_pipe: read what is no regular file, too: for a path that the user of a shell gives,
            as in `<(pass show kafka)`. That waits for the pipe's writer, as `cat` does.

    Raises:
        OSError: it cannot be read, is of another kind, or is too large.
        ValueError: no file can have that name.
    """
    descriptor = os.open(path, _OPEN_FLAGS | (0 if takes_pipe else os.O_NONBLOCK))
    try:
        check_small(path, os.fstat(descriptor), max_bytes, takes_pipe=takes_pipe)
    except OSError:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _too_large(path, max_bytes)
    return data


def file_state(path: str) -> tuple[int, ...] | None:
    """Distinguishes one state of a file from another; links are followed, as certificate managers
    swap them. None for a file that does not exist.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # no file can have that name
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def check_small(
    path: str, status: os.stat_result, max_bytes: int, *, takes_pipe: bool = False
) -> None:
    """Raises: OSError: what has this status is of another kind, or too large."""
    mode = status.st_mode
    if stat.S_ISDIR(mode) or not (takes_pipe or stat.S_ISREG(mode)):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if status.st_size > max_bytes:
        raise _too_large(path, max_bytes)


def _too_large(path: str, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
