"""Open files: the File and MappedFile ports, their real forms, and FileRegion.

Owns: one descriptor each, its tracked end, and the count of those who still need it.
Must not: know what the bytes mean, decide when to fsync, or retry failed writes.
Invariant: `size_bytes` is the end of the last append that succeeded as a whole; bytes behind it are
never part of the file's contents, and after a failed append they are cut off. A descriptor is
closed only when its owner closed it *and* every FileRegion on it was released.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

RESERVE_STEP_BYTES = 64 * 1024
"""How much of a sparse mapped file gets real disk blocks at a time (see MappedFile.reserve)."""

APPEND_PIECE_BYTES = 128 * 1024
"""How much of an append the kernel gets at a time. Of a bigger write it makes bigger folios, for
which it takes memory that has long lain idle (measured, 1 MB on a virtual machine: at once 700 µs,
in these pieces 280 µs).
"""

_HAS_FALLOCATE = hasattr(os, "posix_fallocate")
_HAS_PREADV = hasattr(os, "preadv")
_OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0)


class File(Protocol):
    """One open file. All operations block; those that wait for a disk belong into `offload`."""

    name: str
    """The path it was opened by; its owner updates it after renaming the file."""

    @property
    def size_bytes(self) -> int:
        """The tracked end: where the next append goes."""

    def append(self, data: Buffer) -> None:
        """Write all of `data` at the tracked end, or raise OSError with the file cut back to it."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` from `position`; fewer only where the file ends."""

    def pread_into(self, buffer: bytearray | memoryview, position: int) -> int:
        """Fill `buffer` from `position`; how many bytes were read (fewer only at the end)."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Overwrite in place; moves the tracked end only if it writes past it."""

    def truncate(self, size_bytes: int) -> None:
        """Make the file exactly this long and its end the tracked end."""

    def fdatasync(self) -> None:
        """Contents and length are on stable storage when this returns."""

    def fsync(self) -> None:
        """As fdatasync, with the metadata too."""

    def fileno(self) -> int:
        """The descriptor for sendfile, or -1 for a file without one (simulation)."""

    def acquire(self) -> None:
        """Keep the descriptor alive past its owner's close. Raises ValueError if it is gone."""

    def release(self) -> None:
        """Undo one `acquire`; the last one after `close` closes the descriptor."""

    def close(self) -> None:
        """Give up the owner's claim (idempotent); surplus preallocated space is returned."""


