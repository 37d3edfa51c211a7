"""What a node knows of itself beside what Kafka's protocol has words for, and its rates.

Must not know a node: it is given the way to ask one. Invariant: a rate is of two looks at least a
second apart, and not known before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

LEAST_S: Final = 1.0
LONGEST_S: Final = 15.0
"""Rates are means over so long at most, as far as pages look so often."""
MAX_LOOKS: Final = 16


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much there was since the node has started."""

    bytes_in: int
    bytes_out: int
    messages_in: int
    requests: int


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What a node says.

    Attributes:
        loop_lag_ms: how late its data loop was.
        listeners: of every broker that is registered, by broker.
    """

    broker_id: int
    version: str
    connections: int
    loop_lag_ms: float
    listeners: Mapping[int, list[str]]
    traffic: Traffic


@dataclass(eq=False)
class TrafficRates:
    """The traffic in the last seconds, from looks at what there was in all.

    Args:
        now_s: a clock that never goes back.
    """

    now_s: Callable[[], float]
    _looks: deque[tuple[float, Traffic]] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))

    def of(self, traffic: Traffic) -> dict[str, float | None]:
        """The rates up to now, by their names in JSON; None for each at the first look."""
        now_s = self.now_s()
        while self._looks and now_s - self._looks[0][0] > LONGEST_S and len(self._looks) > 1:
            self._looks.popleft()
        before = self._looks[0] if self._looks else None
        if not self._looks or now_s - self._looks[-1][0] >= LEAST_S:
            self._looks.append((now_s, traffic))
        names = ("bytes_in", "bytes_out", "messages_in", "requests")
        if before is None or now_s - before[0] < LEAST_S:
            return {f"{name}_s": None for name in names}
        took_s, then = now_s - before[0], before[1]
        return {
            f"{name}_s": max(0, getattr(traffic, name) - getattr(then, name)) / took_s
            for name in names
        }
