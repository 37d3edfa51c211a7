"""A lean producer in its own process: `python -m benchmarks.sender JSON`, JSON on stdout.

One encoded batch is sent again and again with its sequence and CRC patched in place, a fixed number
of requests in flight, over a blocking socket. It reads the server's CPU time from /proc around the
timed part. Invariant: every counted request was answered without an error, and a broker's offsets
prove that each was appended once.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.processes import carry_out
from benchmarks.wire import CLIENT_ID, ProduceAnswers, ProduceFrame, connected
from moldau.cli.bench.figures import taken


@dataclass(frozen=True, slots=True)
class SendOrder:
    """What to send to whom."""

    host: str
    port: int
    server_pid: int
    topic: str
    record_bytes: int
    batch_bytes: int
    warm_up_count: int
    request_count: int
    in_flight_count: int
    producer_id: int = -1
    producer_epoch: int = -1
    checks_offsets: bool = True
    partitions: Sequence[int] = (0,)
    """Whose turn it is goes round, request by request."""
    trust_path: str = ""
    """Authorities of TLS; PLAINTEXT without."""
    client_id: str = CLIENT_ID


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What was measured over the timed requests."""

    request_count: int
    batch_bytes: int
    record_count: int
    seconds: float
    server_user_seconds: float
    server_system_seconds: float
    sender_cpu_seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """Bytes of batches, 10^6 each."""
        return self.request_count * self.batch_bytes / self.seconds / 1e6

    @property
    def server_microseconds_per_request(self) -> float:
        """User and system time of the server."""
        total = self.server_user_seconds + self.server_system_seconds
        return total / self.request_count * 1e6


@dataclass(slots=True)
class _Lane:
    """One partition's requests: the frame that is sent again, the offset that comes next."""

    frame: ProduceFrame
    next_offset: int = -1


class Sender:
    """One connection with requests in flight."""

    def __init__(self, order: SendOrder) -> None:
        self._lanes = [
            _Lane(
                ProduceFrame(
                    order.topic,
                    record_bytes=order.record_bytes,
                    batch_bytes=order.batch_bytes,
                    partition_index=index,
                    producer_id=order.producer_id,
                    producer_epoch=order.producer_epoch,
                    client_id=order.client_id,
                )
            )
            for index in order.partitions
        ]
        self._turns = itertools.cycle(self._lanes)
        self._frame = self._lanes[0].frame
        self._order = order
        self._socket = connected(order.host, order.port, trust_path=order.trust_path)
        self._answers = ProduceAnswers(self._socket, self._frame)
        self._in_flight: deque[_Lane] = deque()
        self._correlation_id = 0

    @property
    def batch_bytes(self) -> int:
        """Of every request's batch."""
        return self._frame.batch_bytes

    @property
    def record_count(self) -> int:
        """Of every request's batch."""
        return self._frame.record_count

    def run(self) -> SendOutcome:
        """Warm up, then send and measure."""
        order = self._order
        self.warm_up()
        with taken(order.server_pid) as cost:
            self.send()
        self.close()
        return SendOutcome(
            order.request_count,
            self._frame.batch_bytes,
            self._frame.record_count,
            cost.seconds,
            *cost.user_and_system[order.server_pid],
            cost.own_cpu_seconds,
        )

    def warm_up(self) -> None:
        """Send what is not timed, and wait for its answers."""
        self._send(self._order.warm_up_count)

    def send(self, request_count: int | None = None) -> None:
        """Send what is timed, or so many requests, and wait for the answers."""
        self._send(self._order.request_count if request_count is None else request_count)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self, count: int) -> None:
        send, in_flight = self._socket.sendall, self._in_flight
        limit = self._order.in_flight_count
        for lane in itertools.islice(self._turns, count):
            self._correlation_id += 1
            lane.frame.advance(self._correlation_id)
            send(lane.frame.frame)
            in_flight.append(lane)
            if len(in_flight) >= limit:
                self._receive()
        while in_flight:
            self._receive()

    def _receive(self) -> None:
        """Wait for at least one response."""
        while not (offsets := self._answers.take()):
            pass
        for base_offset in offsets:
            lane = self._in_flight.popleft()
            if self._order.checks_offsets:
                assert base_offset == lane.next_offset or lane.next_offset < 0, "a gap"
                lane.next_offset = base_offset + lane.frame.record_count


if __name__ == "__main__":
    carry_out(SendOrder, lambda order: Sender(order).run())
