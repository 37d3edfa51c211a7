"""How much memory the client takes when it may not take more: slow brokers, slow users.

Owns the loads in processes of their own (`python -m benchmarks.client_memory JSON`), which sample
their own anonymous memory while they run, and the proxy that makes a broker slow. Growth is counted
from what the process has after a first small turn, with everything imported and connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.figures import Effort, Report, Spread, Table, at_most
from benchmarks.machine import anonymous_bytes
from benchmarks.nodes import HOST, MoldauNode, free_ports, temporary_directory
from benchmarks.processes import carry_out, run_load

TOPIC: Final = "memory"
PARTITION_COUNT: Final = 8
MIB: Final = 2**20
BUFFER_BYTES: Final = 32 * MIB
FETCH_BYTES: Final = 8 * MIB
PARTITION_FETCH_BYTES: Final = MIB
SLOW_BYTES_PER_SECOND: Final = 150_000_000
"""What the proxy lets through: less than either way of producing brings."""
VALUE_BYTES: Final = 1024
BATCH_ROWS: Final = 4096
SAMPLE_S: Final = 0.02
DEADLINE_S: Final = 900
PIECE_BYTES: Final = 128 * 1024
NODE_SETTINGS: Final = {
    # Ten gigabytes go through, but need not stay.
    "log.segment.bytes": str(64 * MIB),
    "log.retention.check.interval.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """What to send or read. `name` is one of `LOADS`."""

    name: str
    bootstrap: str
    total_bytes: int


@dataclass(slots=True)
class MemoryOutcome:
    """Growth is of anonymous memory; `held_bytes` is the most that the client itself counted."""

    growth_bytes: int = 0
    held_bytes: int = 0
    seconds: float = 0.0


class SlowProxy:
    """Forwards connections to one port; what clients send passes at a limited rate, all together.

    Owns its threads and sockets. Leaving the context ends them.
    """

    def __init__(self, target_port: int, port: int, bytes_per_second: float) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((HOST, port))
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._due_s = 0.0
        self._sockets = [self._listener]

    def __enter__(self) -> SlowProxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                # A large buffer of the kernel's would hide how slow it is.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
                node = socket.create_connection((HOST, self._target_port))
                self._sockets += [client, node]
                self._start(self._forward, client, node, True)
                self._start(self._forward, node, client, False)

    def _forward(self, source: socket.socket, sink: socket.socket, is_slow: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if is_slow:
                    self._wait(len(piece))
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _wait(self, size_bytes: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._due_s = max(self._due_s, now_s) + size_bytes / self._rate
            wait_s = self._due_s - now_s
        if wait_s > 0.001:
            time.sleep(wait_s)


# -- in the process under load --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def sampled(outcome: MemoryOutcome, held: Callable[[], int]) -> AsyncIterator[None]:
    """Watch memory and what the client counts itself, while the inside runs."""
    base = anonymous_bytes(os.getpid())
    begin = time.perf_counter()

    async def sample() -> None:
        while True:
            outcome.growth_bytes = max(outcome.growth_bytes, anonymous_bytes(os.getpid()) - base)
            outcome.held_bytes = max(outcome.held_bytes, held())
            await asyncio.sleep(SAMPLE_S)

    task = asyncio.create_task(sample())
    try:
        yield
    finally:
        outcome.seconds = time.perf_counter() - begin
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _producer(order: MemoryOrder) -> Any:
    from moldau.client import Producer

    return Producer(order.bootstrap, buffer_memory=BUFFER_BYTES)


def _held(producer: Any) -> Callable[[], int]:
    accumulator = producer._accumulator
    return lambda: int(BUFFER_BYTES - accumulator.free_bytes)


def _batches(total_bytes: int) -> Any:
    """A stream of that many bytes, made as it is read, of one and the same batch."""
    import pyarrow as pa

    batch = pa.record_batch({"value": pa.repeat(pa.scalar(bytes(VALUE_BYTES)), BATCH_ROWS)})
    count = -(-total_bytes // (VALUE_BYTES * BATCH_ROWS))

    def batches() -> Iterator[Any]:
        for _ in range(count):
            yield batch

    return pa.RecordBatchReader.from_batches(batch.schema, batches())


async def _send_arrow(order: MemoryOrder, outcome: MemoryOutcome) -> None:
    async with _producer(order) as producer:
        await producer.send_arrow(TOPIC, _batches(8 * MIB))
        async with sampled(outcome, _held(producer)):
            await producer.send_arrow(TOPIC, _batches(order.total_bytes))


async def _send_nowait(order: MemoryOrder, outcome: MemoryOutcome) -> None:
    from moldau.client import BufferFull

    value = bytes(VALUE_BYTES)
    async with _producer(order) as producer:

        async def send(total_bytes: int) -> None:
            for _ in range(total_bytes // VALUE_BYTES):
                while True:
                    try:
                        producer.send_nowait(TOPIC, value)
                        break
                    except BufferFull:
                        await producer.wait_for_room()
            await producer.flush()

        await send(8 * MIB)
        async with sampled(outcome, _held(producer)):
            await send(order.total_bytes)


async def _read_slowly(order: MemoryOrder, outcome: MemoryOutcome) -> None:
    from moldau.client import Consumer, TopicPartition

    async with Consumer(
        order.bootstrap,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    ) as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)])

        async def read(total_bytes: int) -> None:
            left = total_bytes
            while left > 0:
                found = await consumer.getmany(1000, timeout_ms=10_000)
                assert found, "nothing more came"
                left -= VALUE_BYTES * sum(len(records) for records in found.values())
                # Slower than fetching: what is fetched ahead waits, up to its limit.
                await asyncio.sleep(SAMPLE_S / 4)

        await read(MIB)
        async with sampled(outcome, lambda: consumer._buffer.memory.pinned_bytes):
            await read(order.total_bytes)


Load = Callable[[MemoryOrder, MemoryOutcome], Coroutine[Any, Any, None]]
LOADS: Final[dict[str, Load]] = {
    "send_arrow": _send_arrow,
    "send_nowait": _send_nowait,
    "getmany": _read_slowly,
}


def run(order: MemoryOrder) -> MemoryOutcome:
    """Carry it out."""
    import uvloop

    outcome = MemoryOutcome()
    uvloop.run(LOADS[order.name](order, outcome))
    return outcome


# -- in the benchmark -----------------------------------------------------------------------------


def measure_memory(report: Report, effort: Effort) -> None:
    """Add a table and two targets."""
    table = Table(
        ("what", "MB in all", "MB/s", "limit, MiB", "client's own count, MiB", "growth, MiB"),
        "Memory (growth of anonymous memory, the largest seen):",
    )
    # One turn: it takes minutes, and what counts is the largest figure ever seen.
    produced = [("send_arrow", 10_000), ("send_nowait", 1_000)]
    for name, full_mb in produced:
        order_bytes = effort.count(full_mb, 20) * 1_000_000
        outcome = _through_slow_broker(name, order_bytes)
        _add(table, name, order_bytes, BUFFER_BYTES, outcome)
        report.targets.append(
            at_most(
                f"memory: {order_bytes / 1e9:,.2f} GB by {name} through a slow broker: "
                "buffer.memory used, of what is configured",
                Spread.of([outcome.held_bytes / BUFFER_BYTES]),
                1.0,
            )
        )
    read_bytes = effort.count(400, 20) * 1_000_000
    limit_bytes = 2 * FETCH_BYTES + FETCH_BYTES
    outcome = _before_a_slow_user(read_bytes)
    _add(table, "getmany, slowly", read_bytes, limit_bytes, outcome)
    report.targets.append(
        at_most(
            "memory: a consumer that is read slowly: fetched ahead, of its limit",
            Spread.of([outcome.held_bytes / limit_bytes]),
            1.0,
        )
    )
    report.tables.append(table)


def _add(
    table: Table, name: str, total_bytes: int, limit_bytes: int, outcome: MemoryOutcome
) -> None:
    table.add(
        name,
        f"{total_bytes / 1e6:,.0f}",
        f"{total_bytes / outcome.seconds / 1e6:,.0f}",
        f"{limit_bytes / MIB:.0f}",
        f"{outcome.held_bytes / MIB:.1f}",
        f"{outcome.growth_bytes / MIB:.1f}",
    )


def _through_slow_broker(name: str, total_bytes: int) -> MemoryOutcome:
    [port] = free_ports(1)
    settings = {
        **NODE_SETTINGS,
        "log.retention.bytes": str(64 * MIB),
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
    }
    with (
        temporary_directory() as directory,
        MoldauNode(directory, settings) as node,
        node.connect() as wire,
        SlowProxy(node.port, port, SLOW_BYTES_PER_SECOND),
    ):
        wire.create_topic(TOPIC, PARTITION_COUNT)
        return _run(MemoryOrder(name, f"{HOST}:{port}", total_bytes))


def _before_a_slow_user(total_bytes: int) -> MemoryOutcome:
    with (
        temporary_directory() as directory,
        MoldauNode(directory, dict(NODE_SETTINGS)) as node,
        node.connect() as wire,
    ):
        wire.create_topic(TOPIC, PARTITION_COUNT)
        bootstrap = f"{HOST}:{node.port}"
        _run(MemoryOrder("send_arrow", bootstrap, total_bytes + total_bytes // 4 + 32 * MIB))
        return _run(MemoryOrder("getmany", bootstrap, total_bytes))


def _run(order: MemoryOrder) -> MemoryOutcome:
    return run_load("client_memory", order, MemoryOutcome, place=None, deadline_s=DEADLINE_S)


if __name__ == "__main__":
    carry_out(MemoryOrder, run)
