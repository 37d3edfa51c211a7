"""How long a request holds the loop: the time that `request_percentage` is about (KIP-124).

Owns: a stopwatch per request, which runs only during the request's own steps. Must not: decide what
follows. Invariant: waiting costs nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock

T = TypeVar("T")


class Stopwatch:
    """Runs from `start` to `stop`, as often as the request has a step."""

    __slots__ = ("_clock", "_started_ms", "_total_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._total_ms = 0.0
        self._started_ms: float | None = None

    def start(self) -> None:
        self._started_ms = self._clock.monotonic_ms()

    def stop(self) -> None:
        self._total_ms = self.elapsed_ms()
        self._started_ms = None

    def elapsed_ms(self) -> float:
        """The time of all steps so far, that of the current one included."""
        if self._started_ms is None:
            return self._total_ms
        return self._total_ms + self._clock.monotonic_ms() - self._started_ms


def timed_steps(stopwatch: Stopwatch, steps: Iterator[None]) -> Iterator[None]:
    """The same steps; the stopwatch runs during each."""
    while True:
        stopwatch.start()
        try:
            next(steps)
        except StopIteration:
            return
        finally:
            stopwatch.stop()
        yield


class TimedWork(Coroutine[object, None, T]):
    """The same coroutine, for a task; the stopwatch runs during each of its steps."""

    __slots__ = ("_coroutine", "_stopwatch")

    def __init__(self, coroutine: Coroutine[object, None, T], stopwatch: Stopwatch) -> None:
        self._coroutine = coroutine
        self._stopwatch = stopwatch

    def send(self, value: None) -> object:
        self._stopwatch.start()
        try:
            return self._coroutine.send(value)
        finally:
            self._stopwatch.stop()

    def throw(self, *error: Any) -> object:
        self._stopwatch.start()
        try:
            return self._coroutine.throw(*error)
        finally:
            del error  # its traceback knows this frame
            self._stopwatch.stop()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[object, None, T]:
        return self._coroutine.__await__()
