"""ProcessWorker: cleans in a child process, so that no work on records holds up the broker.

Owns: the child: starting it for the first job, ending it when it rests or a run is aborted.
Must not: read or write logs. Invariant: at most one child at a time; it ends with this process,
since its input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import Final

from moldau.runtime.filesystem import Filesystem
from moldau.storage.cleaner.job import (
    CleaningDone,
    CleaningEvent,
    CleaningFailed,
    CleaningJob,
    decode_event,
    encode_job,
)
from moldau.storage.cleaner.worker import CleaningRun

PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[3])
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from moldau.storage.cleaner.child import main; main()"
)
MAX_EVENT_BYTES: Final = 1024 * 1024

logger = logging.getLogger("moldau.storage")


class ProcessWorker:
    """States: no child -> (`start`) one that works -> one that waits -> (`rest`) no child."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._process: asyncio.subprocess.Process | None = None
        self._run: _ProcessRun | None = None

    @property
    def child_pid(self) -> int | None:
        """The child's process id, None without one."""
        return None if self._process is None else self._process.pid

    async def start(self, job: CleaningJob) -> CleaningRun:
        line = await self._filesystem.offload(encode_job, job)
        try:
            process = await self._child()
            assert process.stdin is not None
            if process.stdin.is_closing():
                # Dead already: uvloop takes a write for a mistake of ours.
                raise BrokenPipeError("it has ended")
            process.stdin.write(line)
            await process.stdin.drain()
        except OSError as error:
            await self.rest()
            raise CleaningFailed(
                f"its process cannot be started: {error}", is_worker_lost=True
            ) from None
        self._run = _ProcessRun(process)
        return self._run

    async def rest(self) -> None:
        """End the child, if there is one."""
        process, self._process, self._run = self._process, None, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        _kill(process)
        await process.wait()

    async def _child(self) -> asyncio.subprocess.Process:
        """The child, a new one if need be. Raises: OSError."""
        is_good = self._run is None or not self._run.is_lost
        if self._process is not None and self._process.returncode is None and is_good:
            return self._process
        await self.rest()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            _PROGRAM,
            PACKAGE_ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_EVENT_BYTES,
            # A signal from the terminal is the parent's to deal with.
            start_new_session=True,
        )
        self._process = process
        logger.debug("log cleaner: process %d", process.pid)
        return process


class _ProcessRun:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._is_over = False
        self.is_lost = False
        """Whether the child is dead, or as good as dead."""

    async def next_event(self) -> CleaningEvent:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            if not line.endswith(b"\n"):
                self.abort()
                raise CleaningFailed("the process that cleaned it has ended", is_worker_lost=True)
            event = decode_event(line)
        except CleaningFailed:
            self._is_over = True
            raise
        except (ValueError, TypeError, KeyError) as error:
            self.abort()
            raise CleaningFailed(
                f"its process wrote what is no event: {error}", is_worker_lost=True
            ) from None
        self._is_over = isinstance(event, CleaningDone)
        return event

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = self.is_lost = True
            _kill(self._process)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
