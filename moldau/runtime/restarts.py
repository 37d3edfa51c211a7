"""Jobs that run for ever: one that raises is reported, and begins again after a pause.

Owns: the pauses, and the one way by which such a failure comes to the node's fault table: the
loop's exception handler, with JOB_KEY in its context. Must not: decide whether the node goes on
(that table, `node.faults`, does), or catch anything.
Invariant: a failure is reported exactly once, and each one in a row is followed by a longer pause,
up to MAX_PAUSE_MS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from moldau.config.backoff import Backoff

FIRST_PAUSE_MS: Final = 1_000
MAX_PAUSE_MS: Final = 60_000
LONG_LIFE_MS: Final = 60_000

JOB_KEY: Final = "job"
"""The key of the loop's exception context that has the name of the job that is begun again."""


class Restarts:
    """The failures of one job."""

    __slots__ = ("_backoff", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._backoff = Backoff(FIRST_PAUSE_MS, MAX_PAUSE_MS)

    def failed(self, error: BaseException) -> int:
        """Report a failure, on the job's loop. Returns the pause before the next begin in ms."""
        pause_ms = int(self._backoff.next_ms())
        asyncio.get_running_loop().call_exception_handler(
            {
                "message": f"{self.name} failed and is begun again in {pause_ms} ms",
                "exception": error,
                JOB_KEY: self.name,
            }
        )
        return pause_ms

    def went_well(self) -> None:
        """The next failure is the first one in a row."""
        self._backoff.reset()


class RestartedTask:
    """A task that is begun again when it raises. After a life of LONG_LIFE_MS or more, a failure
    counts as the first in a row.

    States: made → running (`start`) → pausing (it raised) → running … → ended (it returned, or
    `stop`).

    Args:
        name: for the task and for the log.
        work: makes the coroutine of one life of the task.
    """

    __slots__ = ("_is_stopped", "_restarts", "_started_s", "_task", "_timer", "_work")

    def __init__(self, name: str, work: Callable[[], Coroutine[object, None, None]]) -> None:
        self._work = work
        self._restarts = Restarts(name)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._started_s = 0.0

    def start(self) -> None:
        """Begin; on the loop that is to run it."""
        assert self._task is None, f"{self._restarts.name} runs already"
        self._timer = None
        loop = asyncio.get_running_loop()
        self._started_s = loop.time()
        self._task = loop.create_task(self._work(), name=self._restarts.name)
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End it, wherever it is; idempotent."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        loop = task.get_loop()
        if loop.time() - self._started_s >= LONG_LIFE_MS / 1000:
            self._restarts.went_well()
        pause_ms = self._restarts.failed(error)
        if not self._is_stopped:
            self._timer = loop.call_later(pause_ms / 1000, self.start)
