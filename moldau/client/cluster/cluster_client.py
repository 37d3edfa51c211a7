"""One client's view of one cluster: which node gets a request, and how requests are retried.

Owns the choice of nodes and the retry loop that every call goes through; connections and metadata
are its parts. Must not know what calls mean. Invariants: cancelling a caller never closes or
corrupts what others use; after `close` nothing is left open and nothing runs.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from moldau.client.cluster.connections import Connections, Purpose
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.cluster.metadata_cache import Broker, MetadataCache
from moldau.client.cluster.metadata_updates import MetadataUpdates, metadata_request
from moldau.client.cluster.reachability import Address, RecurringWarning, addresses_text
from moldau.client.cluster.security import security_of
from moldau.client.config.client import ClientConfig, parse_address
from moldau.client.errors import (
    ClientClosed,
    KafkaError,
    NoBrokerAvailable,
    RequestTimeout,
    UnsupportedByBroker,
    error_for,
    raise_for,
)
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p60_describe_cluster import DescribeClusterRequest
from moldau.protocol.schema import AnyRequest, Request, Response
from moldau.runtime.clock import Clock
from moldau.runtime.connection import Connection, RequestTimedOut, UnsupportedByPeer
from moldau.runtime.ports import Ports

if TYPE_CHECKING:
    from moldau.protocol.messages import p00_produce, p01_fetch

Result = TypeVar("Result")
#: The lowest and the highest version that can say what a request says.
Versions = tuple[int, int]

PATIENCE_MS: Final = 1_500.0
"""After how long without a connection the next node is asked; the attempt goes on."""
GIVE_UP_MS: Final = 1_000.0
"""How long to try again where every address refuses: it may be a cluster that starts."""
MISSING_MS: Final = 2_000.0
"""How long a coordinator may be missing without a warning: its topic may be being created."""


class EndpointType(IntEnum):
    """Which nodes' addresses DescribeCluster asks for (KIP-919)."""

    BROKER = 1
    CONTROLLER = 2


class ClusterUser:
    """Base of the asyncio clients: its name, and the warning when it is collected unclosed."""

    _client: ClusterClient

    def __repr__(self) -> str:
        kind = type(self)
        room = "moldau.client" if kind.__module__.startswith("moldau.client.") else kind.__module__
        client_id, servers = self._client.config.client_id, ",".join(self._client.config.addresses)
        return f"<{room}.{kind.__qualname__} client_id={client_id} bootstrap={servers}>"

    # At the interpreter's end modules lose their names before the last objects are collected.
    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if hasattr(self, "_client") and self._client._connections.abandon():
            _warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)


