"""A flag to wait for, with a time limit by its owner's own clock: a set that happens before the
wait is not lost, and cancelling a waiter leaves nothing behind.
"""

from __future__ import annotations

import asyncio

from moldau.runtime.clock import Clock


class Signal:
    """Set from anywhere on the loop; waiting resets it. All waiters wake."""

    __slots__ = ("_clock", "_is_set", "waiters")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_set = False
        self.waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake all waiters, or the next one when there is none."""
        if not self.waiters:
            self._is_set = True
            return
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            _wake(waiter)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, timeout_ms: float | None) -> None:
        """Wait until it is set, or the time is over (None: no limit)."""
        if self._is_set:
            self._is_set = False
            return
        waiter = asyncio.get_running_loop().create_future()
        timer = None
        if timeout_ms is not None:
            timer = self._clock.call_later(max(timeout_ms, 0.0), _wake, waiter)
        self.waiters.append(waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self.waiters:
                self.waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # it may have been cancelled in this turn of the loop
        waiter.set_result(None)
