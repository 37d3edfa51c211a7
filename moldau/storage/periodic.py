"""PeriodicJob: a regular job on one loop, never twice at a time.

Owns: one timer and at most one running task. Must not: swallow the job's faults.
Invariant: the next run is scheduled when the last one has ended, so a slow disk makes runs rarer,
never more numerous; after a run that raised, the next one follows after a pause; after `stop`
returned nothing runs any more.

Runs handle disk errors. Another exception goes to the node's fault table, which stops the node for
a broken invariant. After all others the job goes on: no job of the storage endangers data by being
late. What is not flushed is on the other replicas, older checkpoints make the next start longer,
and what is not removed or compacted takes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import InitVar, dataclass

from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.restarts import Restarts
from moldau.storage.log_config import NEVER_MS


@dataclass(eq=False, repr=False)
class PeriodicJob:
    """States: idle -> waiting (`start`) -> running -> waiting ... -> stopped (`stop`)."""

    name: InitVar[str]
    _clock: Clock
    _interval_ms: int | Callable[[], int]
    """From the end of one run to the next; a function is called each time."""
    _run: Callable[[], Coroutine[object, None, None]]
    _timer: TimerHandle | None = None
    _task: asyncio.Task[None] | None = None
    _again: bool = False
    _is_pausing: bool = False
    _stopped: bool = False

    def __post_init__(self, name: str) -> None:
        self._restarts = Restarts(f"storage job {name}")

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self, delay_ms: int | None = None) -> None:
        """Have the next run after `delay_ms` (default: the interval)."""
        if not self._is_pausing:
            self._schedule(self._next_ms() if delay_ms is None else delay_ms)

    def soon(self) -> None:
        """Run now instead of at the timer; during a run, once more after it.

        The pause after a failure is not cut short.
        """
        if self._stopped or self._is_pausing:
            return
        if self._task is not None:
            self._again = True
            return
        self._cancel_timer()
        self._begin()

    def retire(self) -> None:
        """No further runs; a running one goes on."""
        self._stopped = True
        self._cancel_timer()

    async def stop(self) -> None:
        self.retire()
        task = self._task
        if task is not None:
            await asyncio.wait([task])

    def _schedule(self, delay_ms: int) -> None:
        self._cancel_timer()
        if not self._stopped and delay_ms < NEVER_MS:
            self._timer = self._clock.call_later(delay_ms, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._stopped or self._task is not None:
            return
        self._again = self._is_pausing = False
        task = asyncio.get_running_loop().create_task(self._run(), name=self._restarts.name)
        self._task = task
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._is_pausing = True
            self._schedule(self._restarts.failed(error))
            return
        self._restarts.went_well()
        self._schedule(0 if self._again else self._next_ms())

    def _next_ms(self) -> int:
        interval_ms = self._interval_ms
        return interval_ms if isinstance(interval_ms, int) else interval_ms()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
