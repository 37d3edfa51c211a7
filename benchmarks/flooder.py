"""A client that floods a coordinator with commits: `python -m benchmarks.flooder JSON`.

One connection, one small commit sent again and again, as many in flight as the socket takes. Prints
a line when the first answers have come, then goes on until it is terminated, and prints as JSON
what that took.
"""

from __future__ import annotations

import json
import resource
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass
from typing import Final, NoReturn

from benchmarks.processes import given
from benchmarks.wire import commit_frame

FRAMES_AT_ONCE: Final = 64
FIRST_ANSWERS_BYTES: Final = 4_096
RECEIVE_BYTES: Final = 256 * 1024
SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class FloodOrder:
    """Whom to flood, with commits of which group and topic."""

    host: str
    port: int
    group_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class FloodCost:
    """What the flooder did and took, per second of the clock, since the first answers."""

    answers: float
    cpu_seconds: float
    wake_ups: float


class _Meter:
    """Counts from its making on; all answers are as long as the first."""

    def __init__(self, first: bytes) -> None:
        self.received_bytes = 0
        self._answer_bytes = SIZE_BYTES + int.from_bytes(first[:SIZE_BYTES])
        self._begin = self._now()

    def _now(self) -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.monotonic(), usage.ru_utime + usage.ru_stime, usage.ru_nvcsw

    def cost(self) -> FloodCost:
        """So far."""
        elapsed_s, cpu_s, wake_ups = (
            now - begin for now, begin in zip(self._now(), self._begin, strict=True)
        )
        answers = self.received_bytes / self._answer_bytes
        return FloodCost(answers / elapsed_s, cpu_s / elapsed_s, wake_ups / elapsed_s)


def _end(*_: object) -> NoReturn:
    raise SystemExit


def flood(order: FloodOrder) -> None:
    """Ends by SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    frames = memoryview(commit_frame(order.group_id, order.topic) * FRAMES_AT_ONCE)
    flooding = socket.create_connection((order.host, order.port))
    flooding.setblocking(False)
    left = frames
    meter = None
    first = b""
    try:
        while True:
            readable, writable, _ = select.select([flooding], [flooding], [])
            if readable:
                received = flooding.recv(RECEIVE_BYTES)
                if not received:
                    raise ConnectionError("the broker has closed the connection")
                if meter is not None:
                    meter.received_bytes += len(received)
                elif len(first := first + received) >= FIRST_ANSWERS_BYTES:
                    meter = _Meter(first)
                    print("flooding", flush=True)
            if writable:
                left = left[flooding.send(left) :] or frames
    finally:
        if meter is not None:
            print(json.dumps(asdict(meter.cost())), flush=True)


if __name__ == "__main__":
    flood(given(FloodOrder))
