"""How late an event loop runs, and which request's steps hold it.

Owns: the measurement of a loop's lateness and of long steps. Must not: cost a request more than a
comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from moldau.protocol.api_keys import api_name
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.request import Request

T = TypeVar("T")

STALL_MS: Final = 100.0
"""A step that holds the loop for longer is logged and counted."""

NO_REQUEST: Final = "none"

CLIENT_ID_LENGTH: Final = 100
"""How many characters of a client id a log line shows."""

_LOG = logging.getLogger(__name__)

LAG_PROBE_INTERVAL_MS: Final = 100.0
"""How often the loop's lateness is sampled."""


class LoopWatchdog:
    """Says what holds one event loop for longer than STALL_MS, and samples how late it runs.

    A stall is one log line, and one count by the name of the request. The steps of
    requests are timed exactly. Anything else is known from a timer that comes late: always when it
    held the loop for LAG_PROBE_INTERVAL_MS longer than STALL_MS, by chance when it was less.

    Args:
        loop_name: DataLoop or QuorumLoop, the `type` of the metrics.
    """

    def __init__(self, clock: Clock, registry: Registry, loop_name: str) -> None:
        self._clock = clock
        self._registry = registry
        self._loop_name = loop_name
        self._lag = registry.histogram(f"kafka.server:type={loop_name},name=LagMs")
        self._count(NO_REQUEST, 0)
        self._due_ms = 0.0
        self._explained_ms = 0.0
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._due_ms = self._clock.monotonic_ms() + LAG_PROBE_INTERVAL_MS
        self._timer = self._clock.call_later(LAG_PROBE_INTERVAL_MS, self._probe)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def held_by(self, request: Request, elapsed_ms: float) -> None:
        """A step of a request took longer than STALL_MS."""
        self._explained_ms += elapsed_ms
        name = api_name(request.api_key)
        self._count(name)
        _LOG.warning(
            "%s v%d of client %r at %s held the %s for %d ms",
            name,
            request.api_version,
            (request.client_id or "")[:CLIENT_ID_LENGTH],
            request.connection.client_host,
            self._loop_name,
            elapsed_ms,
        )

    def watch(
        self, request: Request, coroutine: Coroutine[object, None, T]
    ) -> Coroutine[object, None, T]:
        """The same coroutine, which works on a request, for a task: its steps are timed."""
        return _TimedCoroutine(coroutine, self._clock, lambda ms: self.held_by(request, ms))

    def _probe(self) -> None:
        late_ms = max(self._clock.monotonic_ms() - self._due_ms, 0.0)
        self._lag.observe(late_ms)
        if late_ms - self._explained_ms > STALL_MS:
            self._count(NO_REQUEST)
            _LOG.warning(
                "work that belongs to no request held the %s for %d ms or more",
                self._loop_name,
                late_ms - self._explained_ms,
            )
        self._explained_ms = 0.0
        self.start()

    def _count(self, request_name: str, amount: int = 1) -> None:
        name = f"kafka.server:type={self._loop_name},name=Stalls"
        self._registry.counter(name, request=request_name).add(amount)


class _TimedCoroutine(Coroutine[object, None, T]):
    """Reports the steps of a coroutine that take longer than STALL_MS."""

    __slots__ = ("_clock", "_coroutine", "_told")

    def __init__(
        self, coroutine: Coroutine[object, None, T], clock: Clock, told: Callable[[float], None]
    ) -> None:
        self._coroutine = coroutine
        self._clock = clock
        self._told = told

    def send(self, value: None) -> object:
        begun_ms = self._clock.monotonic_ms()
        try:
            return self._coroutine.send(value)
        finally:
            self._ended(begun_ms)

    def throw(self, *error: Any) -> object:
        begun_ms = self._clock.monotonic_ms()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._ended(begun_ms)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[object, None, T]:
        return self._coroutine.__await__()

    def _ended(self, begun_ms: float) -> None:
        elapsed_ms = self._clock.monotonic_ms() - begun_ms
        if elapsed_ms > STALL_MS:
            self._told(elapsed_ms)
