"""The Filesystem port: the only way anything above `runtime` touches a disk, and its real form.

Owns: names and directories, opening, locking, and the thread pool for what may wait for a disk.
Must not: know segments or checkpoints, or choose durability for its callers.
Invariant: after `write_atomically` or `rename` + `fsync_directory` returned, a crash leaves the old
or the new contents, never a mixture.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from moldau.runtime.files import File, MappedFile, OsFile, OsMappedFile
from moldau.runtime.private_files import OWNER_ONLY, OWNER_ONLY_DIRECTORY

OFFLOAD_THREAD_COUNT = 4
"""Threads that wait for disks; more only make one disk seek more."""

OFFLOAD_QUEUE_LIMIT = 256
"""Calls of `offload` per event loop that may be handed to the pool; further ones wait in order."""

_OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0)

P = ParamSpec("P")
T = TypeVar("T")


class LockHeld(OSError):
    """Another process (or another node in this process) holds the directory."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EWOULDBLOCK, "held by another process", path)


class DirectoryLock:
    """A claim on a directory, ended by `release` or by the end of the process."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give the directory free (idempotent)."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class DiskUsage(NamedTuple):
    """What the file system under a path has; `usable_bytes` is what this process may still take."""

    total_bytes: int
    usable_bytes: int


class Filesystem(Protocol):
    """Files by path (`str`). Everything but `offload` blocks; everything raises OSError."""

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        write: bool = True,
        preallocate_bytes: int = 0,
    ) -> File:
        """Open a file.

        `create` makes it when absent, `exclusive` insists on making it (FileExistsError). An
        existing file's tracked end is its length. `preallocate_bytes` takes disk space behind the
        tracked end of a new file, as Kafka's `log.preallocate`; it shows as zeros after a crash and
        is returned on close.
        """

    def map(self, path: str, size_bytes: int, *, create: bool = False) -> MappedFile:
        """Map a file for reading and writing, making it exactly `size_bytes` long (sparse)."""

    def rename(self, source: str, destination: str) -> None:
        """Atomically give a file or directory another name, replacing a file of that name."""

    def unlink(self, path: str) -> None:
        """Remove one file. Raises FileNotFoundError."""

    def mkdirs(self, path: str) -> None:
        """Make a directory and its parents; an existing directory is fine."""

    def rmtree(self, path: str) -> None:
        """Remove a directory with all it contains; links are removed, not followed."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """Whether anything has that name."""

    def is_directory(self, path: str) -> bool:
        """Whether a directory has that name."""

    def size_bytes(self, path: str) -> int:
        """A file's length. Raises FileNotFoundError."""

    def modified_ms(self, path: str) -> int:
        """When a file's contents last changed, wall-clock milliseconds."""

    def fsync_directory(self, path: str) -> None:
        """Names made, renamed and removed in the directory are on stable storage on return."""

    def read_bytes(self, path: str) -> bytes:
        """A whole file."""

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace a file's contents in one step that survives power loss (through `path`.tmp)."""

    def lock(self, path: str) -> DirectoryLock:
        """Claim the directory whose lock file is `path` (made when absent). Raises LockHeld."""

    def disk_usage(self, path: str) -> DiskUsage:
        """How big and how full the file system under `path` is."""

    async def offload(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may wait for a disk without holding up the event loop."""


class OsFilesystem:
    """The machine's file system. One per process is enough; any event loop may use it.

    What it makes is its owner's alone, whatever the umask: topics' data and the metadata log with
    its SCRAM keys are as secret as a key store.
    """

    __slots__ = ("_executor", "_gates")

    def __init__(self, thread_count: int = OFFLOAD_THREAD_COUNT) -> None:
        self._executor = ThreadPoolExecutor(thread_count, thread_name_prefix="moldau-disk")
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._gates = weakref.WeakKeyDictionary()

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        write: bool = True,
        preallocate_bytes: int = 0,
    ) -> File:
        flags = _OPEN_FLAGS | (os.O_RDWR if write else os.O_RDONLY)
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        fd = os.open(path, flags, OWNER_ONLY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            end = status.st_size
            if preallocate_bytes > end and write:
                _preallocate(fd, end, preallocate_bytes - end)
        except OSError:
            os.close(fd)
            raise
        return OsFile(path, fd, end=end, preallocated=preallocate_bytes > end and write)

    def map(self, path: str, size_bytes: int, *, create: bool = False) -> MappedFile:
        flags = os.O_RDWR | _OPEN_FLAGS | (os.O_CREAT if create else 0)
        return OsMappedFile(path, os.open(path, flags, OWNER_ONLY), size_bytes)

    def rename(self, source: str, destination: str) -> None:
        os.replace(source, destination)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdirs(self, path: str) -> None:
        os.makedirs(path, OWNER_ONLY_DIRECTORY, exist_ok=True)

    def rmtree(self, path: str) -> None:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def fsync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
        try:
            os.fsync(fd)
        except OSError as error:
            # Some file systems (FUSE, network shares) know no directory fsync; names are theirs to
            # keep.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def write_atomically(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN_FLAGS, OWNER_ONLY)
        file = OsFile(temporary, fd, end=0)
        try:
            file.append(data)
            file.fsync()
        finally:
            file.close()
        os.replace(temporary, path)
        self.fsync_directory(os.path.dirname(path) or ".")

    def lock(self, path: str) -> DirectoryLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, OWNER_ONLY)
        try:
            # Two kinds on purpose: the POSIX lock is the one a JVM broker takes (keeps it out, and
            # us out of its directory), but never conflicts inside one process; flock does.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise LockHeld(path) from None
            raise
        return DirectoryLock(fd)

    def disk_usage(self, path: str) -> DiskUsage:
        status = os.statvfs(path)
        return DiskUsage(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)

    async def offload(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        gate = self._gates.get(loop)
        if gate is None:
            gate = self._gates[loop] = asyncio.Semaphore(OFFLOAD_QUEUE_LIMIT)
        async with gate:
            return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Finish what was offloaded and end the threads."""
        self._executor.shutdown(wait=True)


def _preallocate(fd: int, position: int, length: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, position, length)
    else:
        os.ftruncate(fd, position + length)
