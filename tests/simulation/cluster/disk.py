"""A node's disk: the simulated file system of the storage tests on virtual time, with faults.

Owns: how long a call that is offloaded takes, when the next crash inside an operation comes, what
survives. Must not: know what the files mean.
Invariant: once the process is dead nothing changes the disk any more; `survivors` is what the next
start finds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

from tests.storage.simulated_disk import DirectoryNode, FileNode
from tests.storage.simulated_filesystem import Fault, SimulatedCrash, SimulatedFilesystem
from tests.virtual.loop import Process, VirtualClock

WITHOUT_DISK = frozenset({"check_fetched", "match_slice"})
"""Offloaded because it computes: a disk that stalls does not hold it up."""


NEEDS_ROOM = frozenset({"append", "pwrite", "create", "mkdir", "reserve"})
"""Operations that a full disk refuses; all others work on it."""

READS = frozenset(
    {"open", "map", "read", "pread", "listdir", "exists", "is_directory", "size_bytes"}
    | {"modified_ms", "disk_usage"}
)
"""Operations that a read-only disk does not refuse."""


@dataclass(slots=True)
class Refusal:
    """What a disk refuses, whichever process uses it: ENOSPC what needs room, EROFS every change,
    EIO every change and every read.
    """

    directory: str = ""
    """Where it is mounted; else it is all that the machine has."""
    error_number: int = 0
    """0: nothing."""
    refused_count: int = 0
    """Appends of records, since it began."""
    refused_logs: set[str] = field(default_factory=set)
    """The logs to which a process wanted to append, since its start."""
    repeated_log: str = ""
    """The log to which it has tried to append once more, although the disk had failed."""

    def begin(self, error_number: int) -> None:
        self.error_number, self.refused_count = error_number, 0
        self.process_starts()

    def end(self) -> None:
        self.error_number = 0

    def process_starts(self) -> None:
        """What the last one did is over."""
        self.refused_logs.clear()

    def check(self, name: str, path: str) -> None:
        """Raises OSError."""
        number = self.error_number
        if not number or not (path == self.directory or path.startswith(f"{self.directory}/")):
            return
        refuses = {
            errno.ENOSPC: name in NEEDS_ROOM,
            errno.EROFS: name not in READS,
            errno.EIO: True,
        }[number]
        if refuses:
            if name == "append" and path.endswith(".log"):
                self.refused_count += 1
                if number != errno.ENOSPC and path in self.refused_logs:
                    self.repeated_log = path
                self.refused_logs.add(path)
            raise OSError(number, os.strerror(number), path)


class Death(Enum):
    """How a node ends, and what its disk keeps of what was not flushed."""

    KILL = "process kill"
    POWER_LOSS = "power loss"


@dataclass(slots=True)
class DiskSettings:
    """How slow the disk is; milliseconds, and the probability that a call is a slow one."""

    min_delay_ms: float = 0.02
    max_delay_ms: float = 1.0
    slow_call: float = 0.01
    slow_call_ms: float = 200.0


class NodeDisk(SimulatedFilesystem):
    """One incarnation's view of a disk. `operation_total` counts changes and reads."""

    def __init__(
        self,
        process: Process,
        root: DirectoryNode,
        random: Random,
        settings: DiskSettings,
        clock: VirtualClock,
        on_operation: Callable[[str], None] = lambda _line: None,
        refusals: Iterable[Refusal] = (),
    ) -> None:
        super().__init__(root, now_ms=clock.now_ms)
        self._refusals = list(refusals)
        for refusal in self._refusals:
            refusal.process_starts()
        self._process = process
        self._random = random
        self._on_operation = on_operation
        self.settings = settings
        self.owner: Any = None
        """Whose disk it is, for the checks that watch the files."""
        self.death = Death.KILL
        self.has_crashed_inside = False
        self.stall_until = 0.0
        self.crash_on: str | None = None
        """Die before the next change of a file whose path contains this."""
        process.on_kill.append(self._process_died)

    def changing(
        self, name: str, path: str, write: tuple[FileNode, int, bytes] | None = None
    ) -> None:
        if self.crash_on is not None and self.crash_on in path:
            self.crash_on = None
            self.crash_at = self.operation_count + self._random.randrange(0, 3)
        try:
            super().changing(name, path, write)
        except SimulatedCrash:
            self.has_crashed_inside = True
            self._process.kill()
            raise
        self._on_operation(f"{self._process.name} disk {name} {path}")

    def check_fault(self, name: str, path: str) -> None:
        for refusal in self._refusals:
            refusal.check(name, path)
        super().check_fault(name, path)

    def exists(self, path: str) -> bool:
        try:
            return super().exists(path)
        except OSError:
            return False

    def is_directory(self, path: str) -> bool:
        try:
            return super().is_directory(path)
        except OSError:
            return False

    def _process_died(self) -> None:
        if not self.crashed:
            self.crashed = True
            self.crash_image = self.image()

    def crash_soon(self, operations: int, death: Death) -> None:
        """Die inside the operation that comes after so many others."""
        self.death = death
        self.crash_at = self.operation_count + operations

    def stall(self, duration_ms: float) -> None:
        """Nothing that is offloaded ends before so much time has passed."""
        self.stall_until = self._process.loop.time() + duration_ms / 1000

    def fail(self, operation: str, error_number: int = errno.EIO) -> None:
        """Let the next operation of this kind fail."""
        self.faults.append(Fault(operation, "", error_number))

    def survivors(self, death: Death) -> DirectoryNode:
        """What the next start finds; the process is dead."""
        image = self.crash_image
        assert image is not None, "only what is dead can be started again"
        if death is Death.POWER_LOSS:
            return image.after_power_loss(self._random)
        if self._random.random() < 0.5:
            torn = image.after_kill_mid_write(self._random)
            if torn is not None:
                return torn
        return image.after_kill()

    async def offload(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The call happens at some time between now and the return, as on a thread."""
        needs_disk = getattr(function, "__name__", "") not in WITHOUT_DISK
        await self._wait(needs_disk)
        self.offloading = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.offloading = False
        await self._wait(needs_disk)
        return result

    async def _wait(self, needs_disk: bool) -> None:
        settings, loop = self.settings, self._process.loop
        slow = self._random.random() < settings.slow_call
        longest = settings.slow_call_ms if slow else settings.max_delay_ms
        await loop.elapse(self._random.uniform(settings.min_delay_ms, longest))
        if needs_disk and self.stall_until > loop.time():
            await loop.elapse((self.stall_until - loop.time()) * 1000)
