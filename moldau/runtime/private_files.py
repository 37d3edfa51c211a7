"""Files that other users of the machine may not read: modes, small ones that are replaced whole,
and the rights that are taken from what an earlier version or an operator has left open.

Must not know what they hold. Invariant: a path that is replaced has the old content or the new one,
also after a crash, and never more permissions than asked for.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final, NamedTuple

OWNER_ONLY: Final = 0o600
OWNER_ONLY_DIRECTORY: Final = 0o700
READABLE: Final = 0o644


def replace_file(path: Path, content: bytes, mode: int = OWNER_ONLY) -> None:
    """Put a new file in the place of one that may be there. Blocks. Raises: OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def owner_only(path: str, flags: int) -> int:
    """An opener for `open`: a file that it makes is its owner's alone, whatever the umask."""
    return os.open(path, flags, OWNER_ONLY)


class Closed(NamedTuple):
    """What `close_to_others` has done: how many paths it changed, and the first it could not."""

    path_count: int
    refused: str | None


def close_to_others(path: str) -> Closed:
    """Take the rights of group and others on a directory, and, if it had any, in all that is in it.

    A directory with setgid (Kubernetes' fsGroup sets it) or of another owner is shared with its
    group on purpose: rights of the group stay there. Links in it are left alone. Blocks; a
    directory that is closed already costs one call of the system.
    """
    count, refused = 0, None
    waiting = [os.path.realpath(path)]
    while waiting:
        here = waiting.pop()
        try:
            status = os.lstat(here)
            mode = stat.S_IMODE(status.st_mode)
            is_shared = mode & stat.S_ISGID or status.st_uid != os.geteuid()
            excess = mode & (stat.S_IRWXO if is_shared else stat.S_IRWXG | stat.S_IRWXO)
            if not excess or stat.S_ISLNK(status.st_mode):
                continue
            if stat.S_ISDIR(status.st_mode):
                waiting += (os.path.join(here, name) for name in os.listdir(here))
            if mode & stat.S_ISVTX:
                refused = refused or f"{here}: it is for all users (sticky)"
                continue
            os.chmod(here, mode & ~excess)
            count += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            refused = refused or f"{here}: {error.strerror or error}"
    return Closed(count, refused)


def others_may_read(path: str) -> bool:
    """Whether its mode, and those of the directories above it, let every user read a file."""
    try:
        real = os.path.realpath(path)
        if not os.stat(real).st_mode & stat.S_IROTH:
            return False
        return all(os.stat(each).st_mode & stat.S_IXOTH for each in Path(real).parents)
    except (OSError, ValueError):
        return False
