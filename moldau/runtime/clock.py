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


class ManualClock:
    """A clock that moves only when told to: for tests of anything that takes a Clock.

    Timers run inside `advance`, in the order of their deadlines, each at its own time.
    """

    __slots__ = ("_monotonic_ms", "_sequence", "_timers", "_wall_offset_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_offset_ms = now_ms
        self._monotonic_ms = 0.0
        self._sequence = 0
        self._timers: list[_ManualTimer] = []

    def now_ms(self) -> int:
        return self._wall_offset_ms + int(self._monotonic_ms)

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def thread_ms(self) -> float:
        return self._monotonic_ms

    def call_later(
        self, delay_ms: float, callback: Callable[..., object], *args: object
    ) -> TimerHandle:
        self._sequence += 1
        deadline = self._monotonic_ms + max(delay_ms, 0.0)
        timer = _ManualTimer(deadline, self._sequence, callback, args, self._timers)
        self._timers.append(timer)
        return timer

    @property
    def timer_count(self) -> int:
        return len(self._timers)

    def set_wall_clock(self, now_ms: int) -> None:
        """Let the wall clock jump (an operator or NTP did it); monotonic time is untouched."""
        self._wall_offset_ms = now_ms - int(self._monotonic_ms)

    def stand_still(self, elapsed_ms: float) -> None:
        """Let time pass in which the loop does not run: what becomes due is late."""
        self._monotonic_ms += elapsed_ms

    def advance(self, elapsed_ms: float) -> None:
        """Move both clocks forward and run the timers that become due on the way."""
        target = self._monotonic_ms + elapsed_ms
        while self._timers:
            timer = min(self._timers, key=lambda each: (each.deadline_ms, each.sequence))
            if timer.deadline_ms > target:
                break
            self._monotonic_ms = max(self._monotonic_ms, timer.deadline_ms)
            self._timers.remove(timer)
            timer.callback(*timer.args)
        self._monotonic_ms = target


class _ManualTimer:
    __slots__ = ("_owner", "args", "callback", "deadline_ms", "sequence")

    def __init__(
        self,
        deadline_ms: float,
        sequence: int,
        callback: Callable[..., object],
        args: tuple[object, ...],
        owner: list[_ManualTimer],
    ) -> None:
        self.deadline_ms = deadline_ms
        self.sequence = sequence
        self.callback = callback
        self.args = args
        self._owner = owner

    def cancel(self) -> None:
        if self in self._owner:
            self._owner.remove(self)
