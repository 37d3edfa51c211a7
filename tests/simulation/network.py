"""Who can reach whom, how late, and what a broken connection does to what was on its way.

Owns: blocked directions, delays, loss by reset, duplicates and late arrivals. Must not: look into
messages. Invariant: a message is handed over at most once, unless the fault profile duplicates
requests; what a reset cuts off is either gone or, being in the receiver's buffers, arrives late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.scheduler import Scheduler

Deliver = Callable[[], None]
DELAY_RANGES_MS = ((0.2, 2.0), (1.0, 10.0), (5.0, 60.0), (1.0, 300.0))
LATE_MS = 4_000.0


@dataclass(slots=True)
class _Flight:
    deliver: Deliver
    may_repeat: bool
    gone: bool = False


class Network:
    """The links between nodes, as directed pairs of node ids."""

    def __init__(self, scheduler: Scheduler) -> None:
        random = scheduler.random
        self.scheduler = scheduler
        self.delay_range_ms = random.choice(DELAY_RANGES_MS)
        self.reset_rate = 0.0
        """How likely a message meets a connection that breaks under it."""
        self.duplicate_rate = 0.0
        self.late_rate = 0.0
        self.reset_listeners: list[Callable[[int, int], None]] = []
        self._blocked_until: dict[tuple[int, int], float] = {}
        self._in_flight: dict[tuple[int, int], list[_Flight]] = {}

    def delay_ms(self) -> float:
        """How long the next message takes."""
        low, high = self.delay_range_ms
        return low + (high - low) * self.scheduler.random.random()

    def is_blocked(self, source: int, target: int) -> bool:
        """Whether what `source` sends to `target` disappears."""
        return self._blocked_until.get((source, target), 0.0) > self.scheduler.now_ms

    def blocked_until_ms(self, source: int, target: int) -> float:
        """When the direction opens again; in the past when it is open."""
        return self._blocked_until.get((source, target), 0.0)

    def block(self, source: int, target: int, duration_ms: float) -> None:
        """Nothing gets from `source` to `target` for a while; neither gets an error."""
        until = self.scheduler.now_ms + duration_ms
        self._blocked_until[source, target] = max(self.blocked_until_ms(source, target), until)

    def heal(self) -> None:
        """No faults from here on."""
        self._blocked_until.clear()
        self.reset_rate = self.duplicate_rate = self.late_rate = 0.0

    def send(self, source: int, target: int, deliver: Deliver, *, may_repeat: bool) -> None:
        """Hands a message over, later, unless it is lost. Only requests may come twice or late."""
        if self.is_blocked(source, target):
            return
        random = self.scheduler.random
        if self.reset_rate and random.random() < self.reset_rate:
            self.scheduler.fault("drop", f"{source}->{target}")
            self.reset(source, target)
            return
        flight = _Flight(deliver, may_repeat)
        self._in_flight.setdefault((source, target), []).append(flight)
        self.scheduler.after(self.delay_ms(), self._arrive, source, target, flight)
        if may_repeat and self.duplicate_rate and random.random() < self.duplicate_rate:
            self.scheduler.fault("duplicate", f"{source}->{target}")
            self.scheduler.after(random.random() * LATE_MS, self._arrive_late, deliver)

    def reset(self, one: int, other: int) -> None:
        """The connections between two nodes break; both get an error."""
        random = self.scheduler.random
        for pair in ((one, other), (other, one)):
            for flight in self._in_flight.pop(pair, ()):
                flight.gone = True
                if flight.may_repeat and random.random() < self.late_rate:
                    self.scheduler.fault("late", f"{pair[0]}->{pair[1]}")
                    self.scheduler.after(
                        random.random() * LATE_MS, self._arrive_late, flight.deliver
                    )
        for listener in self.reset_listeners:
            listener(one, other)

    def _arrive(self, source: int, target: int, flight: _Flight) -> None:
        if flight.gone:
            return
        self._in_flight[source, target].remove(flight)
        if not self.is_blocked(source, target):
            flight.deliver()

    @staticmethod
    def _arrive_late(deliver: Deliver) -> None:
        deliver()


class Stream:
    """One direction of a connection that keeps order, like TCP: what a blocked direction holds up
    arrives when it opens; a reset loses it.
    """

    def __init__(self, network: Network, source: int, target: int) -> None:
        self._network = network
        self._pair = (source, target)
        self._queue: deque[tuple[float, Deliver]] = deque()
        self._generation = 0
        self._pumping = False

    def send(self, deliver: Deliver) -> None:
        """Queues a message behind those already on their way."""
        due_ms = self._network.scheduler.now_ms + self._network.delay_ms()
        self._queue.append((due_ms, deliver))
        self._pump(self._generation)

    def clear(self) -> None:
        """The connection is gone, with everything on its way."""
        self._queue.clear()
        self._generation += 1
        self._pumping = False

    def _pump(self, generation: int, *, woken: bool = False) -> None:
        if generation != self._generation or (self._pumping and not woken):
            return
        self._pumping = False
        scheduler = self._network.scheduler
        while self._queue:
            due_ms = max(self._queue[0][0], self._network.blocked_until_ms(*self._pair))
            if due_ms > scheduler.now_ms:
                self._pumping = True
                scheduler.after(due_ms - scheduler.now_ms, self._wake, generation)
                return
            self._queue.popleft()[1]()
            if generation != self._generation:
                return

    def _wake(self, generation: int) -> None:
        self._pump(generation, woken=True)
