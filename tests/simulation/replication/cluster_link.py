"""How a simulated client finds brokers and leaders: production connections, its own metadata.

Owns: one connection per broker, and what the client knows of topics. Must not: retry.
Invariants: of a partition only the newest leader epoch that was ever seen is believed (KIP-320); a
topic that was replaced by another of its name is not believed in again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.schema import Message
from moldau.runtime.connection import Connection
from tests.virtual.loop import Process, VirtualClock, VirtualLoop
from tests.virtual.network import SimulatedNetwork

CONNECT_TIMEOUT_MS = 800
REQUEST_TIMEOUT_MS = 2_500.0
NO_ANSWER = (OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as metadata described it."""

    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]


MAX_REFUSALS: Final = 5
"""As in the client's own cache of metadata."""


class ClusterLink:
    """One per client process."""

    def __init__(
        self,
        loop: VirtualLoop,
        process: Process,
        network: SimulatedNetwork,
        random: Random,
        brokers: Sequence[tuple[int, str, int]],
    ) -> None:
        self.loop = loop
        self.process = process
        self.random = random
        self.topic_ids: dict[str, UUID] = {}
        self.partitions: dict[tuple[str, int], PartitionView] = {}
        self._past_topics: dict[UUID, int] = {}
        """Ids that were replaced, and how often each was told since: of a topic that was told of
        before the former one, again and again.
        """
        self._network = network
        self._addresses = {broker_id: (host, port) for broker_id, host, port in brokers}
        self._connections: dict[int, Connection] = {}

    async def connection(self, broker_id: int) -> Connection:
        """An open connection to a broker. Raises OSError, TimeoutError."""
        known = self._connections.get(broker_id)
        if known is not None and not known.is_closed:
            return known
        host, port = self._addresses[broker_id]
        made = await Connection.connect(
            self._network,
            host,
            port,
            client_id=self.process.name,
            clock=VirtualClock(self.loop),
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        self._connections[broker_id] = made
        return made

    def drop(self, broker_id: int) -> None:
        """Close the connection to a broker that does not answer."""
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()

    async def ask(
        self,
        broker_id: int,
        request: Message,
        *,
        api_version: int | None = None,
        timeout_ms: float | None = None,
    ) -> Any:
        """One attempt. Raises OSError, TimeoutError."""
        try:
            connection = await self.connection(broker_id)
            return await connection.send(request, api_version=api_version, timeout_ms=timeout_ms)
        except NO_ANSWER:
            self.drop(broker_id)
            raise

    def some_broker(self) -> int:
        """Any."""
        return self.random.choice(sorted(self._addresses))

    async def refresh(self, topic: str) -> None:
        """Ask some broker what it knows; nothing changes when there is no answer."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        try:
            response = await self.ask(self.some_broker(), request)
        except NO_ANSWER:
            return
        for described in response.topics:
            if described.error_code != ErrorCode.NONE or self._is_past(described.topic_id):
                continue
            self._believe(topic, described.topic_id)
            for partition in described.partitions:
                view = PartitionView(
                    partition.leader_id, partition.leader_epoch, tuple(partition.replica_nodes)
                )
                key = (topic, partition.partition_index)
                known = self.partitions.get(key)
                if known is None or view.leader_epoch >= known.leader_epoch:
                    self.partitions[key] = view

    def _is_past(self, topic_id: UUID) -> bool:
        if topic_id not in self._past_topics:
            return False
        self._past_topics[topic_id] += 1
        if self._past_topics[topic_id] > MAX_REFUSALS:
            del self._past_topics[topic_id]
            return False
        return True

    def _believe(self, topic: str, topic_id: UUID) -> None:
        before = self.topic_ids.get(topic, topic_id)
        self.topic_ids[topic] = topic_id
        if before != topic_id:
            self._past_topics[before] = 0
            for key in [key for key in self.partitions if key[0] == topic]:
                del self.partitions[key]

    async def leader(self, topic: str, index: int) -> PartitionView | None:
        """Who leads, as far as known or quickly learned; None for nobody."""
        known = self.partitions.get((topic, index))
        if known is None or known.leader_id < 0:
            await self.refresh(topic)
            known = self.partitions.get((topic, index))
        return known if known is not None and known.leader_id in self._addresses else None

    async def pause(self, longest_ms: float = 150.0) -> None:
        """Back off."""
        await self.loop.elapse(self.random.uniform(10.0, longest_ms))
