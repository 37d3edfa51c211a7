"""Where key and trust stores may lie that are named while a node runs (KIP-226).

Who names a trust store decides whom the node believes. So its file must not be one that others than
the operator write, such as a log segment with a certificate in one of its records.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from moldau.runtime.authentication import SecuritySettingError

DIRECTORIES_KEY: Final = "moldau.ssl.store.directories"

_Identity: TypeAlias = tuple[int, int]
"""Device and inode: the same for each name of a directory, with links, mounts, or another case
where that does not count.
"""


@dataclass(frozen=True, slots=True)
class StoreDirectories:
    """The directories for such stores.

    Attributes:
        allowed: a store lies in one of them, or below it.
        forbidden: and in none of these, whatever contains them: log directories.
    """

    allowed: tuple[str, ...]
    forbidden: tuple[str, ...]

    def resolved(self, path: str, key: str) -> str:
        """The path of a store's file without links. Blocks.

        Args:
            key: that names the file, for the error.

        Raises:
            SecuritySettingError: it is not where it may be; the text is the same whether there is
                such a file or not.
        """
        with suppress(ValueError):  # no file can have that name
            real = os.path.realpath(path)
            above = _identities(Path(real).parents)
            is_allowed = not above.isdisjoint(_identities(self.allowed))
            is_forbidden = not above.isdisjoint(_identities(self.forbidden))
            if is_allowed and not is_forbidden and not _has_name_in(real, self.forbidden):
                return real
        raise SecuritySettingError(
            f"{key}: {path!r}: the file of a store that is set while the node runs is in a "
            f"directory of {DIRECTORIES_KEY}, or of a store in the node's own configuration, and "
            "never in a log directory"
        )


def _identities(paths: Iterable[str | Path]) -> set[_Identity]:
    found: set[_Identity] = set()
    for path in paths:
        with suppress(OSError, ValueError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found


def _has_name_in(path: str, directories: Iterable[str]) -> bool:
    """Whether a file with several names (hard links) has one of them in these directories."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
        return False
    return any(status.st_ino in _inodes_in(each, status.st_dev) for each in directories)


def _inodes_in(directory: str, device: int) -> Iterator[int]:
    waiting = [directory]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.stat(follow_symlinks=False).st_dev == device:
                    yield entry.inode()
