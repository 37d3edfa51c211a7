"""Followers for tests: real partitions on real logs, fetched by a real FetcherManager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from moldau.broker.replica.context import ReplicationContext
from moldau.broker.replica.core.in_sync_set import PartitionState
from moldau.broker.replica.partition import Partition
from moldau.broker.replica.replica_fetcher import FetcherManager, FetcherSettings, FetcherShare
from moldau.broker.replica.topic_stats import BrokerTopicStats
from moldau.metadata.image import MetadataImage
from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.connector import Connector
from moldau.runtime.filesystem import OsFilesystem
from moldau.runtime.network import Network
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.server import ListenerSpec, Server
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.kit.manual_clock import ManualClock
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, topic_id_of

HOST = "127.0.0.1"


def bytes_of(log: Log) -> bytes:
    """All batches of a log, as its files hold them."""
    found = b""
    for segment in log.segments:
        found += segment.file().pread(segment.size_bytes, 0)
    return found


def segment_ends(log: Log) -> int:
    return sum(segment.size_bytes for segment in log.segments)


@asynccontextmanager
async def serving(leader: DataPath, port: int = 0) -> AsyncIterator[Server]:
    """The leader's production handlers on loopback; `server.port("PLAINTEXT")` says where."""
    server = Server(leader.router, offload=leader.filesystem.offload)
    await server.start([ListenerSpec("PLAINTEXT", HOST, port)])
    try:
        yield server
    finally:
        await server.close(0)


class LonelyContext(ReplicationContext):
    """The cluster of a broker that knows no others: every broker is eligible, and proposals get no
    answer.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(
            max_lag_ms=30_000,
            clock=clock,
            broker_epoch=lambda: -1,
            image=lambda: MetadataImage.EMPTY,
            registry=Registry(clock.monotonic_ms),
        )

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return True


class Followers:
    """Broker 2's side: followers of broker 1. Use as an async context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock | None = None,
        throttle: Any = None,
        network: Network | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.clock: Any = clock or ManualClock()
        self.filesystem = OsFilesystem()
        self.registry = Registry(self.clock.monotonic_ms)
        self.stats = BrokerTopicStats(self.registry)
        self.faults: list[BaseException] = []
        self.context = LonelyContext(self.clock)
        self.applied_count = 0
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.work: set[asyncio.Task[None]] = set()
        self.fetchers = FetcherManager(
            FetcherShare(
                OTHER_BROKER_ID,
                lambda: OTHER_BROKER_ID,
                Connector(network, self.clock),
                self.clock,
                FetcherSettings(**settings),
                throttle,
                self._applied,
            ),
            self.registry,
            self.faults.append,
        )

    async def __aenter__(self) -> Followers:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.fetchers.close()
        while self.work:
            await asyncio.wait(self.work)
        for partition in self.partitions.values():
            if partition.log is not None and not partition.log.offline:
                partition.log.close()
        self.filesystem.close()
        if exception[0] is None:
            assert self.faults == []

    def partition(
        self, topic: str, index: int = 0, *, config: LogConfig | None = None
    ) -> Partition:
        """The replica of that name, made with an empty log when new."""
        known = self.partitions.get((topic, index))
        if known is not None:
            return known
        name = TopicPartition(topic, index)
        made = Partition(
            name,
            topic_id_of(topic),
            OTHER_BROKER_ID,
            stats=self.stats.of(topic),
            start_work=self._start,
            flush=self._flush,
            submit_isr_change=lambda partition, change: None,
            context=self.context,
        )
        made.log = Log.open(
            self.filesystem,
            self.clock,
            str(self.directory / f"{topic}-{index}"),
            name,
            config or LogConfig(),
            topic_id=topic_id_of(topic),
        )
        self.partitions[topic, index] = made
        return made

    def log(self, topic: str, index: int = 0) -> Log:
        log = self.partition(topic, index).log
        assert log is not None
        return log

    def become(self, topic: str, index: int = 0, *, leader_epoch: int = 0, leader: int) -> None:
        """The controller's word about a replica."""
        self.partition(topic, index).apply_state(
            PartitionState(
                leader_id=leader,
                leader_epoch=leader_epoch,
                partition_epoch=leader_epoch,
                replicas=(BROKER_ID, OTHER_BROKER_ID),
                isr=(BROKER_ID, OTHER_BROKER_ID),
            )
        )

    def follow(
        self,
        topic: str,
        index: int = 0,
        *,
        port: int,
        leader_epoch: int = 0,
        leader: int = BROKER_ID,
    ) -> None:
        """Follow broker 1 at that port."""
        self.become(topic, index, leader_epoch=leader_epoch, leader=leader)
        self.fetchers.follow(self.partition(topic, index), leader, (HOST, port))

    def metric(self, name: str, **labels: str) -> float:
        for metric in self.registry.collect():
            if (
                metric.name.endswith("name=" + name)
                and labels.items() <= dict(metric.labels).items()
            ):
                return float(metric.instrument.value)  # type: ignore[union-attr]
        raise AssertionError(f"no metric {name}")

    def _applied(self) -> None:
        self.applied_count += 1

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.work.add(task)
        task.add_done_callback(self.work.discard)

    async def _flush(self, log: Log) -> bool:
        job = log.start_flush()
        if job is not None:
            await self.filesystem.offload(job.run)
            log.finish_flush(job)
        return not log.offline


class ScriptedLeader:
    """A TCP server whose connections are handed to a coroutine of the test."""

    def __init__(self, script: Any) -> None:
        self._script = script
        self.connection_count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedLeader:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(4, "big") + frame)
