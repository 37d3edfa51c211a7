"""Fetching ahead: one request under way per broker, while the user works on what came before.

Owns a task per broker that leads partitions of this consumer, its fetch session, and the reading of
responses: data into the buffer, errors into back-off, metadata updates, resets, or faults that the
next poll raises. Must not hand records out, nor find out positions. Invariants: one fetch at a time
per broker; nothing is fetched for a partition that holds twice `max.partition.fetch.bytes`, nor for
any while the buffer is full; a partition whose state has moved on since the request (seek,
revocation, another leader) is not touched by the response; tasks are asked to stop, never
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.core.faults import PositionOutOfRange
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.fetch_session import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    LAST_VERSION_WITH_NAMES,
    FetchSession,
    Wanted,
)
from moldau.client.consumer.core.partition_records import Chunk, FetchedFrame
from moldau.client.consumer.core.partition_state import NO_NODE, PartitionState
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.errors import (
    ClientClosed,
    KafkaError,
    NoBrokerAvailable,
    UnsupportedByBroker,
    error_for,
)
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import FetchRequest, FetchResponse, PartitionData
from moldau.protocol.types import TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.connection import Connection, UnsupportedByPeer
from moldau.runtime.fault_words import words_of
from moldau.runtime.signal import Signal

_log: Final = logging.getLogger(__name__)

HELD_PER_PARTITION: Final = 2
"""How many times `max.partition.fetch.bytes` a partition may hold and still be fetched."""

LOOK_IN_MS: Final = 100.0
"""While some partitions of a broker wait for room, the others are fetched this often: a request
waiting at the broker for them would hold up the full ones when there is room again."""

REFUSED_TOPIC: Final = frozenset(
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)
)
"""Answers about a topic that no waiting helps against: the next poll raises them."""

_MOVED: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)
"""The metadata are out of date, or will be in a moment: ask for them, then try again."""


@dataclass(slots=True)
class _Asked:
    """One partition of a request, as it was when the request was sent."""

    state: PartitionState
    generation: int
    fetch_offset: int


@dataclass(slots=True)
class _Outcome:
    """What is to be done after a response. `is_outdated`: ask for the metadata again; `has_news`: a
    poll that waits can go on; `has_moved`: a partition is fetched from another broker from now on;
    `leaders`: (topic, partition, leader id, leader epoch) that the broker named (KIP-951).
    """

    is_outdated: bool = False
    has_news: bool = False
    has_moved: bool = False
    leaders: list[tuple[str, int, int, int]] | None = None


@dataclass(slots=True, eq=False)
class _Plan:
    """What to ask one broker for."""

    wanted: dict[TopicPartition, Wanted] = field(default_factory=dict)
    asked: dict[TopicPartition, _Asked] = field(default_factory=dict)
    #: Partitions that hold enough for now.
    held_back: int = 0
    #: Whether the broker is known to have more of a wanted partition.
    hungry: bool = False
    #: When a partition in back-off may be asked for again; None without one.
    next_ms: float | None = None


@dataclass(eq=False, repr=False)
class Fetcher:
    """Keeps the buffer filled. States: open → stopping → stopped. `on_news` is called when a
    waiting poll may go on, to hand something out or to raise.
    """

    client: ClusterClient
    _subscription: SubscriptionState
    _buffer: FetchBuffer
    config: ConsumerConfig
    on_news: Callable[[], None]
    stopping: bool = False
    _nodes: dict[int, _NodeFetcher] = field(default_factory=dict)
    _waits_for_room: bool = False
    _is_outdated: bool = True
    _refusal: KafkaError | None = None
    _unreached_since_ms: float | None = None

    def __post_init__(self) -> None:
        self.clock: Clock = self.client.clock
        self.is_read_committed: bool = self.config.isolation_level == "read_committed"

    def changed(self) -> None:
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
        if self.stopping:
            return
        self._is_outdated = False
        now_ms = self.clock.monotonic_ms()
        needed = {self._node_of(state, now_ms) for state in self._subscription.states()}
        for node_id in needed - self._nodes.keys() - {NO_NODE}:
            self._nodes[node_id] = _NodeFetcher(self, node_id)
        for node in self._nodes.values():
            node.signal.set()

    def refuse(self, error: KafkaError) -> None:
        """Have the next poll raise this: trying again does not help against it."""
        self._refusal = error
        self.on_news()

    def raise_refusal(self, now_ms: float) -> float | None:
        """Raise what no waiting helps against, or NoBrokerAvailable when no broker was reached
        within `default.api.timeout.ms` of the first poll. Returns how long a poll may wait before
        it asks again; None for any time.
        """
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        metadata = self.client.metadata
        for topic, code in metadata.topic_errors.items():
            if code in REFUSED_TOPIC and (
                topic in self._subscription.subscription()
                or any(name.topic == topic for name in self._subscription.assignment())
            ):
                self.client.updates.request()
                raise error_for(code, None, f"topic {topic}")
        if metadata.brokers:
            self._unreached_since_ms = None
            return None
        limit_ms = self.config.default_api_timeout_ms
        if self._unreached_since_ms is None:
            self._unreached_since_ms = now_ms
        left_ms = self._unreached_since_ms + limit_ms - now_ms
        if left_ms > 0:
            return left_ms
        self._unreached_since_ms = None
        raise NoBrokerAvailable(
            f"no broker of {', '.join(self.config.addresses)} was reached within {limit_ms} ms: "
            "see whether bootstrap.servers is right and the brokers run"
        )

    def plan(self, node_id: int) -> _Plan:
        plan = _Plan()
        now_ms = self.clock.monotonic_ms()
        max_bytes = self.config.max_partition_fetch_bytes
        limit = HELD_PER_PARTITION * max_bytes
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
            plan.asked[name] = _Asked(state, state.generation, offset)
            plan.wanted[name] = Wanted(topic.topic_id, offset, state.leader_epoch, max_bytes)
        self._waits_for_room = self._waits_for_room or plan.held_back > 0
        return plan

    def take(
        self,
        plan: _Plan,
        response: FetchResponse,
        topic_of: Callable[[UUID], str | None],
        now_ms: float,
    ) -> None:
        outcome = _Outcome()
        frame = FetchedFrame(
            sum(
                len(data.records)
                for topic in response.responses
                for data in topic.partitions
                if data.records is not None
            )
        )
        for topic in response.responses:
            name = topic.topic or topic_of(topic.topic_id)
            for data in topic.partitions:
                each = None
                if name is not None:
                    each = plan.asked.get(TopicPartition(name, data.partition_index))
                if each is not None and self._is_current(each):
                    self._take_partition(each.state, data, frame, now_ms, outcome)
        if outcome.leaders:
            self.client.learn_leaders(outcome.leaders, response.node_endpoints)
        if outcome.is_outdated:
            self.client.updates.request()
        if outcome.leaders or outcome.has_moved:
            self.look()
        if outcome.has_news:
            self.on_news()

    def _is_current(self, asked: _Asked) -> bool:
        state = asked.state
        return (
            state.generation == asked.generation
            and state.records.fetch_offset == asked.fetch_offset
            and self._subscription.get(state.topic_partition) is state
        )

    def _take_partition(
        self,
        state: PartitionState,
        data: PartitionData,
        frame: FetchedFrame,
        now_ms: float,
        outcome: _Outcome,
    ) -> None:
        code = ErrorCode.of(data.error_code)
        if code is not ErrorCode.NONE:
            self._take_error(state, code, data, frame, now_ms, outcome)
            return
        if data.high_watermark >= 0:
            state.high_watermark = data.high_watermark
        if data.last_stable_offset >= 0:
            state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0:
            state.prefer(data.preferred_read_replica, now_ms + self.config.metadata_max_age_ms)
            outcome.has_moved = True
        records = data.records
        if not records:
            return
        assert isinstance(records, memoryview), "decoded"
        aborted = None
        if self.is_read_committed and data.aborted_transactions:
            aborted = deque(
                sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions)
            )
        if self._buffer.add(state, Chunk(records, frame, aborted)):
            outcome.has_news = True
            self._subscription.moved_back(state.topic_partition)

    def _take_error(
        self,
        state: PartitionState,
        code: ErrorCode,
        data: PartitionData,
        frame: FetchedFrame,
        now_ms: float,
        outcome: _Outcome,
    ) -> None:
        topic, partition = state.topic_partition
        state.retry_at_ms = now_ms + self.config.retry_backoff_ms
        from_follower = state.preferred_node_id != NO_NODE
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and from_follower:
            # The follower may lag, or have deleted the start of its log: the leader decides.
            state.prefer_leader()
            state.retry_at_ms = now_ms
            outcome.has_moved = True
        elif code in _MOVED:
            state.prefer_leader()
            outcome.is_outdated = outcome.has_moved = True
            leader = data.current_leader
            if leader.leader_id >= 0 and leader.leader_epoch > state.leader_epoch:
                outcome.leaders = outcome.leaders or []
                outcome.leaders.append((topic, partition, leader.leader_id, leader.leader_epoch))
        elif code is ErrorCode.CORRUPT_MESSAGE or not (
            code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR
        ):
            # Corrupt records do not get better by waiting.
            self._add_fault(state, code, frame)
            outcome.has_news = True

    def _add_fault(self, state: PartitionState, code: ErrorCode, frame: FetchedFrame) -> None:
        """Raise the error when everything before it has been read."""
        fetch_offset = state.records.fetch_offset

        def fault() -> None:
            if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise error_for(code, None, f"fetch {state.topic_partition} from {fetch_offset}")
            if not self._subscription.may_reset:
                raise PositionOutOfRange({state.topic_partition: fetch_offset})
            state.request_reset(self._subscription.default_reset)

        self._buffer.add(state, Chunk(memoryview(b""), frame, fault=fault))

    def node_ended(self, node: _NodeFetcher) -> None:
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
        """The broker to fetch from: the preferred replica, else the leader (KIP-392)."""
        topic, partition = state.topic_partition
        metadata = self.client.metadata
        preferred = state.preferred_node_id
        if preferred != NO_NODE:
            if now_ms < state.preferred_until_ms and preferred in metadata.brokers:
                return preferred
            state.prefer_leader()
        leader = metadata.leader(topic, partition)
        return NO_NODE if leader is None else leader


class _NodeFetcher:
    """The task that fetches from one broker, one request after the other."""

    def __init__(self, fetcher: Fetcher, node_id: int) -> None:
        self.node_id = node_id
        self.signal: Signal = Signal(fetcher.clock)
        self.waits_for_room: bool = False
        self._fetcher = fetcher
        self._session = FetchSession()
        self._connection: Connection | None = None
        config = fetcher.config
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
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
                    is_known = self.node_id in self._fetcher.client.metadata.brokers
                    if not plan.wanted and not plan.held_back and not is_known:
                        return
                    self.waits_for_room = plan.held_back > 0
                    await self.signal.wait(pause_ms)
                    self.waits_for_room = False
                    continue
                await self._fetch(plan)
        finally:
            self._fetcher.node_ended(self)

    def _pause_ms(self, plan: _Plan) -> float | None:
        """How long not to fetch; 0 for now, None until something changes."""
        now_ms = self._fetcher.clock.monotonic_ms()
        if not plan.wanted:
            return None if plan.next_ms is None else max(plan.next_ms - now_ms, 1.0)
        if plan.held_back and not plan.hungry:
            return max(self._last_fetch_ms + LOOK_IN_MS - now_ms, 0.0)
        return 0

    async def _fetch(self, plan: _Plan) -> None:
        fetcher = self._fetcher
        try:
            connection = await fetcher.client.connection(self.node_id, purpose="fetch")
            if fetcher.stopping:
                return
            if connection is not self._connection:
                self._connection = connection
                # Connecting took time: other partitions may be wanted by now.
                plan = fetcher.plan(self.node_id)
                if not plan.wanted:
                    return
            request, version = self._request(connection, plan)
            self._last_fetch_ms = fetcher.clock.monotonic_ms()
            response = await connection.send(
                request,
                api_version=version,
                timeout_ms=fetcher.config.request_timeout_ms + request.max_wait_ms,
            )
        except ClientClosed:
            fetcher.stopping = True
            return
        except (*PASSING_FAULTS, KafkaError, UnsupportedByPeer) as error:
            await self._failed(plan, error)
            return
        self._backoff.reset()
        self._take(plan, response)

    def _request(self, connection: Connection, plan: _Plan) -> tuple[FetchRequest, int]:
        config = self._fetcher.config
        version = connection.best_version(FetchRequest.API_KEY, FetchRequest)
        request = self._session.request(
            plan.wanted, may_use_ids=version >= FIRST_VERSION_WITH_TOPIC_IDS
        )
        if not self._session.uses_ids:
            version = min(version, LAST_VERSION_WITH_NAMES)
        request.max_wait_ms = 0 if plan.held_back else config.fetch_max_wait_ms
        request.min_bytes = config.fetch_min_bytes
        request.max_bytes = config.fetch_max_bytes
        request.isolation_level = int(self._fetcher.is_read_committed)
        request.rack_id = config.client_rack
        return request, version

    def _take(self, plan: _Plan, response: FetchResponse) -> None:
        fetcher, client = self._fetcher, self._fetcher.client
        if response.throttle_time_ms > 0:
            client.throttled(self.node_id, response.throttle_time_ms)
        code = self._session.accept(response)
        if code is not ErrorCode.NONE:
            _log.info("broker %d: fetch session: %s; fetching anew", self.node_id, code.name)
            if code.invalidates_metadata:
                client.updates.request()
            return
        fetcher.take(plan, response, self._session.topic_of, fetcher.clock.monotonic_ms())

    async def _failed(self, plan: _Plan, error: Exception) -> None:
        """No response came: the broker may have served the request, or be gone."""
        fetcher = self._fetcher
        if fetcher.stopping:
            return
        self._connection = None
        self._session.restart()
        if isinstance(error, UnsupportedByPeer):
            fetcher.refuse(UnsupportedByBroker(f"fetch from broker {self.node_id}: {error}"))
        elif isinstance(error, KafkaError) and not error.retriable:
            fetcher.refuse(error)
        for asked in plan.asked.values():
            if asked.state.preferred_node_id == self.node_id:
                asked.state.prefer_leader()
        _log.info("fetching from broker %d failed: %s", self.node_id, error)
        fetcher.client.updates.request()
        fetcher.look()
        self.signal.clear()
        await self.signal.wait(self._backoff.next_ms())

    async def end_session(self, timeout_ms: float) -> None:
        """Have the broker forget the session, over another connection where this one waits."""
        connection = self._connection
        if not self._session.is_open or connection is None or connection.is_closed:
            return
        client = self._fetcher.client
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if connection.in_flight_count:
                    connection = await client.connection(self.node_id, purpose="data")
                version = connection.best_version(FetchRequest.API_KEY, FetchRequest)
                if not self._session.uses_ids:
                    version = min(version, LAST_VERSION_WITH_NAMES)
                await connection.send(self._session.closing_request(), api_version=version)
        except (*PASSING_FAULTS, KafkaError, UnsupportedByPeer) as error:
            _log.debug(
                "broker %d keeps a fetch session until it ages: %s", self.node_id, words_of(error)
            )
