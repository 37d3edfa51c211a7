"""Virtual time, one source of dice, and the record of what happened.

Owns: the queue of events, the clock, the seeded `random.Random`, the trace and its digest. Must
not: know what is simulated. Invariant: the same seed and code give the same events in the same
order, whatever PYTHONHASHSEED is; therefore nothing here or above iterates over a set.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.kit.seeds import Violation

MAX_EVENTS = 500_000
"""More than any run needs that gets somewhere."""
HISTORY_LINES = 40


class Scheduler:
    """Runs actions in the order of virtual time; actions due at once run in the order asked for."""

    def __init__(self, seed: str, *, print_trace: bool = False) -> None:
        self.random = Random(seed)
        self.now_ms = 0.0
        self.event_count = 0
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """What is worth a line about a run besides its faults: commits, elections."""
        self.history: deque[str] = deque(maxlen=HISTORY_LINES)
        self.print_trace = print_trace
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = itertools.count()
        self._digest = hashlib.blake2b(digest_size=16)

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        """Runs `action` in `delay_ms` from now."""
        item = (self.now_ms + delay_ms, next(self._sequence), action, arguments)
        heapq.heappush(self._heap, item)

    def run_until(self, time_ms: float, done: Callable[[], bool] | None = None) -> bool:
        """Runs everything that is due up to `time_ms`, or until `done`; whether it was done."""
        heap = self._heap
        while heap and heap[0][0] <= time_ms:
            due_ms, _, action, arguments = heapq.heappop(heap)
            self.now_ms = max(self.now_ms, due_ms)
            action(*arguments)
            if done is not None and done():
                return True
        self.now_ms = max(self.now_ms, time_ms)
        return done is not None and done()

    def event(self, line: str, detail: object = "") -> None:
        """Something has happened: counted, digested, and printed when a trace is wanted. `detail`
        is for human readers; it is only formatted for them.
        """
        self.event_count += 1
        if self.event_count > MAX_EVENTS:
            raise Violation("livelock", f"{self.event_count} events by {self.now_ms:.0f} ms")
        self.note(line, detail)

    def note(self, line: str, detail: object = "") -> None:
        """A line of the trace that is not a separate event."""
        line = f"{self.now_ms:11.3f} {line}"
        self._digest.update(line.encode())
        self.history.append(line)
        if self.print_trace:
            print(line, detail)

    def fault(self, kind: str, line: str = "") -> None:
        """A fault has been injected."""
        self.faults[kind] += 1
        self.note(f"FAULT {kind} {line}")

    @property
    def virtual_s(self) -> float:
        return self.now_ms / 1000

    def digest(self) -> str:
        """Stands for the whole trace."""
        return self._digest.hexdigest()
