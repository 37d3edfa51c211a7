"""A lean consumer in its own process: `python -m benchmarks.reader JSON`, JSON on stdout.

Reads one partition of equal batches from its start to a known end, one fetch after the other as
consumers do, into a buffer that is used again and again. Invariant: what it counts are whole
batches, each once, in order; every response is looked at for its first batch's offset.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.processes import carry_out
from benchmarks.wire import FETCH_VERSION, FetchFrame, connected
from moldau.cli.bench.figures import taken
from moldau.protocol.headers import decode_response
from moldau.protocol.messages.p01_fetch import FetchRequest

_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
RECEIVE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What to read from whom: batches of `batch_bytes` with `batch_records` records each."""

    host: str
    port: int
    server_pid: int
    topic: str
    fetch_bytes: int
    batch_bytes: int
    batch_records: int
    batch_count: int
    checks_batches: bool = True
    trust_path: str = ""
    """Authorities of TLS; PLAINTEXT without."""
    partition: int = 0


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What was measured from the first response with data to the last."""

    request_count: int
    data_bytes: int
    seconds: float
    server_user_seconds: float
    server_system_seconds: float
    reader_cpu_seconds: float

    @property
    def megabytes_per_second(self) -> float:
        """Bytes of batches, 10^6 each."""
        return self.data_bytes / self.seconds / 1e6

    @property
    def server_seconds_per_gigabyte(self) -> float:
        """User and system time of the server per 10^9 bytes."""
        total = self.server_user_seconds + self.server_system_seconds
        return total / (self.data_bytes / 1e9)

    @property
    def server_user_seconds_per_gigabyte(self) -> float:
        """User time alone: where a copy in user space would show."""
        return self.server_user_seconds / (self.data_bytes / 1e9)


class Reader:
    """One consumer on one connection."""

    def __init__(self, order: ReadOrder) -> None:
        self._order = order
        self._frame = FetchFrame(
            order.topic, partition=order.partition, max_bytes=order.fetch_bytes
        )
        self._socket = connected(order.host, order.port, trust_path=order.trust_path)
        self._buffer = bytearray(order.fetch_bytes + RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        # Touch every page before the clock runs.
        self._buffer[:] = bytes(len(self._buffer))

    def run(self) -> ReadOutcome:
        """Read to the end."""
        with taken(self._order.server_pid) as cost:
            request_count, data_bytes, begin = self.read()
            seconds = time.perf_counter() - begin
        self.close()
        return ReadOutcome(
            request_count,
            data_bytes,
            seconds,
            *cost.user_and_system[self._order.server_pid],
            cost.own_cpu_seconds,
        )

    def read(self) -> tuple[int, int, float]:
        """Requests, bytes of batches, and when the first one was asked for that had any."""
        order = self._order
        batches_read = request_count = data_bytes = 0
        begin = 0.0
        while batches_read < order.batch_count:
            asked = time.perf_counter()
            size_bytes = self.fetch(batches_read * order.batch_records, request_count)
            new = size_bytes // order.batch_bytes
            request_count += 1
            if not new:
                self._expect_nothing(size_bytes)
                continue
            begin = begin or asked
            if order.checks_batches:
                self._check(size_bytes, batches_read, new)
            batches_read += new
            data_bytes += new * order.batch_bytes
        return request_count, data_bytes, begin

    @property
    def view(self) -> memoryview:
        """Where the last response lies, behind its size prefix of four bytes."""
        return self._view

    def fetch(self, offset: int, correlation_id: int) -> int:
        """Ask from that offset on; the response's size without the prefix."""
        self._frame.ask_for(offset, correlation_id)
        self._socket.sendall(self._frame.frame)
        return self._receive()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> int:
        """Read one response to the front of the buffer; its size without the prefix."""
        view, receive = self._view, self._socket.recv_into
        filled = 0
        end = 4
        while filled < end:
            count = receive(view[filled : filled + RECEIVE_BYTES])
            if count == 0:
                raise ConnectionError("the server closed the connection")
            if filled < 4 <= filled + count:
                end = 4 + _INT32.unpack_from(view)[0]
                assert end <= len(view), f"a response of {end} bytes to a fetch of less"
            filled += count
        assert filled == end, "more than one response"
        return end - 4

    def _expect_nothing(self, size_bytes: int) -> None:
        """A response without a whole batch must at least be no error."""
        _, response = decode_response(
            FetchRequest.API_KEY, FETCH_VERSION, bytearray(self._view[4 : 4 + size_bytes])
        )
        answered: Any = response
        errors = [answered.error_code, *(p.error_code for p in answered.responses[0].partitions)]
        assert not any(errors), f"fetch answered errors {errors}"

    def _check(self, size_bytes: int, batches_read: int, new: int) -> None:
        """The first batch must be the one asked for, right after the response's own fields."""
        order = self._order
        wanted = _INT64.pack(batches_read * order.batch_records)
        wanted += _INT32.pack(order.batch_bytes - 12)
        head_bytes = size_bytes - new * order.batch_bytes + 4
        head = bytes(self._view[: min(head_bytes, 512) + len(wanted)])
        assert head.find(wanted) > 0, "the response does not begin with the batch asked for"


if __name__ == "__main__":
    carry_out(ReadOrder, lambda order: Reader(order).run())