class ClusterClient:
    """One client's view of one cluster, on one event loop. States: open → closed.

    Args:
        allow_auto_topic_creation: whether `updates` may create a topic.
        ports: the machine's own unless a simulation brings others.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        allow_auto_topic_creation: bool = False,
        ports: Ports | None = None,
    ) -> None:
        self.config = config
        ports = ports or Ports.of_machine()
        self.clock: Clock = ports.clock
        self.random: random.Random = ports.random
        self.metadata: MetadataCache = MetadataCache()
        self._bootstrap = [parse_address(server) for server in config.addresses]
        security = security_of(config, self.clock, self.random)
        failing, self._unreachable = RecurringWarning(self.clock), RecurringWarning(self.clock)
        self._connections = Connections(
            config, *ports, security, self._lost, failing, self._unreachable
        )
        self._answered: Address | None = None
        self._lagging_ms: dict[Address, float] = {}
        #: Whether `retry` ends soon while no broker has ever been reached.
        self.gives_up_early: bool = False
        self.missing_coordinator: RecurringWarning = RecurringWarning(
            self.clock, after_ms=MISSING_MS
        )
        self.updates: MetadataUpdates = MetadataUpdates(
            config, self.metadata, self.ask_any, self.clock, self.random, allow_auto_topic_creation
        )
        self.updates.trouble = self.trouble

    async def close(self) -> None:
        """Close every connection; calls under way fail with ClientClosed (idempotent)."""
        await self._connections.close()
        await self.updates.close()

    # -- connections ----------------------------------------------------------------------------

    def ready(self, node_id: int, purpose: Purpose = "data") -> Connection | None:
        """The connection to a broker when a request may be sent right now. None while it is not
        connected, throttled, or paused after a failure; then an attempt to connect has begun,
        unless it is too early. Await `connection` for its end.
        """
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return None
        address = (broker.host, broker.port)
        connection = self._connections.opened(address, purpose)
        if connection is None and not self._connections.is_connected(address, purpose):
            self._connections.start(address, purpose)
        return connection

    async def connection(self, node_id: int, purpose: Purpose = "data") -> Connection:
        """The connection to a broker, opened if need be, once it is not throttled. Raises:
        NoBrokerAvailable when it is unknown or cannot be reached (retriable); AuthenticationFailed,
        TlsFailed, ClientClosed, WrongEventLoop.
        """
        broker = await self._broker(node_id)
        address = (broker.host, broker.port)
        try:
            await self._connections.wait_out_throttle(address, purpose)
            return await self._connections.connect(address, purpose)
        except PASSING_FAULTS as fault:
            raise NoBrokerAvailable(
                f"broker {node_id} ({broker.host}:{broker.port}): {describe_fault(fault)}"
            ) from fault

    async def any_connection(self) -> Connection:
        """A connection to the first broker that can be reached. Raises as `connection`."""
        return await self._first(lambda address: self._connections.connect(address, "data"))

    async def reach(self, what: str, limit_ms: float) -> None:
        """Connect to some broker, unless one was reached before; for about a second where every
        address refuses. Raises: NoBrokerAvailable, RequestTimeout; and as `any_connection`.
        """
        if not self._connections.was_reached:
            began_ms = self.clock.monotonic_ms()
            await self._retried(self.any_connection, what, began_ms, limit_ms, gives_up=True)

    def trouble(self) -> str:
        """What keeps requests waiting, as far as that is known; else empty."""
        return self.missing_coordinator.text or self._connections.trouble()

    def throttled(
        self, node_id: int, throttle_time_ms: float, purpose: Purpose | None = None
    ) -> None:
        """Send nothing to a broker for so long, as its response has asked (KIP-219): on one
        connection, or without `purpose` on those for data and fetches. Heartbeats go on.
        """
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return
        address = (broker.host, broker.port)
        purposes: tuple[Purpose, ...] = ("data", "fetch") if purpose is None else (purpose,)
        for each in purposes:
            self._connections.throttle(address, each, throttle_time_ms)

    # -- metadata -------------------------------------------------------------------------------

    def expect_topic(self, name: str, topic_id: UUID) -> None:
        self.metadata.expect_topic(name, topic_id)
        if name not in self.metadata.topics:
            self.updates.request()

    def expect_epoch(self, topic: str, partition: int, leader_epoch: int) -> None:
        if self.metadata.expect_epoch(topic, partition, leader_epoch):
            self.updates.request()

    def learn_leaders(
        self,
        leaders: Iterable[tuple[str, int, int, int]],
        node_endpoints: Sequence[p00_produce.NodeEndpoint | p01_fetch.NodeEndpoint],
    ) -> None:
        """Take over leaders from a Produce or Fetch response (KIP-951): topic, partition, leader
        id, leader epoch.
        """
        is_news = False
        for leader in leaders:
            is_news |= self.metadata.learn_leader(*leader, node_endpoints)
        if is_news:
            self.updates.announce()

    async def refresh_metadata(self, topics: Iterable[str] | None) -> MetadataCache:
        """Fetch the brokers and the named topics (None: all topics); never creates topics. A client
        of the controllers fetches these instead (KIP-919); they know no topics.
        """
        if self.config.asks_controllers:
            await self._find_controllers()
            return self.metadata
        response = await self.ask_any(metadata_request(topics))
        raise_for(response.error_code, None, "describe topics")
        self.metadata.update(response, complete=topics is None)
        self.updates.announce()
        return self.metadata

    async def leader_of(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; asks for it when the cache does not know one. Raises:
        UnknownTopicOrPartition; BrokerError when there is no leader at the moment (retriable).
        """
        leader_id = self.metadata.leader(topic, partition)
        if leader_id is None:
            await self.refresh_metadata([topic])
            leader_id = self.metadata.leader(topic, partition)
        if leader_id is None:
            error = self.metadata.problem(topic, partition)
            raise error_for(error, None, f"{topic}-{partition}")
        return leader_id

    # -- requests -------------------------------------------------------------------------------

    async def ask_any(
        self,
        request: Request[Response],
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Response:
        """Send to the first node that answers: known brokers first, then the bootstrap servers.
        Raises: NoBrokerAvailable when none of them can be reached; UnsupportedByPeer when it serves
        none of `versions` (lowest, highest); AuthenticationFailed, TlsFailed, ClientClosed.
        """
        return await self._first(
            lambda address: self.ask_address(
                *address, request, timeout_ms=timeout_ms, versions=versions
            )
        )

    async def ask_node(
        self,
        node_id: int,
        request: Request[Response],
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Response:
        """Send to one broker. `versions` as with `ask_any`. Raises: NoBrokerAvailable when it is
        unknown or cannot be reached.
        """
        broker = await self._broker(node_id)
        return await self.ask_address(
            broker.host, broker.port, request, timeout_ms=timeout_ms, versions=versions
        )

    async def ask_controller(
        self,
        request: Request[Response],
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Response:
        """Send to the broker that the cluster names as its controller; it forwards (KIP-590)."""
        if self.metadata.controller_id not in self.metadata.brokers:
            await self.refresh_metadata([])
        node_id = self.metadata.controller_id
        if node_id in self.metadata.brokers:
            return await self.ask_node(node_id, request, timeout_ms=timeout_ms, versions=versions)
        return await self.ask_any(request, timeout_ms=timeout_ms, versions=versions)

    async def ask_address(
        self,
        host: str,
        port: int,
        request: Request[Response],
        *,
        timeout_ms: float | None = None,
        versions: Versions | None = None,
    ) -> Response:
        address = (host, port)
        limit_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        connection = await self._connections.connect(address, "data")
        api_version = None if versions is None else version_of(connection, type(request), versions)
        await self._connections.wait_out_throttle(address, "data")
        response = await connection.send(request, api_version=api_version, timeout_ms=limit_ms)
        throttle_time_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_time_ms > 0:
            self._connections.throttle(address, "data", throttle_time_ms)
        return response

    async def retry(
        self, attempt: Callable[[], Awaitable[Result]], *, what: str, timeout_ms: float | None
    ) -> Result:
        """Run `attempt` until it succeeds, fails for good, or the time for all tries together is
        over (None: `default.api.timeout.ms`). After passing faults and retriable errors it is
        called again. Raises: KafkaError, the last try's error; RequestTimeout when a passing fault
        outlasted the time; NoBrokerAvailable as `reach`.
        """
        limit_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        began_ms = self.clock.monotonic_ms()
        if self.gives_up_early:
            await self.reach(what, min(limit_ms, self.config.request_timeout_ms))
        return await self._retried(attempt, what, began_ms, limit_ms)

    async def _retried(
        self,
        attempt: Callable[[], Awaitable[Result]],
        what: str,
        began_ms: float,
        limit_ms: float,
        gives_up: bool = False,
    ) -> Result:
        deadline_ms = began_ms + limit_ms
        backoff = Backoff(
            self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, self.random
        )
        last: BaseException | None = None
        while True:
            if self._connections.is_closed:
                raise ClientClosed(f"{what}: the client is closed")
            remaining_ms = deadline_ms - self.clock.monotonic_ms()
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
                if not isinstance(error, TimeoutError) or isinstance(error, RequestTimedOut):
                    last = error
                elif last is None:
                    trouble = self.trouble()
                    last = NoBrokerAvailable(trouble) if trouble else error
            pause_ms = backoff.next_ms()
            again_ms = self.clock.monotonic_ms() + pause_ms
            if again_ms >= deadline_ms:
                if isinstance(last, KafkaError) and not isinstance(last, NoBrokerAvailable):
                    raise last
                raise RequestTimeout(
                    f"{what}: not within {limit_ms:.0f} ms: {describe_fault(last)}"
                ) from last
            is_slow = last is not None and isinstance(last.__cause__, TimeoutError)
            if gives_up and not is_slow and again_ms >= began_ms + GIVE_UP_MS:
                raise NoBrokerAvailable(f"{what}: {last}", final=True) from last
            self.metadata.controller_id = -1
            await asyncio.sleep(pause_ms / 1000)

    def _lost(self) -> None:
        # A broker has closed the connection: leaders may have moved.
        if self.updates.is_of_use:
            self.updates.request()

    async def _broker(self, node_id: int) -> Broker:
        if node_id not in self.metadata.brokers:
            await self.refresh_metadata([])
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise NoBrokerAvailable(f"broker {node_id} is not part of the cluster at the moment")
        return broker

    async def _find_controllers(self) -> None:
        """Fetch the controllers and which one is active. Where they do not register (an old
        metadata version, or none yet) that stays unknown; then every bootstrap controller is tried.
        """
        response = await self.ask_any(DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLER))
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return
        raise_for(response.error_code, response.error_message, "find the controllers")
        self.metadata.update_controllers(response)

    async def _first(self, attempt: Callable[[Address], Awaitable[Result]]) -> Result:
        """The outcome at the first node with which `attempt` does not end in a passing fault."""
        faults: dict[Address, Exception] = {}
        candidates = self._candidates()
        patience_ms = min(PATIENCE_MS, self.config.request_timeout_ms / (len(candidates) + 1))
        for address in candidates:
            try:
                async with asyncio.timeout(patience_ms / 1000):
                    await self._connections.connect(address, "data")
                outcome = await attempt(address)
            except PASSING_FAULTS as fault:
                faults[address] = fault
            else:
                self._connections.tell_reached(address)
                self._answered = address
                return outcome
        reasons = {address: describe_fault(fault) for address, fault in faults.items()}
        text = f"no {self.config.node_kind} can be reached: {addresses_text(reasons)}"
        if not self._connections.is_closed:  # the client closes: nothing is wrong
            self._unreachable.note(text)
        slow = next((each for each in faults.values() if isinstance(each, TimeoutError)), None)
        raise NoBrokerAvailable(text) from slow

    def _candidates(self) -> list[Address]:
        """The nodes to ask, the best first: connected and least busy; failed ones last, and while
        an answer is doubted those that gave such ones, the latest last.
        """
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        bootstrap = self._bootstrap
        if known and self.config.metadata_recovery_strategy == "none":
            bootstrap = []
        candidates = list(dict.fromkeys([*known, *bootstrap]))
        links = self._connections
        if self.config.asks_controllers:
            # In any order, since only the active controller has all the answers.
            self.random.shuffle(candidates)
            return sorted(candidates, key=links.is_failing)
        if not self.metadata.doubted:
            self._lagging_ms.clear()
        elif self._answered is not None:
            self._lagging_ms[self._answered] = self.clock.monotonic_ms()
        lagging_ms = self._lagging_ms
        return sorted(
            candidates,
            key=lambda address: (
                not links.is_connected(address, "data") and links.is_failing(address),
                lagging_ms.get(address, 0.0),
                not links.is_connected(address, "data"),
                links.is_failing(address),
                links.pause_ms(address, "data") > 0,
                links.in_flight_count(address, "data"),
            ),
        )


def version_of(connection: Connection, kind: type[AnyRequest], versions: Versions) -> int:
    """The version in which to send a request. Raises: UnsupportedByPeer when the broker serves
    none of these.
    """
    lowest, highest = versions
    version = connection.best_version(kind.API_KEY, kind, max_version=highest)
    if version < lowest:
        raise UnsupportedByPeer(
            f"{connection.host}:{connection.port} serves {kind.__name__} up to version {version}, "
            f"{lowest} is needed"
        )
    return version
