"""The Clock port: the only way anything above `runtime` learns the time or sets a timer.

Owns: reading wall and monotonic time, scheduling one callback on an event loop.
Must not: know what the callbacks are for, or sleep.
Invariant: `monotonic_ms` never goes back; every interval and deadline is computed from it, while
`now_ms` is only for timestamps that leave the process (records, retention, logs) because an
operator may set the wall clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A callback that has been scheduled and may still be called off."""

    def cancel(self) -> None:
        """Call it off; harmless after it ran or was cancelled."""


class Clock(Protocol):
    """Time and timers as seen by one event loop (real or simulated)."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970, as Kafka's timestamps."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary start; never goes back, fractions count."""

    def thread_ms(self) -> float:
        """Milliseconds of processor time that the calling thread has used; fractions count."""

    def call_later(
        self, delay_ms: float, callback: Callable[..., object], *args: object
    ) -> TimerHandle:
        """Run `callback(*args)` on the clock's loop once `delay_ms` milliseconds have passed."""


class SystemClock:
    """The machine's clocks; timers run on `loop`, or on the loop running at the time of the call.

    Reading the time is allowed from any thread; `call_later` only from the loop's own thread.
    """

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000

    def thread_ms(self) -> float:
        return time.thread_time_ns() / 1_000_000

    def call_later(
        self, delay_ms: float, callback: Callable[..., object], *args: object
    ) -> TimerHandle:
        loop = self._loop or asyncio.get_running_loop()
        return loop.call_later(max(delay_ms, 0.0) / 1000, callback, *args)
