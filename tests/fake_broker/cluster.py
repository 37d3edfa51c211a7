"""A fake Kafka cluster for tests of clients: N brokers, their state in memory.

Its clock and network are the machine's: virtual ones in a test with virtual time
(`tests.virtual.machine`), else loopback sockets.

Owns topics, leaders, coordinators and the brokers' life. Must use nothing of our client. Invariant:
what is acknowledged lies in the one log of its partition, whichever broker leads it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.records import Record
from moldau.protocol.types import TopicPartition
from moldau.runtime.ports import Ports
from tests.fake_broker.authentication import Security
from tests.fake_broker.faults import Action, Fault, FaultScript
from tests.fake_broker.groups import Groups
from tests.fake_broker.node import FakeNode
from tests.fake_broker.partition_log import PartitionLog
from tests.fake_broker.recorder import Recorder
from tests.fake_broker.transactions import Transactions
from tests.fake_broker.versions import KAFKA_4_3, Versions

CoordinatorKind = Literal["group", "transaction"]

FIRST_TOPIC_NUMBER = 1000


@dataclass(slots=True)
class FakePartition:
    """Who leads a partition, and its log."""

    log: PartitionLog
    leader_id: int
    replica_ids: list[int]
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class FakeTopic:
    """A topic and its partitions."""

    name: str
    topic_id: UUID
    partitions: list[FakePartition]
    configs: dict[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class Settings:
    """What a real broker has in its configuration, in values that suit tests."""

    auto_create_topics: bool = False
    forwards_admin: bool = True
    default_partition_count: int = 1
    max_message_bytes: int = 1024 * 1024 + 12
    max_request_bytes: int = 100 * 1024 * 1024
    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 1
    consumer_heartbeat_interval_ms: int = 50
    consumer_session_timeout_ms: int = 10_000
    transaction_version: int = 2
    first_producer_epoch: int = 0
    leader_hints: bool = True
    racks: Mapping[int, str] = field(default_factory=dict)


class FakeCluster:
    """Brokers 0 … N-1 (or the given ids). Use as an async context manager; leaving it raises
    AssertionError when a client broke the protocol and the test has not taken `problems` away.
    """

    def __init__(
        self,
        node_count: int = 1,
        *,
        topics: Mapping[str, int] | None = None,
        versions: Versions | Mapping[int, Versions] = KAFKA_4_3,
        security: Security | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Make the cluster on the running loop; nothing listens before it is entered.

        `topics` are partition counts by name. `versions` is one table or one by broker id.
        """
        self.ports = Ports.of_machine()
        self.settings = settings or Settings()
        self.security = security or Security()
        self.cluster_id = "fake-cluster"
        self.recorder = Recorder()
        self.faults = FaultScript()
        self.groups = Groups(self)
        self.transactions = Transactions(self)
        self.nodes = {node_id: FakeNode(self, node_id) for node_id in range(node_count)}
        self.controller_id = 0
        self.topics: dict[str, FakeTopic] = {}
        self.preferred_replicas: dict[TopicPartition, int] = {}
        self._versions = versions
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._next_topic_number = FIRST_TOPIC_NUMBER
        self._growth = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        for name, partition_count in (topics or {}).items():
            self.create_topic(name, partition_count)

    # -- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            await node.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
        if kind is None:
            assert not self.recorder.problems, self.recorder.problems

    async def close(self) -> None:
        """Stop everything."""
        self.faults.clear()
        self.groups.close()
        for node in self.nodes.values():
            await node.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker."""
        return ",".join(node.address for node in self.nodes.values())

    @property
    def problems(self) -> list[str]:
        """What clients did that the protocol forbids; tests that provoke it clear the list."""
        return self.recorder.problems

    @property
    def live_node_ids(self) -> list[int]:
        """Brokers that listen."""
        return [node.node_id for node in self.nodes.values() if node.is_running]

    def versions_of(self, node_id: int) -> Versions:
        """What a broker advertises (before what the fake cannot do is taken out)."""
        versions: Any = self._versions
        return versions[node_id] if node_id in versions and node_id in self._by_node() else versions

    def _by_node(self) -> Iterable[int]:
        versions: Any = self._versions
        first = next(iter(versions.values()), None)
        return self.nodes if isinstance(first, Mapping) else ()

    def use_versions(self, versions: Versions) -> None:
        """Another release from now on (connections that are open have asked already)."""
        self._versions = versions

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.ports.clock.now_ms()

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run something until it ends or the cluster closes."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- script ---------------------------------------------------------------------------------

    def fault(self, api_key: ApiKey | None, action: Action, **options: Any) -> Fault:
        """Shorthand for `faults.add`."""
        return self.faults.add(api_key, action, **options)

    async def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Wait for a condition on what was received or stored."""
        await self.recorder.until(condition, timeout_s)

    # -- topics ---------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partition_count: int = 1, *, replication_factor: int | None = None
    ) -> FakeTopic:
        """A topic whose partition i is led by broker i modulo N."""
        node_ids = list(self.nodes)
        factor = min(replication_factor or len(node_ids), len(node_ids))
        topic = FakeTopic(name, UUID(int=self._next_topic_number), [])
        self._next_topic_number += 1
        self.topics[name] = topic
        self.grow_topic(name, partition_count, factor)
        return topic

    def grow_topic(self, name: str, partition_count: int, factor: int | None = None) -> None:
        """Give a topic more partitions."""
        topic = self.topics[name]
        node_ids = list(self.nodes)
        if factor is None:
            factor = len(topic.partitions[0].replica_ids)
        for index in range(len(topic.partitions), partition_count):
            replicas = [node_ids[(index + step) % len(node_ids)] for step in range(factor)]
            log = PartitionLog(max_message_bytes=self.settings.max_message_bytes)
            topic.partitions.append(FakePartition(log, replicas[0], replicas))

    def delete_topic(self, name: str) -> None:
        """Forget a topic; one of the same name made later has another id."""
        del self.topics[name]
        self.grew()

    def topic_by_id(self, topic_id: UUID) -> FakeTopic | None:
        """The topic with an id."""
        return next((each for each in self.topics.values() if each.topic_id == topic_id), None)

    def partition(self, topic: str, partition: int) -> FakePartition | None:
        """A partition, or None."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """A partition's log."""
        return self.topics[topic].partitions[partition].log

    def records(
        self, topic: str, partition: int = 0, *, committed_only: bool = False
    ) -> list[Record]:
        """A partition's records."""
        return self.log(topic, partition).records(committed_only=committed_only)

    def values(self, topic: str, *, committed_only: bool = False) -> list[bytes | None]:
        """All values of a topic, partition after partition."""
        return [
            record.value
            for index in range(len(self.topics[topic].partitions))
            for record in self.records(topic, index, committed_only=committed_only)
        ]

    def fill(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        """Append records with these values, one batch each call."""
        now = self.now_ms()
        records = [Record(0, now, None, value) for value in values]
        self.log(topic, partition).append_records(records)
        self.grew()

    # -- moves ----------------------------------------------------------------------------------

    def move_leader(self, topic: str, partition: int = 0, node_id: int | None = None) -> int:
        """Another leader (the next broker when none is named) under a new epoch; who it is."""
        found = self.topics[topic].partitions[partition]
        found.leader_id = self._next_node(found.leader_id) if node_id is None else node_id
        found.log.begin_epoch()
        self.grew()
        return found.leader_id

    def move_coordinator(self, kind: CoordinatorKind, key: str, node_id: int | None = None) -> int:
        """Another coordinator of a group or a transactional id; who it is."""
        before = self.coordinator_of(kind, key)
        after = self._next_node(before) if node_id is None else node_id
        self._coordinators[kind, key] = after
        if kind == "group":
            self.groups.unload(key)
        return after

    def coordinator_of(self, kind: CoordinatorKind, key: str) -> int:
        """The broker that coordinates a group or transactional id."""
        node_ids = list(self.nodes)
        return self._coordinators.get(
            (kind, key), node_ids[zlib.crc32(key.encode()) % len(node_ids)]
        )

    def _next_node(self, node_id: int) -> int:
        node_ids = list(self.nodes)
        assert len(node_ids) > 1, "a move needs two brokers"
        return node_ids[(node_ids.index(node_id) + 1) % len(node_ids)]

    async def stop_node(self, node_id: int) -> None:
        """Stop a broker: its connections end, its port refuses; others lead what it led."""
        await self.nodes[node_id].stop()
        others = self.live_node_ids
        if not others:
            return
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader_id == node_id:
                    partition.leader_id = next(
                        (each for each in partition.replica_ids if each in others), others[0]
                    )
                    partition.log.begin_epoch()
        if self.controller_id == node_id:
            self.controller_id = others[0]
        for (kind, key), holder in tuple(self._coordinators.items()):
            if holder == node_id:
                self.move_coordinator(kind, key, others[0])

    async def start_node(self, node_id: int) -> None:
        """Start a stopped broker again, on its old port."""
        await self.nodes[node_id].start()

    # -- growth ---------------------------------------------------------------------------------

    def grew(self) -> None:
        """Something changed that waiting fetches and tests may want to see."""
        growth, self._growth = self._growth, asyncio.Event()
        growth.set()
        self.recorder.poke()

    @property
    def growth(self) -> asyncio.Event:
        """Set when the next change comes."""
        return self._growth
