"""A producer that keeps a pace: `python -m benchmarks.pacer JSON`, JSON on stdout.

Sends one small request at every tick, whatever became of those before (an open loop), going round
its connections, and takes each latency from the tick, not from when it got round to sending: a
stall counts for every request that fell into it. One thread, which sleeps in `select`. Invariant:
every request was answered without an error, and offsets prove that each was appended once.
"""

from __future__ import annotations

import gc
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.processes import carry_out
from benchmarks.wire import ANSWER_DEADLINE_S, ProduceAnswers, ProduceFrame, connected
from moldau.cli.bench.figures import percentile


@dataclass(frozen=True, slots=True)
class Lane:
    """One connection: its own producer, for one partition, at the partition's leader."""

    port: int
    partition_index: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class PaceOrder:
    """What to send where, how often and for how long."""

    host: str
    lanes: Sequence[Lane]
    topic: str
    record_bytes: int
    requests_per_second: int
    warm_up_count: int
    request_count: int


@dataclass(frozen=True, slots=True)
class PaceOutcome:
    """Milliseconds of the timed requests, by percentile; lateness is what the pacer sent late."""

    latency_ms: dict[str, float]
    lateness_ms: dict[str, float]
    seconds: float


PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "maximum": 100.0}


class _Connection:
    """Non-blocking in what it reads; what it sends is so little that the socket always takes it."""

    def __init__(self, order: PaceOrder, lane: Lane) -> None:
        self.socket = connected(order.host, lane.port)
        self._frame = ProduceFrame(
            order.topic,
            record_bytes=order.record_bytes,
            batch_bytes=1,
            partition_index=lane.partition_index,
            producer_id=lane.producer_id,
            producer_epoch=lane.producer_epoch,
        )
        self._answers = ProduceAnswers(self.socket, self._frame)
        self._intended_s: deque[float] = deque()
        self._last_offset = -1

    def send(self, correlation_id: int, intended_s: float) -> None:
        """The request that was due at `intended_s`."""
        self._frame.advance(correlation_id)
        self.socket.sendall(self._frame.frame)
        self._intended_s.append(intended_s)

    def receive(self) -> list[float]:
        """Take what has come: when each answered request had been due."""
        answered = []
        for offset in self._answers.take():
            assert offset > self._last_offset, "appended twice"
            self._last_offset = offset
            answered.append(self._intended_s.popleft())
        return answered


class Pacer:
    """All connections on one thread."""

    def __init__(self, order: PaceOrder) -> None:
        self._order = order
        self._connections = [_Connection(order, lane) for lane in order.lanes]
        self._by_descriptor = {each.socket.fileno(): each for each in self._connections}
        self._descriptors = list(self._by_descriptor)
        self._correlation_id = 0
        self._lateness_s: list[float] = []
        self._latency_s: list[float] = []

    def run(self) -> PaceOutcome:
        """Warm up, then keep the pace and measure."""
        self._keep_pace(self._order.warm_up_count)
        self._lateness_s.clear()
        self._latency_s.clear()
        begin = time.perf_counter()
        self._keep_pace(self._order.request_count)
        seconds = time.perf_counter() - begin
        for connection in self._connections:
            connection.socket.close()
        assert len(self._latency_s) == self._order.request_count, "each answered once"
        return PaceOutcome(percentiles(self._latency_s), percentiles(self._lateness_s), seconds)

    def _keep_pace(self, count: int) -> None:
        interval_s = 1.0 / self._order.requests_per_second
        lanes = self._connections
        begin = time.perf_counter()
        sent = 0
        deadline = begin + count * interval_s + ANSWER_DEADLINE_S
        awaited = len(self._latency_s) + count
        while len(self._latency_s) < awaited:
            now = time.perf_counter()
            assert now < deadline, f"{awaited - len(self._latency_s)} answers are missing"
            while sent < count and (due := begin + sent * interval_s) <= now:
                self._correlation_id += 1
                lanes[sent % len(lanes)].send(self._correlation_id, due)
                self._lateness_s.append(time.perf_counter() - due)
                sent += 1
            wait_s = begin + sent * interval_s - time.perf_counter() if sent < count else 1.0
            self._receive(max(0.0, wait_s))

    def _receive(self, wait_s: float) -> None:
        # `select` waits in microseconds, `poll` and `epoll` in whole milliseconds.
        for descriptor in select.select(self._descriptors, [], [], wait_s)[0]:
            answered = self._by_descriptor[descriptor].receive()
            now = time.perf_counter()
            self._latency_s.extend(now - intended_s for intended_s in answered)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds by name."""
    ordered = sorted(seconds)
    return {name: percentile(ordered, percent) * 1e3 for name, percent in PERCENTILES.items()}


if __name__ == "__main__":
    gc.disable()  # a collection of the pacer's own would look like the server's
    carry_out(PaceOrder, lambda order: Pacer(order).run())
