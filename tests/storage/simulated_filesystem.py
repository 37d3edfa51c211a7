"""A Filesystem in memory: deterministic, recorded, crashable between any two operations.

Owns: paths, handles, the operation counter, faults on demand. Must not: decide what survives a
crash (simulated_disk does).
Use: run a workload with `observer` set; it is called before every operation that changes the disk
and may take `image()`, from which `SimulatedFilesystem(root)` boots again after the crash.
Invariant: `crash_at` stops the world before that operation; nothing changes the disk any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moldau.runtime.files import Buffer
from moldau.runtime.filesystem import DiskUsage, LockHeld
from tests.storage.simulated_disk import DirectoryNode, DiskImage, FileNode, Node


class SimulatedCrash(BaseException):
    """The process is gone: no handler may catch this and go on."""


@dataclass(slots=True)
class Operation:
    """One recorded operation; `size` is bytes for reads and writes, else 0."""

    name: str
    path: str
    size: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.path}" + (f" {self.size}" if self.size else "")


@dataclass(slots=True)
class Fault:
    """Operations called `operation` on paths containing `path_part` raise `error_number`.

    Skips the first `skip` of them, then hits `count` times (None: for ever).
    """

    operation: str
    path_part: str
    error_number: int
    skip: int = 0
    count: int | None = 1

    def hits(self, operation: str, path: str) -> bool:
        if operation != self.operation or self.path_part not in path or self.count == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True


class SimulatedFilesystem:
    """See the module; implements `moldau.runtime.filesystem.Filesystem`."""

    def __init__(
        self,
        root: DirectoryNode | None = None,
        *,
        capacity_bytes: int | None = None,
        now_ms: Callable[[], int] = lambda: 1_700_000_000_000,
    ) -> None:
        self.root = root or DirectoryNode()
        self.capacity_bytes = capacity_bytes
        self.now_ms = now_ms
        self.operations: list[Operation] = []
        self.record_reads = False
        self.crash_at: int | None = None
        self.crashed = False
        self.crash_image: DiskImage | None = None
        self.observer: Callable[[Operation, DiskImage], None] | None = None
        self.faults: list[Fault] = []
        self.locks: set[str] = set()
        self.open_files = 0
        self.open_maps = 0
        self.offload_gate: asyncio.Event | None = None
        """When set, offloaded calls wait for it first: a slow disk."""
        self.offloading = False

    # -- the machinery ---------------------------------------------------------------------------

    @property
    def operation_count(self) -> int:
        """How many operations changed the disk so far."""
        return len(self.operations)

    def image(self, in_flight: tuple[FileNode, int, bytes] | None = None) -> DiskImage:
        return DiskImage(self.root, in_flight)

    def changing(
        self, name: str, path: str, write: tuple[FileNode, int, bytes] | None = None
    ) -> None:
        """Called before every change: crash here, fail here, or record it."""
        if self.crashed:
            raise SimulatedCrash
        operation = Operation(name, path, len(write[2]) if write else 0)
        if self.observer is not None:
            self.observer(operation, self.image(write))
        if self.crash_at is not None and len(self.operations) >= self.crash_at:
            self.crashed = True
            self.crash_image = self.image(write)
            raise SimulatedCrash
        self.operations.append(operation)
        self.check_fault(name, path)

    def reading(self, name: str, path: str, size: int = 0) -> None:
        if self.crashed:
            raise SimulatedCrash
        if self.record_reads:
            self.operations.append(Operation(name, path, size))
        self.check_fault(name, path)

    def check_fault(self, name: str, path: str) -> None:
        for fault in self.faults:
            if fault.hits(name, path):
                raise OSError(fault.error_number, os.strerror(fault.error_number), path)

    def used_bytes(self) -> int:
        total = 0
        pending: list[Node] = [self.root]
        while pending:
            node = pending.pop()
            if isinstance(node, FileNode):
                total += len(node.data)
            else:
                pending.extend(node.entries.values())
        return total

    def require_space(self, more_bytes: int, path: str) -> None:
        if self.capacity_bytes is not None and self.used_bytes() + more_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _find(self, path: str) -> Node | None:
        node: Node = self.root
        for part in path.strip("/").split("/"):
            if part:
                if not isinstance(node, DirectoryNode):
                    return None
                child = node.entries.get(part)
                if child is None:
                    return None
                node = child
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def file_node(self, path: str) -> FileNode:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(node, FileNode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _create(self, path: str) -> FileNode:
        parent, name = os.path.split(path)
        directory = self._directory(parent)
        self.changing("create", path)
        node = FileNode()
        node.modified_ms = self.now_ms()
        directory.change(None, name, node)
        return node

    # -- the port --------------------------------------------------------------------------------

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        write: bool = True,
        preallocate_bytes: int = 0,
    ) -> SimulatedFile:
        self.reading("open", path)
        existing = self._find(path)
        if existing is not None and exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if existing is None and (create or exclusive):
            return SimulatedFile(self, path, self._create(path), write)
        return SimulatedFile(self, path, self.file_node(path), write)

    def map(self, path: str, size_bytes: int, *, create: bool = False) -> SimulatedMap:
        self.reading("map", path)
        existing = self._find(path)
        node = self._create(path) if existing is None and create else self.file_node(path)
        if len(node.data) != size_bytes:
            self.changing("truncate", path)
            node.truncate(size_bytes)
        node.mapped = True
        return SimulatedMap(self, path, node)

    def rename(self, source: str, destination: str) -> None:
        node = self._find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        old_parent, old_name = os.path.split(source)
        new_parent, new_name = os.path.split(destination)
        target = self._find(destination)
        if isinstance(target, DirectoryNode) and target.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), destination)
        old_directory, new_directory = self._directory(old_parent), self._directory(new_parent)
        self.changing("rename", f"{source} -> {destination}")
        if old_directory is new_directory:
            old_directory.change(old_name, new_name, node)
        else:
            new_directory.change(None, new_name, node)
            old_directory.change(old_name, None, node)

    def unlink(self, path: str) -> None:
        node = self.file_node(path)
        self.changing("unlink", path)
        parent, name = os.path.split(path)
        self._directory(parent).change(name, None, node)

    def mkdirs(self, path: str) -> None:
        parent, name = os.path.split(path.rstrip("/"))
        if not name:
            return
        existing = self._find(path)
        if isinstance(existing, DirectoryNode):
            return
        if existing is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.mkdirs(parent)
        self.changing("mkdir", path)
        self._directory(parent).change(None, name, DirectoryNode())

    def rmtree(self, path: str) -> None:
        directory = self._directory(path)
        for name in sorted(directory.entries):
            if isinstance(directory.entries[name], DirectoryNode):
                self.rmtree(os.path.join(path, name))
            else:
                self.unlink(os.path.join(path, name))
        self.changing("rmdir", path)
        parent, name = os.path.split(path)
        self._directory(parent).change(name, None, directory)

    def listdir(self, path: str) -> list[str]:
        self.reading("listdir", path)
        return sorted(self._directory(path).entries)

    def exists(self, path: str) -> bool:
        self.reading("exists", path)
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        self.reading("is_directory", path)
        return isinstance(self._find(path), DirectoryNode)

    def size_bytes(self, path: str) -> int:
        self.reading("size_bytes", path)
        return len(self.file_node(path).data)

    def modified_ms(self, path: str) -> int:
        self.reading("modified_ms", path)
        return self.file_node(path).modified_ms

    def fsync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self.changing("fsync_directory", path)
        directory.sync()

    def read_bytes(self, path: str) -> bytes:
        self.reading("read", path)
        return bytes(self.file_node(path).data)

    def write_atomically(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            if file.size_bytes:
                file.truncate(0)
            file.append(data)
            file.fsync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.fsync_directory(os.path.dirname(path))

    def lock(self, path: str) -> SimulatedLock:
        if self._find(path) is None:
            self._create(path)
        self.reading("lock", path)
        if path in self.locks:
            raise LockHeld(path)
        self.locks.add(path)
        return SimulatedLock(self, path)

    def disk_usage(self, path: str) -> DiskUsage:
        self.reading("disk_usage", path)
        capacity = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return DiskUsage(capacity, max(capacity - self.used_bytes(), 0))

    async def offload(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self.offload_gate is not None:
            await self.offload_gate.wait()
        self.offloading = True
        try:
            return function(*args, **kwargs)
        finally:
            self.offloading = False

    def close(self) -> None:
        """Nothing to end here."""

    # -- helpers for tests -----------------------------------------------------------------------

    def put(self, path: str, data: bytes) -> None:
        """Place a file durably without this being an operation."""
        parent, name = os.path.split(path)
        node: DirectoryNode = self.root
        for part in parent.strip("/").split("/"):
            child = node.entries.get(part)
            if child is None:
                child = DirectoryNode()
                node.change(None, part, child)
                node.sync()
            assert isinstance(child, DirectoryNode)
            node = child
        file = FileNode()
        file.write(0, data)
        file.sync()
        node.change(None, name, file)
        node.sync()

    def files(self) -> dict[str, bytes]:
        """Every path with its contents."""
        found: dict[str, bytes] = {}
        pending: list[tuple[str, Node]] = [("", self.root)]
        while pending:
            path, node = pending.pop()
            if isinstance(node, FileNode):
                found[path] = bytes(node.data)
            else:
                pending.extend((f"{path}/{name}", child) for name, child in node.entries.items())
        return dict(sorted(found.items()))


class SimulatedLock:
    def __init__(self, filesystem: SimulatedFilesystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    def release(self) -> None:
        self._filesystem.locks.discard(self._path)


class SimulatedFile:
    """An open file; keeps working after a rename or unlink, as a descriptor does."""

    def __init__(
        self, filesystem: SimulatedFilesystem, name: str, node: FileNode, writable: bool
    ) -> None:
        self._filesystem = filesystem
        self._node = node
        self._writable = writable
        self._owned = True
        self._references = 1
        self._end = len(node.data)
        self.name = name
        filesystem.open_files += 1

    @property
    def size_bytes(self) -> int:
        return self._end

    def _usable(self) -> None:
        if self._references == 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.name)

    def _write(self, name: str, data: Buffer, position: int) -> None:
        self._usable()
        if not self._writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.name)
        raw = bytes(data)
        self._filesystem.changing(name, self.name, (self._node, position, raw))
        self._filesystem.require_space(
            max(position + len(raw) - len(self._node.data), 0), self.name
        )
        self._node.write(position, raw)
        self._node.modified_ms = self._filesystem.now_ms()

    def append(self, data: Buffer) -> None:
        self._write("append", data, self._end)
        self._end += memoryview(data).nbytes

    def pwrite(self, data: Buffer, position: int) -> None:
        self._write("pwrite", data, position)
        self._end = max(self._end, position + memoryview(data).nbytes)

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._usable()
        self._filesystem.reading("pread", self.name, size_bytes)
        return bytes(self._node.data[position : position + size_bytes])

    def pread_into(self, buffer: bytearray | memoryview, position: int) -> int:
        with memoryview(buffer) as view:
            data = self.pread(view.nbytes, position)
            view.cast("B")[: len(data)] = data
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        self._usable()
        self._filesystem.changing("truncate", self.name)
        self._node.truncate(size_bytes)
        self._end = size_bytes

    def fdatasync(self) -> None:
        self._usable()
        self._filesystem.changing("fdatasync", self.name)
        self._node.sync()

    def fsync(self) -> None:
        self._usable()
        self._filesystem.changing("fsync", self.name)
        self._node.sync()

    def fileno(self) -> int:
        return -1

    def acquire(self) -> None:
        if self._references == 0:
            raise ValueError(f"{self.name}: the file is closed")
        self._references += 1

    def release(self) -> None:
        assert self._references > 0
        self._references -= 1
        if self._references == 0:
            self._filesystem.open_files -= 1

    def close(self) -> None:
        if self._owned:
            self._owned = False
            self.release()


class SimulatedMap:
    """A mapped file: writes through `buffer` are in the page cache at once, unseen."""

    def __init__(self, filesystem: SimulatedFilesystem, name: str, node: FileNode) -> None:
        self._filesystem = filesystem
        self._node = node
        self._view: memoryview | None = memoryview(node.data)
        self.name = name
        filesystem.open_maps += 1

    @property
    def buffer(self) -> memoryview:
        assert self._view is not None, "used after close"
        return self._view

    def reserve(self, end_bytes: int) -> None:
        assert end_bytes <= len(self._node.data), "reserving past the end of the mapping"
        self._filesystem.check_fault("reserve", self.name)

    def flush(self) -> None:
        self._filesystem.changing("msync", self.name)
        self._node.sync()

    def resize(self, size_bytes: int) -> None:
        self._filesystem.changing("truncate", self.name)
        self.buffer.release()
        try:
            self._node.truncate(size_bytes)
        finally:
            self._view = memoryview(self._node.data)

    def close(self) -> None:
        if self._view is not None:
            self._view.release()
            self._view = None
            self._filesystem.open_maps -= 1
