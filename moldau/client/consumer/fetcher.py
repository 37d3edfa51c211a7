"""Fetching ahead: one request under way per broker, while the user works on what came before.

Owns a task per broker that has partitions of ours, and its fetch session. Must not hand records
out, nor find out positions. Invariants: one fetch at a time per broker; nothing is fetched for a
partition that holds twice its limit already, nor for any while the buffer is full; tasks are told
to stop, never cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.fetch_session import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    LAST_VERSION_WITH_NAMES,
    FetchSession,
    Wanted,
)
from moldau.client.consumer.core.partition_state import NO_NODE, PartitionState
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.consumer.fetch_responses import Asked, FetchResponses
from moldau.client.consumer.signal import Signal
from moldau.client.errors import ClientClosed, KafkaError, UnsupportedByBroker
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import FetchRequest
from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.connection import Connection, UnsupportedByPeer

_log: Final = logging.getLogger(__name__)

HELD_PER_PARTITION: Final = 2
"""How many times `max.partition.fetch.bytes` a partition may hold and still be fetched."""

LOOK_IN_MS: Final = 100.0
"""While some partitions of a broker wait for room, the others are looked at this often: a request
that waits at the broker for them would keep the full ones waiting when room is made."""

CONSUMER_REPLICA_ID: Final = -1
PURPOSE: Final = "fetch"


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The consumer's `fetch.*` keys and what else goes into a request; bytes and milliseconds."""

    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    max_partition_bytes: int
    read_committed: bool
    rack_id: str
    request_timeout_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float


class Plan:
    """What to ask one broker for."""

    __slots__ = ("asked", "held_back", "hungry", "next_ms", "wanted")

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, Wanted] = {}
        self.asked: dict[TopicPartition, Asked] = {}
        #: Partitions that hold enough for now.
        self.held_back: int = 0
        #: Whether the broker is known to have more of a wanted partition.
        self.hungry: bool = False
        #: When a partition that rests may be asked for again; None when none rests.
        self.next_ms: float | None = None


class Fetcher:
    """Keeps the buffer filled. States: open → stopping → stopped.

    Attributes:
        refusal: why a broker will not be fetched from, however often it is tried; for the next
            poll to raise.

    Args:
        on_news: called when a waiting poll may go on.
    """

    def __init__(
        self,
        client: ClusterClient,
        subscription: SubscriptionState[Any],
        buffer: FetchBuffer,
        responses: FetchResponses,
        settings: FetchSettings,
        clock: Clock,
        on_news: Callable[[], None],
    ) -> None:
        self.client = client
        self.settings = settings
        self.clock = clock
        self.stopping: bool = False
        self.refusal: KafkaError | None = None
        self.responses = responses
        self._subscription = subscription
        self._buffer = buffer
        self._on_news = on_news
        self._nodes: dict[int, NodeFetcher] = {}
        self._waits_for_room = False
        self._is_outdated = True

    def changed(self) -> None:
        """Assignment, position, pause or leaders have changed: look again, soon."""
        self._is_outdated = True

    def kick(self) -> None:
        """Look again now, if anything has changed: called by every poll."""
        if self._is_outdated:
            self.look()
        elif self._waits_for_room:
            self._waits_for_room = False
            for node in self._nodes.values():
                if node.waits_for_room:
                    node.signal.set()

    def look(self) -> None:
        """Start the tasks of brokers that have none, and let the idle ones look."""
        if self.stopping:
            return
        self._is_outdated = False
        now_ms = self.clock.monotonic_ms()
        needed = {self._node_of(state, now_ms) for state in self._subscription.states()}
        for node_id in needed - self._nodes.keys() - {NO_NODE}:
            self._nodes[node_id] = NodeFetcher(self, node_id)
        for node in self._nodes.values():
            node.signal.set()

    def plan(self, node_id: int) -> Plan:
        """What may be asked of the broker now."""
        plan = Plan()
        now_ms = self.clock.monotonic_ms()
        limit = HELD_PER_PARTITION * self.settings.max_partition_bytes
        # What paused partitions hold must not keep the others from being read.
        is_full = self._buffer.is_full and self._buffer.has_records
        for state in self._subscription.states():
            if not state.may_hand_out or self._node_of(state, now_ms) != node_id:
                continue
            records = state.records
            if state.retry_at_ms > now_ms:
                plan.next_ms = min(plan.next_ms or state.retry_at_ms, state.retry_at_ms)
                continue
            if is_full or records.held_bytes >= limit or records.ends_in_fault:
                plan.held_back += 1
                continue
            offset = records.fetch_offset
            name = state.topic_partition
            topic = self.client.metadata.topics.get(name.topic)
            if topic is None:
                continue
            plan.hungry = plan.hungry or state.high_watermark < 0 or offset < state.high_watermark
            plan.asked[name] = Asked(state, state.generation, offset)
            plan.wanted[name] = Wanted(
                topic.topic_id, offset, state.leader_epoch, self.settings.max_partition_bytes
            )
        self._waits_for_room = self._waits_for_room or plan.held_back > 0
        return plan

    def news(self) -> None:
        """Something can be handed out, or raised."""
        self._on_news()

    def node_ended(self, node: NodeFetcher) -> None:
        """The broker's task is over."""
        if self._nodes.get(node.node_id) is node:
            del self._nodes[node.node_id]

    async def end_sessions(self, timeout_ms: float) -> None:
        """Stop fetching, and have the brokers forget the sessions, within the time."""
        self.stopping = True
        nodes = list(self._nodes.values())
        for node in nodes:
            node.signal.set()
        await asyncio.gather(*(node.end_session(timeout_ms) for node in nodes))

    async def join(self) -> None:
        """Wait for the tasks to end: after the client has closed its connections."""
        self.stopping = True
        while self._nodes:
            for node in self._nodes.values():
                node.signal.set()
            await asyncio.wait([node.task for node in self._nodes.values()])

    def _node_of(self, state: PartitionState, now_ms: float) -> int:
        """Whom to fetch a partition from: the preferred replica, else the leader (KIP-392)."""
        topic, partition = state.topic_partition
        metadata = self.client.metadata
        preferred = state.preferred_node_id
        if preferred != NO_NODE:
            if now_ms < state.preferred_until_ms and preferred in metadata.brokers:
                return preferred
            state.prefer_leader()
        leader = metadata.leader(topic, partition)
        return NO_NODE if leader is None else leader


