"""The replica fetchers of a broker.

Owns the fetchers, one for each leader and fetcher number, and which partition belongs to which.
Must not talk to leaders, or decide which broker leads. Invariants: a partition is fetched by at
most one fetcher; a fetcher without partitions ends; every fetcher has ended when `close` returns.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.replica_fetcher import (
    Endpoint,
    FetcherMeters,
    FetcherSettings,
    FetcherShare,
    ReplicaFetcher,
)
from moldau.broker.replica.topic_stats import METRIC_PREFIX as TOPIC_METRIC_PREFIX
from moldau.protocol.framing import ReceiveMemory
from moldau.runtime.network import AsyncioNetwork

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.throttle import ReplicationQuota
    from moldau.protocol.types import TopicPartition
    from moldau.runtime.clock import Clock
    from moldau.runtime.network import Network
    from moldau.runtime.telemetry.metrics import Meter, Registry

logger = logging.getLogger("moldau.broker.replica.replication")

METRIC_PREFIX: Final = "kafka.server:type=ReplicaFetcherManager,name="
FETCHER_METRIC_PREFIX: Final = "kafka.server:type=FetcherStats,name="
CLIENT_ID: Final = "Replica"

POOLED_BYTES: Final = 2 * 1024 * 1024
"""Unused receive buffers that are kept; a new one for every answer costs more than the answer."""

NO_LIMIT_BYTES: Final = 2**62
"""`replica.fetch.response.max.bytes` limits what answers may take already."""

FetcherKey = tuple[int, int]


@dataclass(slots=True)
class _Assignment:
    partition: Partition
    leader_id: int
    endpoint: Endpoint | None
    fetcher: ReplicaFetcher | None = None


class FetcherManager:
    """The fetchers of one broker. Belongs to the data loop.

    Args:
        broker_epoch: of this broker, as it is when a request is made.
        network, clock: the simulation's, or the machine's.
        throttle: what followers may fetch; None for no limit.
        on_applied: called after fetched records were applied, once for many partitions.
        on_fault: told of an unexpected exception in a fetcher.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        network: Network | None,
        clock: Clock,
        settings: FetcherSettings,
        registry: Registry,
        throttle: ReplicationQuota | None,
        on_applied: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._share = FetcherShare(
            broker_id,
            broker_epoch,
            network or AsyncioNetwork(),
            clock,
            settings,
            throttle,
            on_applied,
            ReceiveMemory(NO_LIMIT_BYTES, pool_limit_bytes=POOLED_BYTES),
        )
        self._fetcher_count = settings.num_fetchers
        self._registry = registry
        self._on_fault = on_fault
        self._assignments: dict[TopicPartition, _Assignment] = {}
        self._fetchers: dict[FetcherKey, ReplicaFetcher] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._dead_count = 0
        self._sweeps = False
        self._is_closed = False
        self._bytes_in = registry.meter(TOPIC_METRIC_PREFIX + "ReplicationBytesInPerSec")
        self._register_gauges()

    def follow(self, partition: Partition, leader_id: int, endpoint: Endpoint | None) -> None:
        """Fetch the partition from that broker, or go on with it, because its state has changed.

        Args:
            endpoint: `(host, port)` of the leader; None while it is unknown: the partition waits
                for another call.
        """
        if self._is_closed:
            return
        name = partition.topic_partition
        assignment = self._assignments.get(name)
        if assignment is None or assignment.partition is not partition:
            if assignment is not None:
                self._release(assignment)
            assignment = self._assignments[name] = _Assignment(partition, leader_id, endpoint)
        assignment.leader_id = leader_id
        assignment.endpoint = endpoint
        self._place(assignment)

    def unfollow(self, partition: Partition) -> None:
        assignment = self._assignments.get(partition.topic_partition)
        if assignment is not None and assignment.partition is partition:
            del self._assignments[partition.topic_partition]
            self._release(assignment)

    def resize(self, num_replica_fetchers: int) -> None:
        if num_replica_fetchers == self._fetcher_count:
            return
        self._fetcher_count = num_replica_fetchers
        for assignment in list(self._assignments.values()):
            self._place(assignment)

    async def close(self) -> None:
        """End every fetcher; answers that are being applied are applied to the end."""
        self._is_closed = True
        self._assignments.clear()
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    @property
    def fetchers(self) -> list[ReplicaFetcher]:
        return list(self._fetchers.values())

    def _place(self, assignment: _Assignment) -> None:
        if assignment.endpoint is None:
            self._release(assignment)
            return
        name = assignment.partition.topic_partition
        number = (zlib.crc32(name.topic.encode()) + name.partition) % self._fetcher_count
        key = (assignment.leader_id, number)
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = self._start(*key, assignment.endpoint)
        else:
            fetcher.move_to(assignment.endpoint)
        if assignment.fetcher is not fetcher:
            self._release(assignment)
            assignment.fetcher = fetcher
        fetcher.follow(assignment.partition)

    def _release(self, assignment: _Assignment) -> None:
        fetcher, assignment.fetcher = assignment.fetcher, None
        if fetcher is None:
            return
        fetcher.unfollow(assignment.partition)
        if not len(fetcher.partitions) and not self._sweeps:
            # Not at once: the same metadata change may bring the fetcher other partitions.
            self._sweeps = True
            asyncio.get_running_loop().call_soon(self._end_unused)

    def _end_unused(self) -> None:
        self._sweeps = False
        for key, fetcher in list(self._fetchers.items()):
            if not len(fetcher.partitions):
                del self._fetchers[key]
                fetcher.close()
                self._forget_meters(fetcher)

    def _start(self, leader_id: int, number: int, endpoint: Endpoint) -> ReplicaFetcher:
        name = f"broker-{self._share.replica_id}-fetcher-{number}"
        meters = FetcherMeters(
            self._meter("RequestsPerSec", name, leader_id),
            self._meter("BytesPerSec", name, leader_id),
            self._bytes_in,
        )
        fetcher = ReplicaFetcher(name, leader_id, endpoint, meters, self._share)
        task = fetcher.start()
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return fetcher

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._dead_count += 1
            logger.error("a replica fetcher has died", exc_info=error)
            self._on_fault(error)

    def _meter(self, name: str, client_id: str, leader_id: int) -> Meter:
        return self._registry.meter(
            FETCHER_METRIC_PREFIX + name, clientId=client_id, brokerId=str(leader_id)
        )

    def _forget_meters(self, fetcher: ReplicaFetcher) -> None:
        for name in ("RequestsPerSec", "BytesPerSec"):
            self._registry.remove(
                FETCHER_METRIC_PREFIX + name,
                clientId=fetcher.name,
                brokerId=str(fetcher.leader_id),
            )

    def _register_gauges(self) -> None:
        def gauge(name: str, value: Callable[[], float]) -> None:
            self._registry.gauge(METRIC_PREFIX + name, value, clientId=CLIENT_ID)

        gauge(
            "MaxLag", lambda: float(max((f.partitions.max_lag for f in self.fetchers), default=0))
        )
        gauge(
            "MinFetchRate",
            lambda: min((f.meters.requests.rate() for f in self.fetchers), default=0.0),
        )
        gauge(
            "FailedPartitionsCount",
            lambda: float(sum(f.partitions.failed_count for f in self.fetchers)),
        )
        gauge("DeadThreadCount", lambda: float(self._dead_count))
