"""Several readers at once, one connection each: `python -m benchmarks.readers JSON`.

Owns that they begin together, and the CPU time of the server during that. Each is a
`benchmarks.reader` in its own thread. Invariant: bytes are counted when received, over the
time from the first begin to the last end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.processes import carry_out
from benchmarks.reader import Reader, ReadOrder, ReadOutcome
from benchmarks.senders import SWITCH_INTERVAL_S
from moldau.cli.bench.figures import taken


@dataclass(frozen=True, slots=True)
class ReadersOrder:
    """What to read over which connections."""

    readers: Sequence[ReadOrder]
    server_pid: int


def run(order: ReadersOrder) -> ReadOutcome:
    """Read everything, and measure all of them together."""
    readers = [Reader(each) for each in order.readers]
    with ThreadPoolExecutor(len(readers)) as threads:
        start = threading.Barrier(len(readers) + 1)
        waiting = [threads.submit(_read_from, reader, start) for reader in readers]
        with taken(order.server_pid) as cost:
            start.wait()
            counts = [each.result() for each in waiting]
    for reader in readers:
        reader.close()
    return ReadOutcome(
        sum(request_count for request_count, _, _ in counts),
        sum(data_bytes for _, data_bytes, _ in counts),
        cost.seconds,
        *cost.user_and_system[order.server_pid],
        cost.own_cpu_seconds,
    )


def _read_from(reader: Reader, start: threading.Barrier) -> tuple[int, int, float]:
    start.wait()
    return reader.read()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    carry_out(ReadersOrder, run)
