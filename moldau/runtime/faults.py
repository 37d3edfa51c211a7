"""A file system that fails and dawdles on command, around a real one: for tests and drills.

Owns: the rules (which operation on which path, how often, with which error) and their count-downs.
Must not: be constructed by production code on its own account.
Invariant: an operation without a matching rule behaves exactly as the inner file system's.
"""

from __future__ import annotations

import asyncio
import errno as errors
import fnmatch
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from moldau.runtime.files import Buffer, File, MappedFile
from moldau.runtime.filesystem import DirectoryLock, DiskUsage, Filesystem

P = ParamSpec("P")
T = TypeVar("T")

FILE_OPERATIONS = (
    "append",
    "pread",
    "pread_into",
    "pwrite",
    "truncate",
    "fdatasync",
    "fsync",
)
"""Operations on open files that rules may name, besides the Filesystem's own."""


class FaultRule:
    """`operation` on a path matching `pattern` fails with `error_number`, `skip` times not, then
    `times` times.

    An `append` may write `partial_bytes` first, as a disk that fills up in the middle does.
    """

    __slots__ = (
        "error_number",
        "hit_count",
        "operation",
        "partial_bytes",
        "pattern",
        "skip",
        "times",
    )

    def __init__(
        self,
        operation: str,
        pattern: str = "*",
        *,
        error_number: int = errors.EIO,
        skip: int = 0,
        times: int | None = None,
        partial_bytes: int = 0,
    ) -> None:
        """`times=None` fails until the rule is removed."""
        self.operation = operation
        self.pattern = pattern
        self.error_number = error_number
        self.skip = skip
        self.times = times
        self.partial_bytes = partial_bytes
        self.hit_count = 0

    def hits(self, operation: str, path: str) -> bool:
        """Whether this call fails (counts it)."""
        if operation != self.operation or not fnmatch.fnmatchcase(path, self.pattern):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None and self.hit_count >= self.times:
            return False
        self.hit_count += 1
        return True

    def error(self, path: str) -> OSError:
        """The failure as the operating system would report it."""
        return OSError(self.error_number, os.strerror(self.error_number), path)


class FaultInjectingFilesystem:
    """A Filesystem with rules; `offload_delay_ms` slows all that is offloaded (a tired disk)."""

    def __init__(self, inner: Filesystem) -> None:
        self.inner = inner
        self.rules: list[FaultRule] = []
        self.offload_delay_ms = 0.0

    def fail(self, operation: str, pattern: str = "*", **options: Any) -> FaultRule:
        """Add a rule (see FaultRule) and return it, for counting its hits."""
        rule = FaultRule(operation, pattern, **options)
        self.rules.append(rule)
        return rule

    def heal(self) -> None:
        """Remove every rule and delay."""
        self.rules.clear()
        self.offload_delay_ms = 0.0

    def check(self, operation: str, path: str) -> FaultRule | None:
        """The rule that makes this call fail, if any."""
        for rule in self.rules:
            if rule.hits(operation, path):
                return rule
        return None

    def _guard(self, operation: str, path: str) -> None:
        rule = self.check(operation, path)
        if rule is not None:
            raise rule.error(path)

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        exclusive: bool = False,
        write: bool = True,
        preallocate_bytes: int = 0,
    ) -> File:
        self._guard("open", path)
        file = self.inner.open(
            path,
            create=create,
            exclusive=exclusive,
            write=write,
            preallocate_bytes=preallocate_bytes,
        )
        return _FaultyFile(self, file)

    def map(self, path: str, size_bytes: int, *, create: bool = False) -> MappedFile:
        self._guard("map", path)
        return self.inner.map(path, size_bytes, create=create)

    def rename(self, source: str, destination: str) -> None:
        self._guard("rename", source)
        self.inner.rename(source, destination)

    def unlink(self, path: str) -> None:
        self._guard("unlink", path)
        self.inner.unlink(path)

    def mkdirs(self, path: str) -> None:
        self._guard("mkdirs", path)
        self.inner.mkdirs(path)

    def rmtree(self, path: str) -> None:
        self._guard("rmtree", path)
        self.inner.rmtree(path)

    def listdir(self, path: str) -> list[str]:
        self._guard("listdir", path)
        return self.inner.listdir(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def size_bytes(self, path: str) -> int:
        self._guard("size_bytes", path)
        return self.inner.size_bytes(path)

    def modified_ms(self, path: str) -> int:
        return self.inner.modified_ms(path)

    def fsync_directory(self, path: str) -> None:
        self._guard("fsync_directory", path)
        self.inner.fsync_directory(path)

    def read_bytes(self, path: str) -> bytes:
        self._guard("read_bytes", path)
        return self.inner.read_bytes(path)

    def write_atomically(self, path: str, data: bytes) -> None:
        self._guard("write_atomically", path)
        self.inner.write_atomically(path, data)

    def lock(self, path: str) -> DirectoryLock:
        self._guard("lock", path)
        return self.inner.lock(path)

    def disk_usage(self, path: str) -> DiskUsage:
        self._guard("disk_usage", path)
        return self.inner.disk_usage(path)

    async def offload(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.offload_delay_ms:
            await asyncio.sleep(self.offload_delay_ms / 1000)
        return await self.inner.offload(function, *args, **kwargs)


class _FaultyFile:
    """A File whose operations ask the rules first."""

    __slots__ = ("_faults", "_inner")

    def __init__(self, faults: FaultInjectingFilesystem, inner: File) -> None:
        self._faults = faults
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @name.setter
    def name(self, name: str) -> None:
        self._inner.name = name

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def _guard(self, operation: str) -> None:
        rule = self._faults.check(operation, self.name)
        if rule is not None:
            raise rule.error(self.name)

    def append(self, data: Buffer) -> None:
        rule = self._faults.check("append", self.name)
        if rule is None:
            self._inner.append(data)
            return
        end = self._inner.size_bytes
        if rule.partial_bytes:
            with memoryview(data) as view:
                self._inner.append(bytes(view[: rule.partial_bytes]))
        self._inner.truncate(end)
        raise rule.error(self.name)

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._guard("pread")
        return self._inner.pread(size_bytes, position)

    def pread_into(self, buffer: bytearray | memoryview, position: int) -> int:
        self._guard("pread_into")
        return self._inner.pread_into(buffer, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._guard("pwrite")
        self._inner.pwrite(data, position)

    def truncate(self, size_bytes: int) -> None:
        self._guard("truncate")
        self._inner.truncate(size_bytes)

    def fdatasync(self) -> None:
        self._guard("fdatasync")
        self._inner.fdatasync()

    def fsync(self) -> None:
        self._guard("fsync")
        self._inner.fsync()

    def fileno(self) -> int:
        return self._inner.fileno()

    def acquire(self) -> None:
        self._inner.acquire()

    def release(self) -> None:
        self._inner.release()

    def close(self) -> None:
        self._inner.close()