class OsFile:
    """A File on a real descriptor. Reads are safe from any thread; writes have one owner."""

    __slots__ = ("_fd", "_lock", "_owned", "_preallocated", "_references", "name", "size_bytes")

    def __init__(self, name: str, fd: int, *, end: int, preallocated: bool = False) -> None:
        self.name = name
        self._fd = fd
        self.size_bytes = end
        self._preallocated = preallocated
        self._owned = True
        self._references = 1
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"OsFile({self.name!r}, size_bytes={self.size_bytes})"

    def append(self, data: Buffer) -> None:
        fd = self._fd
        end = self.size_bytes
        length = len(data) if type(data) is not memoryview else data.nbytes
        try:
            if length > APPEND_PIECE_BYTES * 3 // 2:
                self._write_rest(data, 0, end)
            else:
                written = os.pwrite(fd, data, end)
                if written != length:
                    self._write_rest(data, written, end)
        except OSError:
            self._cut_back(end)
            raise
        self.size_bytes = end + length

    def _write_rest(self, data: Buffer, written: int, position: int) -> None:
        """Write in pieces until all is written or the kernel names the error."""
        with memoryview(data) as view, view.cast("B") as rest:
            while written < len(rest):
                # A remainder that is not worth its own call goes with the last piece.
                whole = len(rest) - written <= APPEND_PIECE_BYTES * 3 // 2
                piece = rest[written:] if whole else rest[written : written + APPEND_PIECE_BYTES]
                step = os.pwrite(self._fd, piece, position + written)
                if step == 0:
                    raise OSError(errno.EIO, "the file system accepts no more bytes", self.name)
                written += step

    def _cut_back(self, end: int) -> None:
        """Best effort: the caller gets the write's error, which is the one that matters."""
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT):
                raise
        self._preallocated = False

    def pread(self, size_bytes: int, position: int) -> bytes:
        data = os.pread(self._fd, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        missing = size_bytes - len(data)
        while missing > 0:
            data = os.pread(self._fd, missing, position + size_bytes - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pread_into(self, buffer: bytearray | memoryview, position: int) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            filled = 0
            while filled < len(target):
                with target[filled:] as rest:
                    if _HAS_PREADV:
                        count = os.preadv(self._fd, [rest], position + filled)
                    else:
                        data = os.pread(self._fd, len(rest), position + filled)
                        count = len(data)
                        rest[:count] = data
                if count == 0:
                    break
                filled += count
            return filled

    def pwrite(self, data: Buffer, position: int) -> None:
        with memoryview(data) as view:
            length = view.nbytes
        written = os.pwrite(self._fd, data, position)
        if written != length:
            self._write_rest(data, written, position)
        self.size_bytes = max(self.size_bytes, position + length)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)
        self.size_bytes = size_bytes
        self._preallocated = False

    def fdatasync(self) -> None:
        if sys.platform == "darwin" or not hasattr(os, "fdatasync"):
            _flush_all(self._fd)
        else:
            os.fdatasync(self._fd)

    def fsync(self) -> None:
        _flush_all(self._fd)

    def fileno(self) -> int:
        return self._fd

    def acquire(self) -> None:
        with self._lock:
            if self._references == 0:
                raise ValueError(f"{self.name}: the file is closed")
            self._references += 1

    def release(self) -> None:
        with self._lock:
            assert self._references > 0, "released more often than acquired"
            self._references -= 1
            if self._references:
                return
            fd, self._fd = self._fd, -1
        os.close(fd)

    def close(self) -> None:
        with self._lock:
            if not self._owned:
                return
            self._owned = False
        try:
            if self._preallocated:
                os.ftruncate(self._fd, self.size_bytes)
        finally:
            self.release()


class FileRegion:
    """`length` bytes of a file from `position`: records on their way to a socket, unread.

    Holds the file's descriptor from construction until `release()` or until the region itself is
    dropped, so that a segment may be closed and deleted before it is sent. `is_cold` says that the
    bytes are probably not in the page cache: the sender then touches them in the thread pool first.
    """

    __slots__ = ("_held", "file", "is_cold", "length", "position")

    def __init__(self, file: File, position: int, length: int, *, is_cold: bool = False) -> None:
        self._held = False
        assert position >= 0
        assert length >= 0
        self.file = file
        self.position = position
        self.length = length
        self.is_cold = is_cold
        file.acquire()
        self._held = True

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"FileRegion({self.file.name!r}, position={self.position}, length={self.length})"

    def read(self) -> bytes:
        """The bytes themselves. Raises OSError when the file ends before the region does."""
        assert self._held, "read after release"
        data = self.file.pread(self.length, self.position)
        if len(data) != self.length:
            raise OSError(errno.EIO, "the file ends inside the region", self.file.name)
        return data

    def __bytes__(self) -> bytes:
        return self.read()

    def release(self) -> None:
        """Give the descriptor back (idempotent); the region cannot be read any more."""
        if self._held:
            self._held = False
            self.file.release()

    __del__ = release


def source_bytes(source: object) -> bytes:
    """The bytes of a records source (a FileRegion or anything with a `read` of its own kind)."""
    read = getattr(source, "read", None)
    assert read is not None, f"{type(source).__name__} cannot be read as a part of a message"
    data: bytes = read()
    return data


class MappedFile(Protocol):
    """A whole file mapped for reading and writing (the indexes)."""

    name: str
    """The path it was opened by; its owner updates it after renaming the file."""

    @property
    def buffer(self) -> memoryview:
        """The mapped bytes, writable. Slices of it must be released before `resize` or `close`."""

    def reserve(self, end_bytes: int) -> None:
        """Make sure that writing below `end_bytes` finds disk blocks. Raises OSError (ENOSPC).

        A mapped write into a hole on a full disk kills the process with SIGBUS: reserve first.
        """

    def flush(self) -> None:
        """Changed pages are on stable storage when this returns."""

    def resize(self, size_bytes: int) -> None:
        """Change the file's length. Raises BufferError while slices of `buffer` are alive."""

    def close(self) -> None:
        """Unmap (idempotent). Raises BufferError while slices of `buffer` are alive."""


class OsMappedFile:
    """A MappedFile that holds at most one descriptor (none from Python 3.13 on)."""

    __slots__ = ("_closed", "_inode", "_map", "_reserved_bytes", "buffer", "name")

    def __init__(self, name: str, fd: int, size_bytes: int) -> None:
        """Takes over `fd`. The file gets the length `size_bytes`; what is on disk already stays."""
        self.name = name
        self._closed = False
        try:
            status = os.fstat(fd)
            self._inode = (status.st_dev, status.st_ino)
            allocated = getattr(status, "st_blocks", 0) * 512
            full = allocated >= status.st_size
            self._reserved_bytes = min(status.st_size, size_bytes) if full else 0
            if status.st_size != size_bytes:
                os.ftruncate(fd, size_bytes)
            self._map = _map_descriptor(fd, size_bytes)
        finally:
            os.close(fd)
        self.buffer = memoryview(self._map if self._map is not None else bytearray())

    def reserve(self, end_bytes: int) -> None:
        if end_bytes <= self._reserved_bytes:
            return
        size = len(self.buffer)
        assert end_bytes <= size, "reserving past the end of the mapping"
        goal = min(-(-end_bytes // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES, size)
        if _HAS_FALLOCATE:
            fd = self._open_again()
            try:
                os.posix_fallocate(fd, self._reserved_bytes, goal - self._reserved_bytes)
            finally:
                os.close(fd)
        self._reserved_bytes = goal

    def flush(self) -> None:
        if self._map is not None:
            self._map.flush()

    def resize(self, size_bytes: int) -> None:
        fd = self._open_again()
        try:
            self._unmap()
            os.ftruncate(fd, size_bytes)
            self._map = _map_descriptor(fd, size_bytes)
            self.buffer = memoryview(self._map if self._map is not None else bytearray())
            self._reserved_bytes = min(self._reserved_bytes, size_bytes)
        finally:
            os.close(fd)

    def close(self) -> None:
        if not self._closed:
            self._unmap()
            self._closed = True

    def _unmap(self) -> None:
        old_map = self._map
        self.buffer.release()
        if old_map is not None:
            try:
                old_map.close()
            except BufferError:
                self.buffer = memoryview(old_map)
                raise
        self._map = None
        self.buffer = memoryview(bytearray())

    def _open_again(self) -> int:
        fd = os.open(self.name, os.O_RDWR | _OPEN_FLAGS)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._inode:
            os.close(fd)
            raise OSError(errno.ESTALE, "another file took the mapped file's name", self.name)
        return fd


def _map_descriptor(fd: int, size_bytes: int) -> mmap.mmap | None:
    """Map the file, or None when it is empty (nothing to map)."""
    if size_bytes == 0:
        return None
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size_bytes, trackfd=False)
    return mmap.mmap(fd, size_bytes)


def _flush_all(fd: int) -> None:
    """fsync, on macOS down to the platter (plain fsync stops at the drive's cache there)."""
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    os.fsync(fd)
