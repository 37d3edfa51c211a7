"""What the loads, also those of benchmarks/, share: requests, tasks, percentiles, costs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.types import ZERO_UUID

PRODUCE_TIMEOUT_MS: Final = 30_000


def payload(size_bytes: int) -> bytes:
    """Bytes that do not compress to nothing, the same in every run."""
    pattern = bytes((i * 131 + (i >> 8) * 31) & 0xFF for i in range(min(size_bytes, 65_536)))
    return (pattern * (size_bytes // max(1, len(pattern)) + 1))[:size_bytes]


def produce_request(
    topic: str,
    batches: Mapping[int, bytes | bytearray],
    *,
    acks: int = -1,
    topic_id: UUID = ZERO_UUID,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """A request with a batch for each of these partitions."""
    data = [
        PartitionProduceData(index=index, records=memoryview(batch))
        for index, batch in batches.items()
    ]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)],
    )


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Waits for its tasks; the first failure ends all of them, and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the sorted values that so large a part does not exceed."""
    # In whole numbers: 99.9 % of 1,000 values are 999 of them, in floats a little more.
    return ordered[max(0, -(-round(percent * 1e4) * len(ordered) // 10**6) - 1)]


def percentiles(name: str, values: Sequence[float], percents: Sequence[float]) -> dict[str, float]:
    """Milliseconds by `NAME_pPERCENT_ms`; nothing without values."""
    ordered = sorted(values)
    return {
        f"{name}_p{percent:g}_ms": round(percentile(ordered, percent), 3)
        for percent in percents
        if ordered
    }


@dataclass(slots=True)
class Cost:
    """What something took: seconds, CPU seconds of this process, and user and system CPU seconds
    of others by their ids.
    """

    seconds: float = 0.0
    own_cpu_seconds: float = 0.0
    user_and_system: dict[int, tuple[float, float]] = field(default_factory=dict)

    def cpu_seconds(self, pid: int) -> float:
        return sum(self.user_and_system[pid])

    def share(self, pid: int) -> float:
        """CPU seconds of a process in each second."""
        return self.cpu_seconds(pid) / self.seconds


@contextmanager
def taken(*pids: int) -> Iterator[Cost]:
    """What all inside takes; nothing when that fails. Raises: OSError"""
    cost, before = Cost(), {pid: process_cpu_seconds(pid) for pid in pids}
    begin, cpu_begin = time.perf_counter(), time.process_time()
    yield cost
    cost.seconds = time.perf_counter() - begin
    cost.own_cpu_seconds = time.process_time() - cpu_begin
    for pid, (user, system) in before.items():
        user_now, system_now = process_cpu_seconds(pid)
        cost.user_and_system[pid] = (user_now - user, system_now - system)


def process_cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process so far, all its threads. Raises: OSError, also where there
    is no /proc.
    """
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    user, system = after_name.split()[11:13]
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return int(user) / ticks_per_second, int(system) / ticks_per_second


def memory_bytes(key: str, pid: int | str = "self") -> int:
    """VmRSS, or VmHWM (the most so far), of a process; 0 where no /proc says it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(each.split()[1]) * 1024 for each in lines if each.startswith(key + ":")), 0)
