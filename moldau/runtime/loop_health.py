"""Keeping an event loop responsive: how late it runs, and a garbage collector that stays out of the
way.

Owns: the loop-lag measurement and the collector's settings.
Must not: run on the hot path.
Invariant: after `freeze_garbage_collector` a full collection no longer walks what start-up made.
"""

from __future__ import annotations

import gc
from typing import Final

from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.telemetry.metrics import Histogram

LAG_PROBE_INTERVAL_MS: Final = 100.0
"""How often the loop's lateness is sampled."""

GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Allocations until a young collection, young ones until a middle one, and so on (measured)."""


def pause_garbage_collector() -> None:
    """No collections while something big is being loaded; `freeze_garbage_collector` ends this."""
    gc.disable()


def freeze_garbage_collector() -> None:
    """Collect once, exempt all that lives now from later collections, collect rarely then."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


class LoopLagMonitor:
    """Samples how late a loop runs its timers, in milliseconds, into a histogram."""

    __slots__ = ("_clock", "_due_ms", "_histogram", "_timer")

    def __init__(self, clock: Clock, histogram: Histogram) -> None:
        self._clock = clock
        self._histogram = histogram
        self._due_ms = 0.0
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Begin to sample on the clock's loop."""
        self._due_ms = self._clock.monotonic_ms() + LAG_PROBE_INTERVAL_MS
        self._timer = self._clock.call_later(LAG_PROBE_INTERVAL_MS, self._probe)

    def stop(self) -> None:
        """End sampling (idempotent)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _probe(self) -> None:
        self._histogram.observe(max(self._clock.monotonic_ms() - self._due_ms, 0.0))
        self.start()
