"""Keeps the nodes of a cluster running in the foreground, one line of the log per event.

Owns starting, restarting with back-off, and the orderly end of all. Must not know what nodes do, or
be run outside of the main thread (it owns the signals). Invariant: when `run` returns no node is
left; should this process be killed, the watchdog of its nodes ends them.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Final, Self

from moldau.config.backoff import backoff_ms
from moldau.local.node_process import STOP_DEADLINE_S, NodeFailed, NodeProcess

logger = logging.getLogger(__name__)
#: A node that ends like this would end like this again (see `moldau.broker.__main__`).
WRONG_CONFIGURATION: Final = 2
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LONGEST_WAIT_S: Final = 1.0
#: A node that fails so often before the cluster was ever ready is not going to serve.
MOST_FAILED_STARTS: Final = 3


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before a node is started again; times in milliseconds.

    The pause doubles from `first_ms` to `most_ms`, with jitter, and starts over after a run that
    served for `stable_ms`.
    """

    first_ms: float = 200.0
    most_ms: float = 30_000.0
    stable_ms: float = 30_000.0

    def pause_ms(self, failure_count: int, source: random.Random) -> float:
        return min(self.most_ms, backoff_ms(failure_count, self.first_ms, self.most_ms, source))


class _State(Enum):
    """STARTING → SERVING → PAUSED → STARTING …; a start that cannot succeed ends in GIVEN_UP."""

    STARTING = 1
    SERVING = 2
    PAUSED = 3
    GIVEN_UP = 4


class _Supervised:
    """One node and its state."""

    def __init__(self, name: str, process: NodeProcess) -> None:
        self.name = name
        self.process = process
        self.state = _State.PAUSED
        self.due_ms = 0.0
        self.serving_since_ms = 0.0
        self.failure_count = 0


