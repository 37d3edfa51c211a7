"""Cleans up after a test process that dies without closing its cluster (SIGKILL, a crash).

Owns a small helper process per cluster, which waits for the end of a pipe and then kills the nodes
and removes the directory. Must not import anything but the standard library: this very file is the
helper's script, and it has to start faster than the nodes. Invariant: only processes that were
announced and not yet withdrawn are killed, and never one that has since taken over a process id.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

STARTED: Final = "+"
ENDED: Final = "-"
CLOSED: Final = "."
END_DEADLINE_S: Final = 10.0


class Watchdog:
    """The test process's end: announce what is started, `close` after everything is cleaned up.
    `directory` is removed when the test process dies; None keeps it.
    """

    def __init__(self, directory: Path | None) -> None:
        arguments = [] if directory is None else [str(directory)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the test process's affair
        )

    def started(self, process_id: int) -> None:
        """A node runs; to be called before its exit could be collected."""
        self._tell(f"{STARTED}{process_id}\n")

    def ended(self, process_id: int) -> None:
        self._tell(f"{ENDED}{process_id}\n")

    def close(self) -> None:
        """End the helper; idempotent. A message ends it: a process that the test has forked may
        hold the pipe open for as long as it likes.
        """
        assert self._process.stdin is not None, "stdin is a pipe"
        self._tell(f"{CLOSED}\n")
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None, "stdin is a pipe"
        # The helper may have been killed: then nothing cleans up after a crash, and no harm is
        # done.
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


class _Target:
    """A process by its descriptor, which a later process with the same id does not get."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._descriptor = -1
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(process_id)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
                # Readable when it is gone, and writes nothing any more.
                select.select([self._descriptor], [], [], END_DEADLINE_S)
            elif not hasattr(os, "pidfd_open"):
                os.kill(self._process_id, signal.SIGKILL)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def watch(directory: str | None) -> None:
    """The helper: follow what is announced until the pipe ends, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    targets: dict[int, _Target] = {}
    for line in sys.stdin:
        if line.startswith(CLOSED):
            break
        process_id = int(line[1:])
        if line.startswith(STARTED):
            targets[process_id] = _Target(process_id)
        else:
            target = targets.pop(process_id, None)
            if target is not None:
                target.close()
    for target in targets.values():
        target.kill()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.argv[1] if len(sys.argv) > 1 else None)
