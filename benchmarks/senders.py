"""Several senders at once, one connection each: `python -m benchmarks.senders JSON`.

Owns that they begin together and end together, and the CPU time of every server during that. Each
is a `benchmarks.sender` in its own thread: what they do most of the time is wait in system
calls.
Invariant: bytes are counted when acknowledged, over the time from the first begin to the last end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from benchmarks.processes import carry_out
from benchmarks.sender import Sender, SendOrder
from moldau.cli.bench.figures import taken

SWITCH_INTERVAL_S: Final = 0.0002
"""Who has an answer to take shall not wait the usual 5 ms for a thread that patches a frame."""


@dataclass(frozen=True, slots=True)
class SendersOrder:
    """What to send over which connections, and whose CPU time to read (name → process id)."""

    senders: Sequence[SendOrder]
    server_pids: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SendersOutcome:
    """What was measured over the timed requests of all senders."""

    request_count: int
    batch_bytes: int
    seconds: float
    sender_cpu_seconds: float
    server_cpu_seconds: Mapping[str, float]

    @property
    def megabytes_per_second(self) -> float:
        """Bytes of batches, 10^6 each."""
        return self.request_count * self.batch_bytes / self.seconds / 1e6

    @property
    def server_microseconds_per_request(self) -> float:
        """User and system time of all servers together."""
        return sum(self.server_cpu_seconds.values()) / self.request_count * 1e6


def run(order: SendersOrder) -> SendersOutcome:
    """Warm up all, then send and measure."""
    senders = [Sender(each) for each in order.senders]
    with ThreadPoolExecutor(len(senders)) as threads:
        list(threads.map(Sender.warm_up, senders))
        start = threading.Barrier(len(senders) + 1)
        waiting = [threads.submit(_send_from, sender, start) for sender in senders]
        with taken(*order.server_pids.values()) as cost:
            start.wait()
            for each in waiting:
                each.result()
    for sender in senders:
        sender.close()
    return SendersOutcome(
        sum(each.request_count for each in order.senders),
        senders[0].batch_bytes,
        cost.seconds,
        cost.own_cpu_seconds,
        {name: cost.cpu_seconds(pid) for name, pid in order.server_pids.items()},
    )


def _send_from(sender: Sender, start: threading.Barrier) -> None:
    start.wait()
    sender.send()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    carry_out(SendersOrder, run)
