"""PeriodicJob: something done again and again on one loop, never twice at a time.

Owns: one timer and at most one running task. Must not: know what is done, or swallow its faults.
Invariant: the next run is scheduled when the last one has ended, so a slow disk makes runs rarer,
never more numerous; after `stop` returned nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from moldau.runtime.clock import Clock, TimerHandle
from moldau.storage.manager_settings import NEVER_MS


class PeriodicJob:
    """States: idle -> waiting (`start`) -> running -> waiting ... -> stopped (`stop`)."""

    __slots__ = ("_again", "_clock", "_interval_ms", "_run", "_stopped", "_task", "_timer", "name")

    def __init__(
        self,
        name: str,
        clock: Clock,
        interval_ms: int | Callable[[], int],
        run: Callable[[], Awaitable[None]],
    ) -> None:
        """`interval_ms` is from the end of one run to the next; a function is asked each time."""
        self.name = name
        self._clock = clock
        self._interval_ms = interval_ms
        self._run = run
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._stopped = False

    @property
    def is_running(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._task is not None

    def start(self, delay_ms: int | None = None) -> None:
        """Have the first run after `delay_ms` (default: the interval)."""
        self._schedule(self._next_ms() if delay_ms is None else delay_ms)

    def soon(self) -> None:
        """Run now instead of when the timer says; during a run, once more after it."""
        if self._stopped:
            return
        if self._task is not None:
            self._again = True
            return
        self._cancel_timer()
        self._begin()

    def retire(self) -> None:
        """No further runs; one that is under way goes on."""
        self._stopped = True
        self._cancel_timer()

    async def stop(self) -> None:
        """No further runs; waits for the one that is under way."""
        self._stopped = True
        self._cancel_timer()
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
        self._again = False
        task = asyncio.get_running_loop().create_task(self._guarded(), name=f"storage {self.name}")
        self._task = task
        task.add_done_callback(self._ended)

    async def _guarded(self) -> None:
        await self._run()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            # Runs handle what disks do. Anything else is a broken invariant: the node's fault
            # table hears of it through the loop, and this job has ended.
            self._stopped = True
            context = {"message": f"storage job {self.name} failed", "exception": task.exception()}
            task.get_loop().call_exception_handler({**context, "task": task})
            return
        self._schedule(0 if self._again else self._next_ms())

    def _next_ms(self) -> int:
        interval_ms = self._interval_ms
        return interval_ms if isinstance(interval_ms, int) else interval_ms()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
