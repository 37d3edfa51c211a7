"""ChildProcess: another Python process, for work that would hold up this one; lines go in and out,
or bytes.

Owns: the process: starting it for the first line, ending it. Must not: know what the lines say.
Invariant: at most one process at a time; it ends with this one, since its input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import Final

PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[2])
_PROGRAM: Final = (
    "import importlib, sys; sys.path.append(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main()"
)
MAX_LINE_BYTES: Final = 1024 * 1024

logger = logging.getLogger(__name__)


class ChildLost(Exception):
    """The process could not be started, or has ended; the message says which."""


def command_of(module: str) -> tuple[str, ...]:
    """The command line that runs `main()` of a module of ours."""
    return (sys.executable, "-P", "-c", _PROGRAM, PACKAGE_ROOT, module)


class ChildProcess:
    """States: no child -> (`write`) a child -> (`kill`, or its own end) a lost child -> (`write`) a
    new one -> (`end`) no child.

    Args:
        module: its `main()` serves the lines (`moldau.runtime.child_serving`).
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._is_lost = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def write(self, line: bytes) -> None:
        """Send a line, to a new child if need be.

        Raises:
            ChildLost: there is no child now.
        """
        try:
            process = await self._running()
            assert process.stdin is not None
            if process.stdin.is_closing():
                # Dead already: uvloop takes a write for a mistake of ours.
                raise BrokenPipeError("it has ended")
            process.stdin.write(line)
            await process.stdin.drain()
        except OSError as error:
            await self.end()
            raise ChildLost(f"its process cannot be started: {error}") from None

    async def read_line(self) -> bytes:
        """The next line of the child, with its end.

        Raises:
            ChildLost: it has ended, or what it writes is no line.
        """
        process = self._process
        if process is None or self._is_lost:
            raise ChildLost("its process has ended")
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
        except ValueError:
            line = b""  # longer than MAX_LINE_BYTES
        if not line.endswith(b"\n"):
            if self._process is process:
                self.kill()
            raise ChildLost("its process has ended")
        return line

    async def read_some(self, limit_bytes: int) -> bytes:
        """Some of what the child writes, for one that writes no lines; b"" when it has ended well.

        Raises:
            ChildLost: it has ended otherwise.
        """
        process = self._process
        if process is None or process.stdout is None or self._is_lost:
            raise ChildLost("its process has ended")
        data = await process.stdout.read(limit_bytes)
        if not data and await process.wait() != 0:
            raise ChildLost(f"its process has ended with status {process.returncode}")
        return data

    def end_input(self) -> None:
        """Nothing more is written to the child, which ends when it has done its work."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End the child in the middle of its work. Idempotent."""
        self._is_lost = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> None:
        """End the child, if there is one, and wait until it has."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        self.kill()
        self._process = None
        await process.wait()

    async def _running(self) -> asyncio.subprocess.Process:
        """The child, a new one if need be. Raises: OSError."""
        if self._process is not None and self._process.returncode is None and not self._is_lost:
            return self._process
        await self.end()
        self._process = process = await asyncio.create_subprocess_exec(
            *command_of(self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            # A signal from the terminal is the parent's to deal with.
            start_new_session=True,
        )
        self._is_lost = False
        logger.debug("%s: process %d", self._module, process.pid)
        return process