class NodeFetcher:
    """The fetches from one broker, one after the other, by one task."""

    def __init__(self, fetcher: Fetcher, node_id: int) -> None:
        self.node_id = node_id
        self.signal: Signal = Signal(fetcher.clock)
        self.waits_for_room: bool = False
        self._fetcher = fetcher
        self._session = FetchSession()
        self._connection: Connection | None = None
        self._failure_count = 0
        self._last_fetch_ms = -LOOK_IN_MS
        self.task: asyncio.Task[None] = asyncio.create_task(
            self._run(), name=f"fetch from broker {node_id}"
        )

    async def _run(self) -> None:
        try:
            while not self._fetcher.stopping:
                plan = self._fetcher.plan(self.node_id)
                pause_ms = self._pause_ms(plan)
                if pause_ms is None or pause_ms > 0:
                    if not plan.wanted and not plan.held_back and self._is_gone():
                        return
                    self.waits_for_room = plan.held_back > 0
                    await self.signal.wait(pause_ms)
                    self.waits_for_room = False
                    continue
                await self._fetch(plan)
        finally:
            self._fetcher.node_ended(self)

    def _is_gone(self) -> bool:
        return self.node_id not in self._fetcher.client.metadata.brokers

    def _pause_ms(self, plan: Plan) -> float | None:
        """How long not to fetch; 0 for now, None until something changes."""
        now_ms = self._fetcher.clock.monotonic_ms()
        if not plan.wanted:
            return None if plan.next_ms is None else max(plan.next_ms - now_ms, 1.0)
        if plan.held_back and not plan.hungry:
            return max(self._last_fetch_ms + LOOK_IN_MS - now_ms, 0.0)
        return 0

    async def _fetch(self, plan: Plan) -> None:
        fetcher = self._fetcher
        try:
            connection = await fetcher.client.connection(self.node_id, purpose=PURPOSE)
            if fetcher.stopping:
                return
            if connection is not self._connection:
                self._connection = connection
                # Connecting has taken its time: others may be wanted by now.
                plan = fetcher.plan(self.node_id)
                if not plan.wanted:
                    return
            request, version = self._request(connection, plan)
            self._last_fetch_ms = fetcher.clock.monotonic_ms()
            response = await connection.send(
                request,
                api_version=version,
                timeout_ms=fetcher.settings.request_timeout_ms + request.max_wait_ms,
            )
        except ClientClosed:
            fetcher.stopping = True
            return
        except (*PASSING_FAULTS, KafkaError, UnsupportedByPeer) as error:
            await self._failed(plan, error)
            return
        self._failure_count = 0
        self._take(plan, response)

    def _request(self, connection: Connection, plan: Plan) -> tuple[FetchRequest, int]:
        settings = self._fetcher.settings
        version = connection.best_version(FetchRequest.API_KEY, FetchRequest)
        request = self._session.request(
            plan.wanted, may_use_ids=version >= FIRST_VERSION_WITH_TOPIC_IDS
        )
        if not self._session.uses_ids:
            version = min(version, LAST_VERSION_WITH_NAMES)
        request.replica_id = CONSUMER_REPLICA_ID
        request.max_wait_ms = 0 if plan.held_back else settings.max_wait_ms
        request.min_bytes = settings.min_bytes
        request.max_bytes = settings.max_bytes
        request.isolation_level = int(settings.read_committed)
        request.rack_id = settings.rack_id
        return request, version

    def _take(self, plan: Plan, response: Any) -> None:
        fetcher = self._fetcher
        client = fetcher.client
        if response.throttle_time_ms > 0:
            client.throttled(self.node_id, response.throttle_time_ms)
        code = self._session.accept(response)
        if code is not ErrorCode.NONE:
            _log.info("broker %d: fetch session: %s; fetching anew", self.node_id, code.name)
            if code.invalidates_metadata:
                client.request_update()
            return
        now_ms = fetcher.clock.monotonic_ms()
        outcome = fetcher.responses.take(response, plan.asked, self._session.topic_of, now_ms)
        for topic, partition, leader_id, leader_epoch in outcome.leaders or ():
            client.metadata.learn_leader(
                topic, partition, leader_id, leader_epoch, response.node_endpoints
            )
        if outcome.is_outdated:
            client.request_update()
        if outcome.leaders or outcome.has_moved:
            fetcher.look()
        if outcome.has_news:
            fetcher.news()

    async def _failed(self, plan: Plan, error: Exception) -> None:
        """No response: the session may have moved on or not, and the broker may be gone."""
        fetcher = self._fetcher
        if fetcher.stopping:
            return
        self._connection = None
        self._session.lost()
        if isinstance(error, UnsupportedByPeer):
            fetcher.refusal = UnsupportedByBroker(f"fetch from broker {self.node_id}: {error}")
            fetcher.news()
        elif isinstance(error, KafkaError) and not error.retriable:
            fetcher.refusal = error
            fetcher.news()
        for asked in plan.asked.values():
            if asked.state.preferred_node_id == self.node_id:
                asked.state.prefer_leader()
        _log.info("fetching from broker %d failed: %s", self.node_id, error)
        fetcher.client.request_update()
        fetcher.look()
        self.signal.clear()
        settings = fetcher.settings
        pause_ms = min(
            settings.retry_backoff_max_ms, settings.retry_backoff_ms * 2**self._failure_count
        )
        self._failure_count = min(self._failure_count + 1, 16)
        await self.signal.wait(pause_ms)

    async def end_session(self, timeout_ms: float) -> None:
        """Have the broker forget the session: over another connection, as this one may wait."""
        connection = self._connection
        if not self._session.is_open or connection is None or connection.is_closed:
            return
        client = self._fetcher.client
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if connection.in_flight_count:
                    connection = await client.connection(self.node_id, purpose="data")
                await connection.send(
                    self._session.closing_request(), api_version=self._closing_version(connection)
                )
        except (*PASSING_FAULTS, KafkaError, UnsupportedByPeer) as error:
            _log.debug("broker %d keeps a fetch session until it ages: %s", self.node_id, error)

    def _closing_version(self, connection: Connection) -> int:
        version = connection.best_version(FetchRequest.API_KEY, FetchRequest)
        return version if self._session.uses_ids else min(version, LAST_VERSION_WITH_NAMES)
