"""The listening side: accepts connections and hands their requests to one function.

Owns: listeners, and the requests that come before there is a handler. Must not: know what requests
mean, or make the handler wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.config.definition import ConfigError
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.framing import ReceiveMemory
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.network import AsyncioNetwork, Listener, Network
from moldau.server.connection_group import ConnectionGroup
from moldau.server.connection_limits import ServerLimits
from moldau.server.fair_line import FairLine
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.outgoing import Offload
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.request import Request, RequestMetrics
from moldau.server.request_router import party_of
from moldau.server.server_connection import ServerConnection

if TYPE_CHECKING:
    from moldau.server.authentication.listener_security import ListenerSecurity
    from moldau.server.authentication.tls_handshakes import TlsHandshakes

MAX_EARLY_REQUESTS: Final = 10_000
"""Requests that may wait for the node to be ready."""


class ListenerSpec(NamedTuple):
    """One listener: its name, and where it binds ("" for every interface, port 0 for any).

    Attributes:
        security: None for PLAINTEXT.
    """

    name: str
    host: str
    port: int
    security: ListenerSecurity | None = None


class Server:
    """Listeners and their connections on one event loop.

    States: created → `start` → serving → `close` → closed. The handler is a plain function called
    on the loop; it answers through the request, then or later. A server without one holds requests
    back until `open`: a broker can only register a port that is bound, and clients may come at
    once.
    """

    def __init__(
        self,
        handler: Callable[[Request], None] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        limits: ServerLimits | None = None,
        metrics: RequestMetrics | None = None,
        offload: Offload | None = None,
        memory: ReceiveMemory | None = None,
        watchdog: LoopWatchdog | None = None,
        rates: ConnectionRates | None = None,
    ) -> None:
        """`offload` is the Filesystem's (for cold file regions); `memory` may be shared by servers
        of one loop; `watchdog` is the loop's; `rates` limits new connections.
        """
        self.connections = ConnectionGroup(
            handler or self._hold_back,
            clock or SystemClock(),
            limits or ServerLimits(),
            metrics=metrics,
            offload=offload,
            memory=memory,
            watchdog=watchdog,
            rates=rates,
        )
        self._early: FairLine[Request] = FairLine(MAX_EARLY_REQUESTS)
        self._network = network or AsyncioNetwork()
        self._listeners: dict[str, Listener] = {}
        self._securities: list[ListenerSecurity] = []

    # -- life -----------------------------------------------------------------------------------

    async def start(self, listeners: Iterable[ListenerSpec]) -> None:
        """Bind every listener and accept. Raises OSError, ConfigError: nothing stays bound then."""
        self.connections.loop = asyncio.get_running_loop()
        try:
            for spec in listeners:
                await self.add_listener(spec)
        except (ConfigError, OSError):
            self._close_listeners()
            await self._close_securities()
            raise
        self.connections.start_sweeping()

    async def add_listener(self, spec: ListenerSpec) -> None:
        """Bind one more listener. Raises OSError, ConfigError."""
        name = spec.name
        assert name not in self._listeners, f"listener {name} exists"
        connections = self.connections
        connections.is_open = True
        security = spec.security
        handshakes: TlsHandshakes | None = None
        if security is not None and security.contexts is not None:
            from moldau.server.authentication.tls_handshakes import TlsHandshakes

            handshakes = TlsHandshakes(security.contexts, connections, name)
        if security is not None:
            self._securities.append(security)
            await security.start()
        connections.shares.add_peers(
            is_between_nodes=name in connections.limits.node_listeners,
            has_logins=security is not None and security.sasl is not None,
        )
        self._listeners[name] = await self._network.listen(
            lambda: ServerConnection(connections, name, security),
            spec.host,
            spec.port,
            backlog=connections.limits.listen_backlog,
            receive_buffer_bytes=connections.limits.receive_buffer_bytes,
            handshakes=handshakes,
        )

    def port(self, listener_name: str) -> int:
        return self._listeners[listener_name].port

    async def close(self, graceful_ms: float = 5000.0) -> None:
        """Stop accepting, answer what was accepted for at most `graceful_ms`, then cut the rest."""
        self._close_listeners()
        await self.connections.close(graceful_ms)
        await self._close_securities()

    async def _close_securities(self) -> None:
        for security in self._securities:
            await security.close()
        self._securities.clear()

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self.connections.is_open = False

    # -- requests that come before the node is ready ---------------------------------------------

    def open(self, handler: Callable[[Request], None]) -> None:
        """Give `handler` the requests held back, each in its own turn, in the order they came
        of each party, and then all later ones. One that fails costs its own connection, not the
        start.
        """
        while (request := self._early.take()) is not None:
            self.connections.loop.call_soon(self._hand_on, handler, request)
        self.connections.loop.call_soon(self._handed_on, handler)

    def _hold_back(self, request: Request) -> None:
        connection = request.connection
        party = party_of(connection.principal, connection.client_host)
        if (left_out := self._early.put(request, party)) is not None:
            left_out[0].close("the node is starting, and too many requests wait already")

    def _handed_on(self, handler: Callable[[Request], None]) -> None:
        if self._early:
            self.open(handler)  # these came while the others were handed on
        else:
            self.connections.handler = handler

    @staticmethod
    def _hand_on(handler: Callable[[Request], None], request: Request) -> None:
        if request.is_connection_lost:
            request.discard()
            return
        reason = "a request failed inside the node"
        is_taken = False
        try:
            handler(request)
            is_taken = True
        except RemoteProtocolError as error:
            reason = f"malformed request: {error}"
        finally:
            if not is_taken:
                request.close(reason)