class Supervisor:
    """Runs nodes until a stop signal.

    Args:
        groups: nodes by name; groups are stopped one after the other (brokers, then controllers,
            which a broker needs for its controlled shutdown), and started all at once.
        policy: back-off.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, NodeProcess]],
        *,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._groups = [
            [_Supervised(name, process) for name, process in group.items()] for group in groups
        ]
        self._policy = policy or RestartPolicy()
        self._random = random.Random()
        self._was_ready = False

    def run(self, on_ready: Callable[[], None]) -> int:
        """Start all nodes and keep them running until SIGTERM, SIGINT or SIGHUP.

        A second signal kills what does not stop.

        Args:
            on_ready: called once, when all of them serve for the first time.

        Returns:
            0 when they were asked to stop and all did in an orderly way, else 1.
        """
        is_orderly = False
        with _Signals() as signals:
            try:
                while not signals.stop_count:
                    self._look()
                    is_ready = all(node.state is _State.SERVING for node in self._nodes)
                    if is_ready and not self._was_ready:
                        self._was_ready = True
                        on_ready()
                    has_given_up = any(node.state is _State.GIVEN_UP for node in self._nodes)
                    if has_given_up and not self._was_ready:
                        break
                    starting = [node for node in self._nodes if node.state is _State.STARTING]
                    signals.wait([node.process.output for node in starting], self._wait_s())
                is_orderly = bool(signals.stop_count)
            finally:
                is_orderly = self._stop_all(signals) and is_orderly
                logger.info("stopped")
        return 0 if is_orderly else 1

    # -- running ---------------------------------------------------------------------------------

    @property
    def _nodes(self) -> Iterable[_Supervised]:
        return (node for group in self._groups for node in group)

    def _look(self) -> None:
        now_ms = _now_ms()
        for node in self._nodes:
            if node.state is _State.PAUSED and node.due_ms <= now_ms:
                self._start(node)
            elif node.state in (_State.STARTING, _State.SERVING):
                if not node.process.running:
                    self._ended(node, now_ms)
                elif node.state is _State.STARTING:
                    self._look_at_start(node, now_ms)

    def _start(self, node: _Supervised) -> None:
        try:
            node.process.start()
        except OSError as error:
            self._fail(node, _now_ms(), f"cannot be started: {error.strerror or error}")
            return
        node.state = _State.STARTING
        logger.info(f"{node.name} starts as process {node.process.pid}")

    def _look_at_start(self, node: _Supervised, now_ms: float) -> None:
        address = node.process.take_address()
        if address is not None:
            node.state = _State.SERVING
            node.serving_since_ms = now_ms
            logger.info(f"{node.name} serves on {address}")

    def _ended(self, node: _Supervised, now_ms: float) -> None:
        status = node.process.exit_code
        assert status is not None, "it does not run"
        served = node.state is _State.SERVING
        if served and now_ms - node.serving_since_ms >= self._policy.stable_ms:
            node.failure_count = 0
        said = node.process.complaint() if status > 0 else ""
        why = f"ended {_how(status)}" + (f" ({said.removeprefix('moldau: ')})" if said else "")
        self._fail(node, now_ms, why, for_good=status == WRONG_CONFIGURATION)

    def _fail(self, node: _Supervised, now_ms: float, why: str, *, for_good: bool = False) -> None:
        node.failure_count += 1
        if for_good or (not self._was_ready and node.failure_count >= MOST_FAILED_STARTS):
            node.state = _State.GIVEN_UP
            logger.info(f"{node.name} {why}; it is not started again")
            return
        pause_ms = self._policy.pause_ms(node.failure_count, self._random)
        node.state = _State.PAUSED
        node.due_ms = now_ms + pause_ms
        logger.info(f"{node.name} {why}; it starts again in {pause_ms / 1000:.1f} s")

    def _wait_s(self) -> float:
        due = [node.due_ms for node in self._nodes if node.state is _State.PAUSED]
        if not due:
            return LONGEST_WAIT_S
        return min(LONGEST_WAIT_S, max(0.0, min(due) - _now_ms()) / 1000)

    # -- stopping --------------------------------------------------------------------------------

    def _stop_all(self, signals: _Signals) -> bool:
        """Stop group by group; True when every node that ran ended with status 0."""
        is_orderly = True
        for group in self._groups:
            running = [node for node in group if node.process.running]
            for node in running:
                with contextlib.suppress(NodeFailed):  # it may have ended by itself just now
                    node.process.ask_to_stop()
                    logger.info(f"{node.name} is asked to stop")
            end_ms = _now_ms() + STOP_DEADLINE_S * 1000
            while any(node.process.running for node in running):
                if signals.stop_count > 1 or _now_ms() >= end_ms:
                    break
                signals.wait([], LONGEST_WAIT_S)
            for node in running:
                status = node.process.stop(0.0)
                # So early that it did not listen to signals yet, it has nothing to put in order.
                is_early = node.state is _State.STARTING and status == -signal.SIGTERM
                has_stopped = status == 0 or is_early
                is_orderly = is_orderly and has_stopped
                logger.info(f"{node.name} {'stopped' if has_stopped else f'ended {_how(status)}'}")
            for node in group:
                if node not in running:
                    node.process.kill()  # collects the end of one that is gone
        return is_orderly


class _Signals:
    """While it is open: stop signals are counted, and they and the ends of children wake `wait`."""

    def __init__(self) -> None:
        self.stop_count = 0
        self._reader, self._writer = socket.socketpair()
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for each in (self._reader, self._writer):
            each.setblocking(False)
        self._undo.callback(self._reader.close)
        self._undo.callback(self._writer.close)
        descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._undo.callback(signal.set_wakeup_fd, descriptor)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            self._undo.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def wait(self, descriptors: list[int], longest_s: float) -> None:
        """Wait until a signal comes, something can be read, or the time is over."""
        readable, _, _ = select.select([self._reader.fileno(), *descriptors], [], [], longest_s)
        if self._reader.fileno() in readable:
            with contextlib.suppress(BlockingIOError):
                while self._reader.recv(4096):
                    pass

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_count += 1


def _how(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def _now_ms() -> float:
    return time.monotonic() * 1000
