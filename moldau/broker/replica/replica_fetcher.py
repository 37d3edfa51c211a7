"""Fetches partitions from one leader: one connection, one session, one task.

Owns the loop: fetch, apply, fetch again. Must not decide what an answer does to a log:
`FollowedPartition` does. Invariants: one answer is in memory at a time; the task is never cancelled
while it applies one; the next fetch, which carries the acknowledgement, leaves before anything else
happens; a partition that waits for nothing is in the session, and costs nothing as long as nothing
happens to it; every partition about whose offsets the leader is asked gets a step, whatever the
leader leaves out.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.replica.followed_partitions import (
    FollowedPartition,
    FollowedPartitions,
    FollowerStep,
)
from moldau.broker.replica.follower_session import SESSION_ERRORS, FollowerAnswer, FollowerPosition
from moldau.broker.replica.topic_stats import METRIC_PREFIX as TOPIC_METRIC_PREFIX
from moldau.config.settings import KeyedSettings, of_key
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.framing import DEFAULT_MAX_FRAME_BYTES, ReceiveMemory
from moldau.protocol.messages import p02_list_offsets as p02
from moldau.protocol.messages.p01_fetch import FetchRequest, PartitionData, ReplicaState
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import Connection, ConnectionLost, UnsupportedByPeer
from moldau.runtime.connector import Connector, PeerRefused
from moldau.runtime.fault_words import words_of
from moldau.runtime.leader_link import LINK_ERRORS
from moldau.runtime.network import DEFAULT_CONNECT_TIMEOUT_MS

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.throttle import ReplicationQuota
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Meter, Registry

logger = logging.getLogger(__name__)

FIRST_FETCH_BY_TOPIC_ID: Final = 13
FIRST_FETCH_WITH_REPLICA_STATE: Final = 15

TURN_BYTES: Final = 1024 * 1024
"""After applying so much, other tasks have their turn on the loop."""

TURN_PARTITIONS: Final = 100

LATEST: Final = -1
EARLIEST: Final = -2

METRIC_PREFIX: Final = "kafka.server:type=ReplicaFetcherManager,name="
FETCHER_METRIC_PREFIX: Final = "kafka.server:type=FetcherStats,name="
CLIENT_ID: Final = "Replica"

POOLED_BYTES: Final = 2 * 1024 * 1024
"""Unused receive buffers that are kept; a new one for every answer costs more than the answer."""

Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True)
class FetcherSettings(KeyedSettings):
    """What a node's configuration says of replication to it.

    `num_fetchers` is the count of connections per leader.
    """

    num_fetchers: int = of_key("num.replica.fetchers")
    wait_max_ms: int = of_key("replica.fetch.wait.max.ms")
    min_bytes: int = of_key("replica.fetch.min.bytes")
    partition_max_bytes: int = of_key("replica.fetch.max.bytes")
    response_max_bytes: int = of_key("replica.fetch.response.max.bytes")
    backoff_ms: int = of_key("replica.fetch.backoff.ms")
    socket_timeout_ms: int = of_key("replica.socket.timeout.ms")


class FetcherMeters(NamedTuple):
    """What one fetcher counts."""

    requests: Meter
    bytes: Meter
    replication_bytes_in: Meter


@dataclass(frozen=True, slots=True)
class FetcherShare:
    """What the fetchers of a broker share.

    `replica_id` is this broker, `broker_epoch` its epoch when a request is made (KIP-903). A
    `throttle` of None limits nothing. `on_applied` is called after answers were applied: requests
    that wait for the partitions may go on. `memory` holds receive buffers.
    """

    replica_id: int
    broker_epoch: Callable[[], int]
    connector: Connector
    clock: Clock
    settings: FetcherSettings
    throttle: ReplicationQuota | None
    on_applied: Callable[[], None]
    memory: ReceiveMemory = field(
        default_factory=lambda: ReceiveMemory(pool_limit_bytes=POOLED_BYTES)
    )


@dataclass(eq=False, repr=False)
class ReplicaFetcher:
    """States: made -> `start` -> running -> `close` -> ended.

    `name` is that of the connections, and stands in log lines.
    """

    name: str
    leader_id: int
    endpoint: Endpoint
    meters: FetcherMeters
    _share: FetcherShare
    task: asyncio.Task[None] | None = None
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: Connection | None = None
    _connecting: asyncio.Task[Connection] | None = None
    _has_answered: bool = False
    _session_error_count: int = 0
    _is_closed: bool = False
    _owes_notice: bool = False
    _problem: str = ""

    def __post_init__(self) -> None:
        share = self._share
        self._settings = share.settings
        self.partitions = FollowedPartitions(
            partition_max_bytes=share.settings.partition_max_bytes,
            backoff_ms=share.settings.backoff_ms,
            clock=share.clock,
            throttle=share.throttle,
            on_work=self._work.set,
        )

    def start(self) -> asyncio.Task[None]:
        assert self.task is None
        self.task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        return self.task

    def close(self) -> None:
        """Stop fetching. The task ends soon, after the answer it is applying."""
        self._is_closed = True
        self.partitions.close()
        self._disconnect()
        self._work.set()
        self._hurry.set()

    def follow(self, partition: Partition) -> None:
        """Fetch the partition from now on, or go on with it at once if it waits."""
        self.partitions.follow(partition)
        # Something is new about the leader: it may be worth trying again.
        self._hurry.set()

    def move_to(self, endpoint: Endpoint) -> None:
        if endpoint != self.endpoint:
            self.endpoint = endpoint
            self._disconnect()
            self._hurry.set()

    async def _run(self) -> None:
        while not self._is_closed:
            if self.partitions.is_idle:
                self._notify()
                self._work.clear()
                await self._work.wait()
                continue
            self._hurry.clear()
            try:
                pause_ms = await self._round()
            except (*LINK_ERRORS, LocalProtocolError) as error:
                self.partitions.session.lose()
                pause_ms = self._lost(error)
            if pause_ms and not self._is_closed:
                self._notify()
                await self._pause(pause_ms)
        self._notify()
        self._disconnect()

    async def _round(self) -> float:
        """One fetch and its answer; returns how long to wait before the next one."""
        connection = await self._connected()
        if self.partitions.asking:
            await self._ask_offsets(connection)
        version = connection.best_version(ApiKey.FETCH, FetchRequest)
        if version < FIRST_FETCH_BY_TOPIC_ID:
            raise UnsupportedByPeer(f"Fetch v{version} knows no topic ids")
        if self.partitions.session.is_idle:
            return 0.0
        request = self._request(version)
        future = connection.submit(request, api_version=version)
        # Only now, with the acknowledgement on its way, go on with the requests that wait here.
        self._notify()
        response = await future
        self.meters.requests.count += 1
        try:
            error, answers = self.partitions.session.take(response)
            if error is not ErrorCode.NONE:
                return self._refused(error)
            self._answered()
            await self._apply(answers)
        finally:
            connection.release_responses()
        return 0.0

    def _request(self, version: int) -> FetchRequest:
        settings = self._settings
        request = self.partitions.session.build()
        request.max_wait_ms = settings.wait_max_ms
        request.min_bytes = settings.min_bytes
        request.max_bytes = settings.response_max_bytes
        if version >= FIRST_FETCH_WITH_REPLICA_STATE:
            request.replica_state = ReplicaState(
                replica_id=self._share.replica_id, replica_epoch=self._share.broker_epoch()
            )
        else:
            request.replica_id = self._share.replica_id
        return request

    async def _apply(self, answers: list[FollowerAnswer]) -> None:
        flushes: list[asyncio.Future[None]] = []
        turn_bytes = turn_count = 0
        for answer in answers:
            if self._is_closed:
                return
            followed = self.partitions.get(answer.key)
            if followed is None:
                continue
            size_bytes = len(answer.data.records or b"")
            step = followed.apply_fetched(answer.requested, answer.data)
            self._owes_notice = True
            if size_bytes:
                self.meters.bytes.count += size_bytes
                self.meters.replication_bytes_in.count += size_bytes
                _flush_if_asked(followed, flushes)
            self.partitions.applied(followed, step, answer, size_bytes)
            turn_bytes += size_bytes
            turn_count += 1
            if turn_bytes >= TURN_BYTES or turn_count >= TURN_PARTITIONS:
                turn_bytes = turn_count = 0
                self._notify()
                await asyncio.sleep(0)
        if flushes:
            # The next fetch acknowledges the records: `flush.messages` wants them on disk first.
            await asyncio.wait(flushes)
            for answer in answers:
                self.partitions.look_again(answer.key)

    async def _ask_offsets(self, connection: Connection) -> None:
        asking = self.partitions.take_asking()
        steps: dict[FollowedPartition, FollowerStep] = {}
        try:
            latest = connection.submit(self._offsets_request(asking, LATEST))
            earliest = connection.submit(self._offsets_request(asking, EARLIEST))
            ends = _found_offsets(await latest)
            starts = _found_offsets(await earliest)
            for followed, requested in asking.items():
                steps[followed] = _apply_offsets(followed, requested, starts, ends)
        finally:
            # Without an answer they are fetched again, and out of range again.
            for followed in asking:
                self.partitions.asked(followed, steps.get(followed, FollowerStep.FETCH_ON))
        self._owes_notice = True

    def _offsets_request(
        self, asking: Mapping[FollowedPartition, FollowerPosition], timestamp: int
    ) -> p02.ListOffsetsRequest:
        topics: dict[str, p02.ListOffsetsTopic] = {}
        for position in asking.values():
            topic, partition_index = position.topic_partition
            if topic not in topics:
                topics[topic] = p02.ListOffsetsTopic(name=topic, partitions=[])
            topics[topic].partitions.append(
                p02.ListOffsetsPartition(
                    partition_index=partition_index,
                    current_leader_epoch=position.leader_epoch,
                    timestamp=timestamp,
                )
            )
        return p02.ListOffsetsRequest(
            replica_id=self._share.replica_id, topics=list(topics.values())
        )

    def _notify(self) -> None:
        if self._owes_notice:
            self._owes_notice = False
            self._share.on_applied()

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and not connection.is_closed:
            return connection
        self.partitions.session.lose()
        host, port = self.endpoint
        settings = self._settings
        connecting = self._connecting = asyncio.get_running_loop().create_task(
            self._share.connector.connect(
                host,
                port,
                client_id=self.name,
                connect_timeout_ms=min(settings.socket_timeout_ms, DEFAULT_CONNECT_TIMEOUT_MS),
                request_timeout_ms=settings.socket_timeout_ms,
                max_response_bytes=settings.response_max_bytes + DEFAULT_MAX_FRAME_BYTES,
                memory=self._share.memory,
                holds_responses=True,
            )
        )
        try:
            await asyncio.wait([connecting])
        finally:
            self._connecting = None
            if not connecting.done():
                connecting.cancel()
        if connecting.cancelled():
            raise ConnectionLost(f"{host}:{port} is not where to connect to any more")
        self._connection = connecting.result()
        self._has_answered = False
        return self._connection

    def _disconnect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _answered(self) -> None:
        self._has_answered = True
        self._session_error_count = 0
        if self._problem:
            logger.info("%s: broker %d answers again", self.name, self.leader_id)
            self._problem = ""

    def _refused(self, error: ErrorCode) -> float:
        if error in SESSION_ERRORS:
            self._session_error_count += 1
            if self._session_error_count == 1:
                return 0.0
        self._log_problem(f"refuses fetches with {error.name}")
        return self._settings.backoff_ms

    def _lost(self, error: Exception) -> float:
        """The pause before the next attempt: none after a connection that had worked."""
        had_worked, self._has_answered = self._has_answered, False
        if not isinstance(error, OSError):
            # The rest of what the connection receives is not to be trusted.
            self._disconnect()
        if self._is_closed or (had_worked and isinstance(error, ConnectionLost)):
            return 0.0
        host, port = self.endpoint
        text = f"at {host}:{port}: {words_of(error)}"
        if isinstance(error, PeerRefused):
            self._problem = text  # it is logged already
        else:
            self._log_problem(text)
        return self._settings.backoff_ms

    def _log_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            logger.warning("%s: broker %d %s; trying again", self.name, self.leader_id, problem)

    async def _pause(self, pause_ms: float) -> None:
        """Wait, unless something new since the attempt began makes it worth trying at once."""
        timer = self._share.clock.call_later(pause_ms, self._hurry.set)
        try:
            await self._hurry.wait()
        finally:
            timer.cancel()


def _flush_if_asked(followed: FollowedPartition, flushes: list[asyncio.Future[None]]) -> None:
    partition = followed.partition
    log = partition.log
    if log is None or log.offline or not log.needs_flush:
        return
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if partition.deferred.wait_for_flush(lambda _error: flushed.set_result(None)):
        flushes.append(flushed)


FoundOffsets = dict[TopicPartition, tuple[ErrorCode, int]]


def _found_offsets(response: p02.ListOffsetsResponse) -> FoundOffsets:
    return {
        TopicPartition(topic.name, found.partition_index): (
            ErrorCode.of(found.error_code),
            found.offset,
        )
        for topic in response.topics
        for found in topic.partitions
    }


def _apply_offsets(
    followed: FollowedPartition,
    requested: FollowerPosition,
    starts: FoundOffsets,
    ends: FoundOffsets,
) -> FollowerStep:
    nothing = (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
    end_error, end_offset = ends.get(requested.topic_partition, nothing)
    start_error, start_offset = starts.get(requested.topic_partition, nothing)
    error = end_error if end_error is not ErrorCode.NONE else start_error
    if error is ErrorCode.NONE:
        return followed.apply_leader_offsets(requested, start_offset, end_offset)
    step = followed.apply_fetched(requested, PartitionData(error_code=error))
    # Out of range is no answer to this question.
    return FollowerStep.BACK_OFF if step is FollowerStep.ASK_OFFSETS else step


@dataclass(slots=True)
class _Assignment:
    partition: Partition
    leader_id: int
    endpoint: Endpoint | None
    fetcher: ReplicaFetcher | None = None


class FetcherManager:
    """The fetchers of one broker. Belongs to the data loop.

    Owns which partition belongs to which fetcher. Must not talk to leaders, or decide which broker
    leads. Invariants: a partition is fetched by at most one fetcher; a fetcher without partitions
    ends; every fetcher has ended when `close` returns. `on_fault` is called with an unexpected
    exception in a fetcher.
    """

    def __init__(
        self, share: FetcherShare, registry: Registry, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._share = share
        self._fetcher_count = share.settings.num_fetchers
        self._registry = registry
        self._on_fault = on_fault
        self._assignments: dict[TopicPartition, _Assignment] = {}
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        """The fetchers by leader and number."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._dead_count = 0
        self._sweeps = False
        self._is_closed = False
        self._bytes_in = registry.meter(TOPIC_METRIC_PREFIX + "ReplicationBytesInPerSec")
        self._register_gauges()

    def follow(self, partition: Partition, leader_id: int, endpoint: Endpoint | None) -> None:
        """Fetch the partition from that broker, or go on with it, because its state has changed.
        While `endpoint`, the leader's host and port, is unknown the partition waits for another
        call.
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
        fetcher.partitions.unfollow(assignment.partition)
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
                for name in ("RequestsPerSec", "BytesPerSec"):
                    self._registry.remove(
                        FETCHER_METRIC_PREFIX + name,
                        clientId=fetcher.name,
                        brokerId=str(fetcher.leader_id),
                    )

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
