"""One node as a child process: start, wait until ready, signal, collect its output.

Owns the process and its log file. Must not know what a cluster is. Invariant: after `stop` or
`kill` returns, no process is left.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from moldau.local.watchdog import Watchdog
from moldau.runtime.private_files import owner_only

#: What a node is.
COMMAND = (sys.executable, "-m", "moldau.broker")
READY_PREFIX: Final = b"ready: "
COMPLAINT_PREFIX: Final = "moldau: "
START_DEADLINE_S: Final = 60.0
STOP_DEADLINE_S: Final = 30.0
LOG_TAIL_BYTES: Final = 8_192
POLL_INTERVAL_S: Final = 0.1


class NodeFailed(RuntimeError):
    """A node process ended, or did not become ready, when it should have run."""


class NodeProcess:
    """A running `python -m moldau.broker`. Transitions: new → started → stopped → started …

    Args:
        log_path: what the node writes to stderr is appended here.
        arguments: further options of `python -m moldau.broker`.
        watchdog: learns of every start and end; None for none.
    """

    def __init__(
        self,
        config_path: Path,
        log_path: Path,
        arguments: Sequence[str] = (),
        *,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.config_path = config_path
        self.log_path = log_path
        self._arguments = list(arguments)
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._announced = b""
        self._output_ended = False
        self._log_start_bytes = 0

    @property
    def running(self) -> bool:
        """True while the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit status of the last run, None while it runs; negative for a signal."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Spawn the process without waiting for it to serve. Raises: NodeFailed: it already runs"""
        __tracebackhide__ = True  # of what a test reads about its own `Cluster`
        if self.running:
            raise NodeFailed(f"node {self.config_path} already runs")
        self._collect()
        command = [*COMMAND, str(self.config_path), "--announce", *self._arguments]
        with open(self.log_path, "ab", opener=owner_only) as log:
            self._log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        if self._watchdog is not None:
            self._watchdog.started(self._process.pid)
        self._paused = False
        self._announced = b""
        self._output_ended = False

    @property
    def output(self) -> int:
        """The descriptor that the `ready` line comes on, to wait for."""
        assert self._process is not None, "started"
        assert self._process.stdout is not None, "stdout is a pipe"
        return self._process.stdout.fileno()

    def take_address(self) -> str | None:
        """The address of the `ready: HOST:PORT` line, None while it has not come; never waits."""
        while select.select([self.output], [], [], 0)[0]:
            chunk = os.read(self.output, 4096)
            if not chunk:
                self._output_ended = True
                break
            self._announced += chunk
        for line in self._announced.split(b"\n")[:-1]:
            if line.startswith(READY_PREFIX):
                return line[len(READY_PREFIX) :].decode().strip()
        return None

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> str:
        """Wait for the `ready: HOST:PORT` line and return its address. Raises: NodeFailed: the node
        ended or the deadline passed; the text has the end of its log
        """
        __tracebackhide__ = True
        process = self._process
        assert process is not None, "started"
        end = time.monotonic() + deadline_s
        while True:
            address = self.take_address()
            if address is not None:
                return address
            if self._output_ended:
                code = process.wait()
                raise NodeFailed(f"node ended with status {code}\n{self.log_tail()}")
            remaining_s = end - time.monotonic()
            if remaining_s <= 0:
                raise NodeFailed(f"node not ready within {deadline_s} s\n{self.log_tail()}")
            select.select([self.output], [], [], remaining_s)

    def ask_to_stop(self) -> None:
        """SIGTERM without waiting for the end; nothing when it does not run."""
        if self.running:
            if self._paused:
                self.resume()
            self._signal(signal.SIGTERM)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM (a controlled shutdown), then wait; returns the exit status."""
        return self._end(signal.SIGTERM, deadline_s)

    def kill(self) -> int:
        """SIGKILL, then wait; the page cache survives, nothing else does."""
        return self._end(signal.SIGKILL, STOP_DEADLINE_S)

    def pause(self) -> None:
        """SIGSTOP: the process stays, and answers nothing. Raises: NodeFailed: it does not run."""
        __tracebackhide__ = True
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT. Raises: NodeFailed: it does not run."""
        __tracebackhide__ = True
        self._signal(signal.SIGCONT)
        self._paused = False

    def log_tail(self, start_bytes: int = 0) -> str:
        """The last lines the node wrote to its log, at or after a position."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            end_bytes = log.seek(0, os.SEEK_END)
            log.seek(max(start_bytes, end_bytes - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def complaint(self) -> str:
        """The one line in which the last run said why it ended, empty when it said nothing."""
        lines = self.log_tail(self._log_start_bytes).splitlines()
        return next((line for line in reversed(lines) if line.startswith(COMPLAINT_PREFIX)), "")

    def _signal(self, number: signal.Signals) -> None:
        __tracebackhide__ = True
        process = self._process
        if process is None or process.poll() is not None:
            raise NodeFailed(f"node {self.config_path} does not run")
        process.send_signal(number)

    def _end(self, signal_number: signal.Signals, deadline_s: float) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            if self._paused and signal_number is not signal.SIGKILL:
                self.resume()
            process.send_signal(signal_number)
            try:
                process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                process.kill()
        self._collect()
        return process.returncode

    def _collect(self) -> None:
        """Collect the exit status of a process that has ended or was asked to."""
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            return
        process.wait()
        process.stdout.close()
        if self._watchdog is not None:
            self._watchdog.ended(process.pid)


def wait_ready_together(nodes: Iterable[NodeProcess]) -> None:
    """Wait until all of them are ready, which may need one another. Raises: NodeFailed: one ended,
    or the deadline passed; the text has the end of its log
    """
    __tracebackhide__ = True
    waiting = list(nodes)
    end = time.monotonic() + START_DEADLINE_S
    while waiting:
        waiting = [node for node in waiting if node.take_address() is None]
        for node in waiting:
            if not node.running:
                node.wait_ready()  # says how it ended
            if time.monotonic() >= end:
                text = f"{node.config_path}: not ready within {START_DEADLINE_S} s"
                raise NodeFailed(f"{text}\n{node.log_tail()}")
        if waiting:
            select.select([node.output for node in waiting], [], [], POLL_INTERVAL_S)
