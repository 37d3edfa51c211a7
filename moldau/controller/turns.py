"""Work on the controller's working state: one piece after the other, each cut into slices.

Owns: the line of pieces, and when the loop gives way. Must not: know what a piece does. Invariant:
a piece begins when every earlier one has ended, so that nothing changes under it; the loop is held
for one slice and one step of a piece at most. A small piece is done before `take` returns, if no
other is under way.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from moldau.controller.log_port import Clock, TimerHandle
from moldau.metadata.steps import Steps

SLICE_MS: Final = 5.0
"""For so long the pieces may hold the loop before others have their turn. The state waits for them:
slices are longer than those of work that nothing waits for.
"""


class Turns:
    """States: idle, or a piece is under way and a timer or `take` itself carries it on."""

    __slots__ = ("_clock", "_current", "_is_running", "_line", "_slice_ms", "_timer")

    def __init__(self, clock: Clock, slice_ms: float = SLICE_MS) -> None:
        self._clock = clock
        self._slice_ms = slice_ms
        self._line: deque[Steps[None]] = deque()
        self._current: Steps[None] | None = None
        self._is_running = False
        self._timer: TimerHandle | None = None

    def take(self, steps: Steps[None]) -> None:
        """Do a piece of work now, or when those before it are done."""
        self._line.append(steps)
        if not self._is_running and self._timer is None:
            self._run()

    def clear(self) -> None:
        """Call off what is under way and what waits; harmless from inside a piece."""
        line, self._line = self._line, deque()
        self._current = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for steps in line:
            steps.close()

    def _run(self) -> None:
        self._timer = None
        self._is_running = True
        slice_end_ms = self._clock.monotonic_ms() + self._slice_ms
        try:
            while self._line:
                steps = self._current = self._line.popleft()
                for _ in steps:
                    if self._current is not steps:
                        steps.close()  # it has called itself off
                        break
                    if self._clock.monotonic_ms() >= slice_end_ms:
                        self._line.appendleft(steps)
                        return
                if self._clock.monotonic_ms() >= slice_end_ms:
                    return
        finally:
            self._is_running = False
            self._current = None
            # A piece that has failed does not keep the others waiting.
            if self._line and self._timer is None:
                self._timer = self._clock.call_later(0.0, self._run)
