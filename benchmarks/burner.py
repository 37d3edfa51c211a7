"""A process that takes processor time and talks to none: `python -m benchmarks.burner JSON`.

Runs and sleeps by turns, for a share of the time and so many times a second, until it is killed:
beside it a latency shows what a neighbour on the machine costs, without one at the broker. An idle
one keeps cores busy that would be idle else, and makes way at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from benchmarks.processes import given

MOST_SHARE: Final = 0.99


@dataclass(frozen=True, slots=True)
class BurnOrder:
    """How much processor time to take, and how often to wake up for it, per second.

    Attributes:
        cores: where to run; where it was started, when empty.
        is_idle: whether to run only when nothing else of the machine would.
    """

    cpu_seconds: float
    wake_ups: float
    cores: Sequence[int] = ()
    is_idle: bool = False


def burn(order: BurnOrder) -> NoReturn:
    """Never ends."""
    if order.cores:
        os.sched_setaffinity(0, order.cores)
    if order.is_idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    share = min(order.cpu_seconds, MOST_SHARE)
    piece_s = share / order.wake_ups
    print("burning", flush=True)
    begin, begin_cpu = time.monotonic(), time.thread_time()
    piece_end = begin_cpu
    while True:
        piece_end += piece_s
        while (used := time.thread_time()) < piece_end:
            pass
        rest_s = begin + (used - begin_cpu) / share - time.monotonic()
        if rest_s > 0:
            time.sleep(rest_s)


if __name__ == "__main__":
    burn(given(BurnOrder))
