"""Fetches partitions from one leader: one connection, one session, one task.

Owns the loop (ask, apply, ask on), and which of its partitions wait for what. Must not decide what
an answer does to a log: `broker.partition.following` does. Invariants: one answer is in memory at a
time; the task is never cancelled while it applies one; the next fetch, which carries the
acknowledgement, leaves before anything else happens; a partition that waits for nothing is in the
session, and costs nothing as long as nothing happens to it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.fetched_partitions import FetchedPartitions, Followed
from moldau.broker.replica.follower_session import SESSION_ERRORS, FollowerAnswer
from moldau.broker.replica.following import FollowerStep
from moldau.broker.replica.leader_offsets import ask_leader_offsets
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.framing import DEFAULT_MAX_FRAME_BYTES
from moldau.protocol.messages.p01_fetch import FetchRequest, FetchResponse, ReplicaState
from moldau.runtime.connection import Connection, ConnectionLost, UnsupportedByPeer
from moldau.runtime.leader_link import LINK_ERRORS
from moldau.runtime.network import DEFAULT_CONNECT_TIMEOUT_MS

if TYPE_CHECKING:
    from moldau.broker.replica import Partition
    from moldau.broker.replica.fetcher_settings import FetcherSettings, FollowerThrottle
    from moldau.protocol.framing import ReceiveMemory
    from moldau.runtime.clock import Clock
    from moldau.runtime.network import Network
    from moldau.runtime.telemetry.metrics import Meter

logger = logging.getLogger("moldau.broker.replica.replication")

FIRST_FETCH_BY_TOPIC_ID: Final = 13
FIRST_FETCH_WITH_REPLICA_STATE: Final = 15

TURN_BYTES: Final = 1024 * 1024
"""After applying so much, others have their turn on the loop."""

TURN_PARTITIONS: Final = 100

Endpoint = tuple[str, int]


class FetcherMeters:
    """What one fetcher counts."""

    __slots__ = ("bytes", "replication_bytes_in", "requests")

    def __init__(self, requests: Meter, bytes_: Meter, replication_bytes_in: Meter) -> None:
        self.requests = requests
        self.bytes = bytes_
        self.replication_bytes_in = replication_bytes_in


class ReplicaFetcher:
    """States: made -> `start` -> running -> `close` -> ended.

    Args:
        name: what connections and log lines call it.
        replica_id: this broker.
        broker_epoch: of this broker, as it is when a request is made (KIP-903).
        on_applied: called after answers were applied: what waits for these partitions may go on.
        memory: receive buffers, shared by the fetchers of the loop.
    """

    def __init__(
        self,
        name: str,
        leader_id: int,
        endpoint: Endpoint,
        *,
        replica_id: int,
        broker_epoch: Callable[[], int],
        network: Network,
        clock: Clock,
        settings: FetcherSettings,
        throttle: FollowerThrottle | None,
        meters: FetcherMeters,
        on_applied: Callable[[], None],
        memory: ReceiveMemory | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.leader_id = leader_id
        self.endpoint = endpoint
        self.meters = meters
        self.partitions = FetchedPartitions(settings, clock, throttle, self._has_work)
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._network = network
        self._clock = clock
        self._settings = settings
        self._on_applied = on_applied
        self._memory = memory
        self._ssl_context = ssl_context
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._has_answered = False
        self._session_error_count = 0
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_closed = False
        self._owes_notice = False
        self._problem = ""
        self.task: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Begin to fetch."""
        assert self.task is None
        self.task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        return self.task

    def close(self) -> None:
        """Fetch nothing more. The task ends soon, after the answer it is applying."""
        self._is_closed = True
        self.partitions.close()
        self._disconnect()
        self._work.set()
        self._hurry.set()

    def follow(self, partition: Partition) -> None:
        """Fetch the partition from now on, or go on with it whatever held it up."""
        self.partitions.follow(partition)
        # Something is new about the leader: it may be worth trying again.
        self._hurry.set()

    def unfollow(self, partition: Partition) -> None:
        """Fetch the partition no more."""
        self.partitions.unfollow(partition)

    def move_to(self, endpoint: Endpoint) -> None:
        """The leader listens elsewhere now."""
        if endpoint != self.endpoint:
            self.endpoint = endpoint
            self._disconnect()
            self._hurry.set()

    def _has_work(self) -> None:
        self._work.set()

    # -- the loop --------------------------------------------------------------------------------

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
        # Only now, with the acknowledgement on its way, those who wait here.
        self._notify()
        response: FetchResponse = await future  # type: ignore[assignment]
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
                replica_id=self._replica_id, replica_epoch=self._broker_epoch()
            )
        else:
            request.replica_id = self._replica_id
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
            step = followed.partition.apply_fetched(answer.requested, answer.data)
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
            # The next fetch says that we have the records: `flush.messages` wants them on the disk.
            await asyncio.wait(flushes)
            for answer in answers:
                self.partitions.look_again(answer.key)

    async def _ask_offsets(self, connection: Connection) -> None:
        asking = self.partitions.take_asking()
        answered: dict[Followed, FollowerStep] = {}
        try:
            answered = await ask_leader_offsets(connection, self._replica_id, asking)
        finally:
            # Without an answer they are fetched again, and out of range again.
            for followed in asking:
                self.partitions.asked(followed, answered.get(followed, FollowerStep.FETCH_ON))
        self._owes_notice = True

    def _notify(self) -> None:
        if self._owes_notice:
            self._owes_notice = False
            self._on_applied()

    # -- the connection --------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and not connection.is_closed:
            return connection
        self.partitions.session.lose()
        host, port = self.endpoint
        settings = self._settings
        connecting = self._connecting = asyncio.get_running_loop().create_task(
            Connection.connect(
                self._network,
                host,
                port,
                client_id=self.name,
                clock=self._clock,
                ssl_context=self._ssl_context,
                connect_timeout_ms=min(settings.socket_timeout_ms, DEFAULT_CONNECT_TIMEOUT_MS),
                request_timeout_ms=settings.socket_timeout_ms,
                max_response_bytes=settings.response_max_bytes + DEFAULT_MAX_FRAME_BYTES,
                memory=self._memory,
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
        self._say(f"refuses fetches with {error.name}")
        return self._settings.backoff_ms

    def _lost(self, error: Exception) -> float:
        """The pause before the next attempt: none after a connection that had worked."""
        had_worked, self._has_answered = self._has_answered, False
        if not isinstance(error, OSError):
            # What is left of the connection is not to be trusted.
            self._disconnect()
        if self._is_closed or (had_worked and isinstance(error, ConnectionLost)):
            return 0.0
        host, port = self.endpoint
        self._say(f"at {host}:{port}: {error or type(error).__name__}")
        return self._settings.backoff_ms

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            logger.warning("%s: broker %d %s; trying again", self.name, self.leader_id, problem)

    async def _pause(self, pause_ms: float) -> None:
        """Wait, unless something new since the attempt began makes it worth trying at once."""
        timer = self._clock.call_later(pause_ms, self._hurry.set)
        try:
            await self._hurry.wait()
        finally:
            timer.cancel()


def _flush_if_asked(followed: Followed, flushes: list[asyncio.Future[None]]) -> None:
    partition = followed.partition
    log = partition.log
    if log is None or log.offline or not log.needs_flush:
        return
    flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if partition.deferred.wait_for_flush(lambda _error: flushed.set_result(None)):
        flushes.append(flushed)
