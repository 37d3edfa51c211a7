"""A clock that moves only when asked to, for tests of anything that takes a Clock."""

from __future__ import annotations

from collections.abc import Callable

from moldau.runtime.clock import TimerHandle

START_MS = 86_400_000.0
"""Monotonic time begins there: at zero `now - before` and `now + before` would be the same."""


class ManualClock:
    """Timers run inside `advance`, in the order of their deadlines, each at its own time."""

    __slots__ = ("_monotonic_ms", "_sequence", "_timers", "_wall_offset_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: float = START_MS) -> None:
        self._wall_offset_ms = now_ms - int(monotonic_ms)
        self._monotonic_ms = monotonic_ms
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
