"""Connections to a cluster and what the client knows of it.

Owns one connection per node (opened on demand, with back-off after failures), the metadata cache
and the retry loop that every call goes through. Must not know what calls mean. Invariant:
cancelling a caller never closes or corrupts a connection that others use; after `close` nothing is
left open.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from typing import Any, Final, TypeVar

from moldau.client.cluster.metadata_cache import MetadataCache
from moldau.client.config.client import ClientConfig, parse_address
from moldau.client.errors import (
    ClientClosed,
    KafkaError,
    NoBrokerAvailable,
    RequestTimeout,
    UnsupportedByBroker,
    error_for,
)
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.schema import Message
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.connection import (
    Connection,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByPeer,
)
from moldau.runtime.network import AsyncioNetwork, Network

Result = TypeVar("Result")
#: The lowest and the highest version that can say what a request says.
Versions = tuple[int, int]

#: What a passing fault looks like: trying another node, or the same one later, may help.
PASSING_FAULTS: Final = (
    ConnectionLost,
    RequestTimedOut,
    NoBrokerAvailable,
    RemoteProtocolError,
    OSError,
    TimeoutError,
)


class EndpointType(IntEnum):
    """Whose addresses DescribeCluster asks for (KIP-919)."""

    BROKER = 1
    CONTROLLER = 2


class ClusterClient:
    """One client's view of one cluster, on one event loop. States: open → closed.

    Args:
        config: addresses, timeouts, back-off.
        network, clock, source: ports; the real ones when None. `source` gives the jitter.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        source: random.Random | None = None,
    ) -> None:
        self.config = config
        self.metadata = MetadataCache()
        self._network = network or AsyncioNetwork()
        self._clock = clock or SystemClock()
        self._random = source or random.Random()
        self._connections: dict[tuple[str, int], Connection] = {}
        self._connecting: dict[tuple[str, int], asyncio.Task[Connection]] = {}
        self._failures: dict[tuple[str, int], tuple[int, float]] = {}
        self._closed = False

    async def close(self) -> None:
        """Close every connection; calls that are under way fail with ClientClosed."""
        self._closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()

    async def ask_any(
        self,
        request: Message,
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Any:
        """Send to whichever node answers: known brokers first, then the bootstrap servers.

        Raises:
            NoBrokerAvailable: none of them can be reached.
            UnsupportedByPeer: it serves none of `versions` (lowest, highest) that say the request.
        """
        problems: list[str] = []
        for host, port in self._candidates():
            try:
                connection = await self._connect(host, port)
                return await self._send(connection, request, timeout_ms, versions)
            except PASSING_FAULTS as fault:
                problems.append(f"{host}:{port} ({describe_fault(fault)})")
        raise NoBrokerAvailable(f"no broker can be reached: {', '.join(problems)}")

    async def ask_node(
        self,
        node_id: int,
        request: Message,
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Any:
        """Send to one broker. `versions` as with `ask_any`.

        Raises:
            NoBrokerAvailable: the broker is unknown or cannot be reached.
        """
        if node_id not in self.metadata.brokers:
            await self.refresh_metadata([])
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise NoBrokerAvailable(f"broker {node_id} is not part of the cluster at the moment")
        connection = await self._connect(broker.host, broker.port)
        return await self._send(connection, request, timeout_ms, versions)

    async def ask_controller(self, request: Message, *, timeout_ms: float | None = None) -> Any:
        """Send to the broker that the cluster names as its controller; it forwards (KIP-590)."""
        if self.metadata.controller_id not in self.metadata.brokers:
            await self.refresh_metadata([])
        if self.metadata.controller_id in self.metadata.brokers:
            return await self.ask_node(self.metadata.controller_id, request, timeout_ms=timeout_ms)
        return await self.ask_any(request, timeout_ms=timeout_ms)

    async def ask_address(
        self,
        host: str,
        port: int,
        request: Message,
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Any:
        """Send to the node that listens there, whoever it is. `versions` as with `ask_any`."""
        connection = await self._connect(host, port)
        return await self._send(connection, request, timeout_ms, versions)

    async def refresh_metadata(self, topics: Iterable[str] | None) -> MetadataCache:
        """Fetch brokers and the named topics (None: all of them) anew; never creates topics.

        A client of the controllers learns of these instead (KIP-919); they know no topics.
        """
        if self.config.asks_controllers:
            await self._find_controllers()
            return self.metadata
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        response = await self.ask_any(request)
        self.metadata.update(response, complete=topics is None)
        return self.metadata

    async def _find_controllers(self) -> None:
        """Who they are and which one is active. Where they do not register (an old metadata
        version, or none yet) that stays unknown: then any of those that were named is tried.
        """
        response = await self.ask_any(DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLER))
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return
        raise_for(response.error_code, response.error_message, "find the controllers")
        self.metadata.update_controllers(response)

    async def leader_of(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, from the cache or asked for.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            BrokerError: it has no leader at the moment (retriable).
        """
        leader_id = self.metadata.leader(topic, partition)
        if leader_id is None:
            await self.refresh_metadata([topic])
            leader_id = self.metadata.leader(topic, partition)
        if leader_id is None:
            error = self.metadata.problem(topic, partition)
            raise error_for(error, None, f"{topic}-{partition}")
        return leader_id

    async def retry(
        self, attempt: Callable[[], Awaitable[Result]], *, what: str, timeout_ms: float | None
    ) -> Result:
        """Run `attempt` until it succeeds, fails for good, or the time is over.

        Args:
            attempt: one try; passing faults and retriable errors lead to another one.
            what: for the error's text.
            timeout_ms: for all tries together; None for `default.api.timeout.ms`.

        Raises:
            KafkaError: the last try's error; RequestTimeout when a passing fault outlasted the
            time.
        """
        limit_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        try_count = 0
        last: BaseException | None = None
        while True:
            if self._closed:
                raise ClientClosed(f"{what}: the client is closed")
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                async with asyncio.timeout(max(0.0, remaining_ms) / 1000):
                    return await attempt()
            except UnsupportedByPeer as error:
                raise UnsupportedByBroker(f"{what}: {error}") from error
            except KafkaError as error:
                if not error.retriable:
                    raise
                last = error
            except PASSING_FAULTS as error:
                last = last if isinstance(error, TimeoutError) and last else error
            try_count += 1
            pause_ms = self._backoff_ms(
                try_count, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms
            )
            if self._clock.monotonic_ms() + pause_ms >= deadline_ms:
                if isinstance(last, KafkaError) and not isinstance(last, NoBrokerAvailable):
                    raise last
                raise RequestTimeout(
                    f"{what}: not within {limit_ms:.0f} ms: {describe_fault(last)}"
                ) from last
            self.metadata.controller_id = -1
            await asyncio.sleep(pause_ms / 1000)

    async def _send(
        self,
        connection: Connection,
        request: Message,
        timeout_ms: float | None,
        versions: Versions | None = None,
    ) -> Any:
        limit_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        api_version = None
        if versions is not None:
            lowest, highest = versions
            api_version = connection.best_version(
                request.API_KEY, type(request), max_version=highest
            )
            if api_version < lowest:
                raise UnsupportedByPeer(
                    f"{connection.host}:{connection.port} serves {type(request).__name__} up to "
                    f"version {api_version}, {lowest} is needed"
                )
        return await connection.send(request, api_version=api_version, timeout_ms=limit_ms)

    def _candidates(self) -> list[tuple[str, int]]:
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        bootstrap = [parse_address(server) for server in self.config.addresses]
        candidates = list(dict.fromkeys([*known, *bootstrap]))
        # Those that are connected first, those that failed lately last; of controllers any one,
        # since only the active one has all the answers.
        now_ms = self._clock.monotonic_ms()
        if self.config.asks_controllers:
            self._random.shuffle(candidates)
            return sorted(
                candidates, key=lambda address: self._failures.get(address, (0, now_ms))[1] > now_ms
            )
        return sorted(
            candidates,
            key=lambda address: (
                address not in self._connections,
                self._failures.get(address, (0, now_ms))[1] > now_ms,
            ),
        )

    async def _connect(self, host: str, port: int) -> Connection:
        if self._closed:
            raise ClientClosed("the client is closed")
        address = (host, port)
        existing = self._connections.get(address)
        if existing is not None and not existing.is_closed:
            return existing
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        # Shielded: several callers may wait for the same connection.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            assert caller is not None
            if self._closed and task.cancelled() and not caller.cancelling():
                # `close` ended the attempt, nobody cancelled the caller.
                raise ClientClosed("the client was closed") from None
            raise

    async def _open(self, address: tuple[str, int]) -> Connection:
        failure_count, not_before_ms = self._failures.get(address, (0, 0.0))
        pause_ms = not_before_ms - self._clock.monotonic_ms()
        if pause_ms > 0:
            await asyncio.sleep(pause_ms / 1000)
        try:
            connection = await Connection.connect(
                self._network,
                *address,
                client_id=self.config.client_id,
                clock=self._clock,
                connect_timeout_ms=self.config.socket_connection_setup_timeout_ms,
                request_timeout_ms=self.config.request_timeout_ms,
            )
        except PASSING_FAULTS:
            backoff_ms = self._backoff_ms(
                failure_count + 1,
                self.config.reconnect_backoff_ms,
                self.config.reconnect_backoff_max_ms,
            )
            self._failures[address] = (
                failure_count + 1,
                self._clock.monotonic_ms() + backoff_ms,
            )
            raise
        self._failures.pop(address, None)
        self._connections[address] = connection
        connection.on_close(self._forget)
        return connection

    def _forget(self, connection: Connection) -> None:
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]

    def _backoff_ms(self, failure_count: int, first_ms: int, most_ms: int) -> float:
        """Exponential, with 20 % jitter either way (KIP-144, KIP-580)."""
        base_ms: int = min(most_ms, first_ms << min(failure_count - 1, 20))
        return base_ms * self._random.uniform(0.8, 1.2)


def describe_fault(fault: BaseException | None) -> str:
    """A fault in a few words, also when its own text is empty."""
    if fault is None:
        return "no answer"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror
    return str(fault) or type(fault).__name__


def raise_for(error_code: int, message: str | None, what: str) -> None:
    """Raise the exception of an error code; nothing for NONE."""
    if error_code != ErrorCode.NONE:
        raise error_for(error_code, message, what)
