"""One timer wheel per event loop: many short timers that are nearly always cancelled.

Owns: buckets of callbacks by tick, and one real timer armed for the earliest of them.
Must not: promise precision better than a tick, or run a callback early.
Invariant: a callback runs at most once, never after `cancel`, and never before its delay has
passed.

Why not the loop's own timers: a heap insertion per request costs six times as much, and cancelled
entries stay in the heap. Cancelling here drops the callback at once; the empty handle is swept
later.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from moldau.runtime.clock import Clock, TimerHandle

TICK_MS: Final = 5.0
"""Resolution: how late a timer may be when the loop is not busy."""

SWEEP_MIN_CANCELLED: Final = 4096
"""Cancelled handles are swept when they are this many and outnumber the live ones."""


@dataclass(slots=True, eq=False, repr=False)
class WheelTimer:
    """One scheduled callback; `cancel` forgets it together with what it refers to."""

    _wheel: TimerWheel
    callback: Callable[..., object] | None
    args: tuple[object, ...]

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self._wheel._count_cancelled()


@dataclass(slots=True, eq=False, repr=False)
class TimerWheel:
    """Schedules callbacks in ticks of TICK_MS on the loop of `clock`. Not thread-safe."""

    _clock: Clock
    _buckets: dict[int, list[WheelTimer]] = field(default_factory=dict)
    _ticks: list[int] = field(default_factory=list)  # heap of the keys of _buckets
    _armed: TimerHandle | None = None
    _armed_tick: int = 0
    _count: int = 0
    _cancelled_count: int = 0

    def __len__(self) -> int:
        """How many callbacks are still to run."""
        return self._count - self._cancelled_count

    def call_later(
        self, delay_ms: float, callback: Callable[..., object], *args: object
    ) -> WheelTimer:
        """Run `callback(*args)` between `delay_ms` and `delay_ms` + one tick from now."""
        timer = WheelTimer(self, callback, args)
        tick = ceil((self._clock.monotonic_ms() + max(delay_ms, 0.0)) / TICK_MS)
        self._insert(tick, timer)
        return timer

    def close(self) -> None:
        for bucket in self._buckets.values():
            for timer in bucket:
                timer.callback = None
        self._buckets.clear()
        self._ticks.clear()
        self._count = self._cancelled_count = 0
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _insert(self, tick: int, timer: WheelTimer) -> None:
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = [timer]
            heapq.heappush(self._ticks, tick)
            if self._armed is None or tick < self._armed_tick:
                self._arm()
        else:
            bucket.append(timer)
        self._count += 1

    def _arm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        if self._ticks:
            self._armed_tick = self._ticks[0]
            delay = self._armed_tick * TICK_MS - self._clock.monotonic_ms()
            self._armed = self._clock.call_later(max(delay, 0.0), self._run_due)

    def _run_due(self) -> None:
        self._armed = None
        # Loops may fire a timer a clock resolution early; such a bucket is simply armed again.
        now_tick = int(self._clock.monotonic_ms() / TICK_MS)
        due: list[WheelTimer] = []
        while self._ticks and self._ticks[0] <= now_tick:
            due.extend(self._buckets.pop(heapq.heappop(self._ticks)))
        self._count -= len(due)
        position = 0
        try:
            for timer in due:
                position += 1
                callback = timer.callback
                if callback is None:
                    self._cancelled_count -= 1
                    continue
                timer.callback = None
                callback(*timer.args)
        finally:
            # A callback that raises takes none of the others with it: they run on the next tick.
            for timer in due[position:]:
                self._insert(now_tick, timer)
            self._arm()

    def _count_cancelled(self) -> None:
        self._cancelled_count += 1
        if self._cancelled_count >= SWEEP_MIN_CANCELLED and self._cancelled_count * 2 > self._count:
            self._sweep()

    def _sweep(self) -> None:
        for tick, bucket in list(self._buckets.items()):
            bucket[:] = [timer for timer in bucket if timer.callback is not None]
            if not bucket:
                del self._buckets[tick]
        self._ticks = list(self._buckets)
        heapq.heapify(self._ticks)
        self._count = sum(map(len, self._buckets.values()))
        self._cancelled_count = 0
