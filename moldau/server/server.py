"""The listening side: accepts connections, keeps them within limits, and hands requests to one
function.

Owns: listeners, the set of connections, the memory their frames may take, idle and limit policy.
Must not: know what requests mean, or make the handler wait.
Invariant: whatever one peer sends, only its own connection suffers; all memory a peer can make us
hold has a limit.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.protocol.api_keys import api_name
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.framing import (
    DEFAULT_MAX_FRAME_BYTES,
    DEFAULT_MEMORY_LIMIT_BYTES,
    ReceiveMemory,
)
from moldau.runtime.clock import Clock, SystemClock, TimerHandle
from moldau.runtime.network import (
    DEFAULT_BACKLOG,
    OS_DEFAULT_BYTES,
    AsyncioNetwork,
    Listener,
    Network,
    set_socket_options,
)
from moldau.runtime.slices import Work
from moldau.runtime.telemetry.logs import RateLimitedLog
from moldau.runtime.telemetry.metrics import Counter, Histogram, Registry
from moldau.runtime.timers import TimerWheel
from moldau.server.loop_watchdog import LoopWatchdog
from moldau.server.outgoing import Offload
from moldau.server.request import Request
from moldau.server.server_connection import ServerConnection

SWEEP_INTERVAL_MS: Final = 1000.0
"""How often idle and stalled connections are looked for."""

STALLED_FRAME_MS: Final = 10_000.0
"""A peer silent for so long inside a large frame is closed when others wait for the memory."""

MAX_EARLY_REQUESTS: Final = 10_000
"""Requests that may wait for the node to be ready."""

UNLIMITED: Final = 2**31 - 1

REQUEST_METRICS: Final = "kafka.network:type=RequestMetrics,name="

_LOG = logging.getLogger("moldau.server")


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """One listener: its name, where it binds ("" for every interface, port 0 for any), its TLS."""

    name: str
    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Kafka's limits by their own keys; the defaults are Kafka's, except where it has none."""

    request_max_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """`socket.request.max.bytes`"""
    queued_max_request_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    """`queued.max.request.bytes`; Kafka's -1 (no limit) becomes this default."""
    max_connections: int = UNLIMITED
    """`max.connections`"""
    max_connections_per_ip: int = UNLIMITED
    """`max.connections.per.ip`"""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """`max.connections.per.ip.overrides`"""
    connections_max_idle_ms: float = 600_000.0
    """`connections.max.idle.ms`; negative for never."""
    send_buffer_bytes: int = OS_DEFAULT_BYTES
    """`socket.send.buffer.bytes`"""
    receive_buffer_bytes: int = OS_DEFAULT_BYTES
    """`socket.receive.buffer.bytes`"""
    listen_backlog: int = DEFAULT_BACKLOG
    """`socket.listen.backlog.size`"""


class _Instruments(NamedTuple):
    requests: Counter
    local_time_ms: Histogram
    total_time_ms: Histogram
    request_bytes: Counter
    response_bytes: Counter


class RequestMetrics:
    """Counts and times of answered requests, by API, under Kafka's names; five additions each."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._by_api: dict[int, _Instruments] = {}

    def request_completed(
        self, request: Request, response_bytes: int, local_ms: float, total_ms: float
    ) -> None:
        """`local_ms` in the handler, `total_ms` from reception until handed to the socket."""
        instruments = self._by_api.get(request.api_key) or self._of(request.api_key)
        instruments.requests.value += 1
        instruments.local_time_ms.observe(local_ms)
        instruments.total_time_ms.observe(total_ms)
        instruments.request_bytes.value += request.size_bytes
        instruments.response_bytes.value += response_bytes

    def _of(self, api_key: int) -> _Instruments:
        name = api_name(api_key)
        registry = self._registry
        instruments = self._by_api[api_key] = _Instruments(
            registry.counter(f"{REQUEST_METRICS}RequestsPerSec", request=name),
            registry.histogram(f"{REQUEST_METRICS}LocalTimeMs", request=name),
            registry.histogram(f"{REQUEST_METRICS}TotalTimeMs", request=name),
            registry.counter(f"{REQUEST_METRICS}RequestBytes", request=name),
            registry.counter(f"{REQUEST_METRICS}ResponseBytes", request=name),
        )
        return instruments


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
    ) -> None:
        """`offload` is the Filesystem's (for cold file regions); `memory` may be shared by servers
        of one loop; `watchdog` is the loop's.
        """
        self.handler = handler or self._hold_back
        self._early: deque[Request] = deque()
        self.limits = limits or ServerLimits()
        self.clock = clock or SystemClock()
        self.timers = TimerWheel(self.clock)
        self.offload = offload
        self.watchdog = watchdog
        self._metrics = metrics
        self.memory = memory or ReceiveMemory(self.limits.queued_max_request_bytes)
        self.loop: asyncio.AbstractEventLoop
        self.bytes_received = 0
        self.bytes_sent = 0
        self.connections_created_count = 0
        self.connections_rejected_count = 0
        self._network = network or AsyncioNetwork()
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[ServerConnection, None] = {}  # in the order they came
        self._per_ip: dict[str, int] = {}
        self._connection_index = 0
        self._flush_queue: list[ServerConnection] = []
        self._line: deque[ServerConnection] = deque()
        self._is_turn_due = False
        self._memory_waiters: deque[ServerConnection] = deque()
        self._waking = False
        self._sweep_timer: TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None
        self._log = RateLimitedLog(_LOG, self.clock)
        self._work: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------------

    async def start(self, listeners: Iterable[ListenerSpec]) -> None:
        """Bind every listener and accept. Raises OSError (nothing stays bound then)."""
        self.loop = asyncio.get_running_loop()
        try:
            for spec in listeners:
                await self.add_listener(spec)
        except OSError:
            self._close_listeners()
            raise
        self._sweep_timer = self.timers.call_later(SWEEP_INTERVAL_MS, self._sweep)

    async def add_listener(self, spec: ListenerSpec) -> None:
        """Bind one more listener. Raises OSError."""
        name = spec.name
        assert name not in self._listeners, f"listener {name} exists"
        self._listeners[name] = await self._network.listen(
            lambda: ServerConnection(self, name),
            spec.host,
            spec.port,
            ssl_context=spec.ssl_context,
            backlog=self.limits.listen_backlog,
            receive_buffer_bytes=self.limits.receive_buffer_bytes,
        )

    def port(self, listener_name: str) -> int:
        return self._listeners[listener_name].port

    async def close(self, graceful_ms: float = 5000.0) -> None:
        """Stop accepting, answer what was accepted for at most `graceful_ms`, then cut the rest."""
        self._close_listeners()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._connections:
            self._all_closed = asyncio.Event()
            for connection in list(self._connections):
                connection.begin_closing()
            try:
                async with asyncio.timeout(graceful_ms / 1000):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.close("the server is shutting down")
                await self._all_closed.wait()
        self.timers.close()

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    # -- requests that come before the node is ready ---------------------------------------------

    @property
    def early_count(self) -> int:
        """Requests that are held back."""
        return len(self._early)

    def open(self, handler: Callable[[Request], None]) -> None:
        """Give `handler` the requests held back, each in a turn of its own and in the order they
        came, and then all later ones. One that fails costs its own connection, not the start.
        """
        while self._early:
            self.loop.call_soon(self._hand_on, handler, self._early.popleft())
        self.loop.call_soon(self._handed_on, handler)

    def _hold_back(self, request: Request) -> None:
        if len(self._early) < MAX_EARLY_REQUESTS:
            self._early.append(request)
        else:
            request.close("the node is starting, and too many requests wait already")

    def _handed_on(self, handler: Callable[[Request], None]) -> None:
        if self._early:
            self.open(handler)  # these came while the others were handed on
        else:
            self.handler = handler

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

    # -- what others may ask ---------------------------------------------------------------------

    @property
    def connections(self) -> frozenset[ServerConnection]:
        return frozenset(self._connections)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def update_limits(self, limits: ServerLimits) -> None:
        """Use other limits from now on; existing connections are left alone."""
        self.limits = limits
        self.memory.limit_bytes = limits.queued_max_request_bytes
        self.on_memory_released()

    # -- for connections -------------------------------------------------------------------------

    def start_work(self, work: Work) -> None:
        """Run what a connection's request needs beyond its handler; a failure goes to the loop's
        exception handler.
        """
        task = self.loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.loop.call_exception_handler(
                {"message": "a request failed", "exception": error, "task": task}
            )

    def next_connection_index(self) -> int:
        self._connection_index += 1
        return self._connection_index

    def admit(self, connection: ServerConnection) -> bool:
        """Count a new connection in, or say that a limit forbids it."""
        host = connection.client_host
        limits = self.limits
        if not self._listeners:
            return False
        if len(self._connections) >= limits.max_connections:
            return self._turn_away(connection, f"max.connections={limits.max_connections}")
        allowed = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        count = self._per_ip.get(host, 0)
        if count >= allowed:
            return self._turn_away(connection, f"max.connections.per.ip={allowed}")
        self._per_ip[host] = count + 1
        self._connections[connection] = None
        self.connections_created_count += 1
        set_socket_options(connection.transport, limits.send_buffer_bytes)
        return True

    def _turn_away(self, connection: ServerConnection, limit: str) -> bool:
        self.connections_rejected_count += 1
        self._log.warning(
            "connection from %s refused on listener %s: %s is reached",
            connection.client_host,
            connection.listener_name,
            limit,
        )
        return False

    def forget(self, connection: ServerConnection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        host = connection.client_host
        left = self._per_ip[host] - 1
        if left:
            self._per_ip[host] = left
        else:
            del self._per_ip[host]
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def log_closing(self, connection: ServerConnection, reason: str) -> None:
        """The one line about a connection we end."""
        self._log.warning(
            "closing connection %s of listener %s (client %s): %s",
            connection.connection_id,
            connection.listener_name,
            connection.client_software_name,
            reason,
        )

    def schedule_flush(self, connection: ServerConnection) -> None:
        """Flush the connection when the callbacks now running are through (joins responses)."""
        if not self._flush_queue:
            self.loop.call_soon(self._flush_all)
        self._flush_queue.append(connection)

    def _flush_all(self) -> None:
        queue, self._flush_queue = self._flush_queue, []
        position = 0
        try:
            for connection in queue:
                position += 1
                connection.flush()
        finally:
            # Should one fail unexpectedly, the others are still served.
            if position < len(queue):
                if not self._flush_queue:
                    self.loop.call_soon(self._flush_all)
                self._flush_queue.extend(queue[position:])

    def wait_for_turn(self, connection: ServerConnection) -> None:
        """Let the connection take its turn after those that wait already. There is one turn between
        two looks at the sockets, however many wait: what has come in since then waits for one.
        """
        self._line.append(connection)
        if not self._is_turn_due:
            self._is_turn_due = True
            self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        connection = self._line.popleft()
        if self._line:
            self.loop.call_soon(self._next_turn)
        else:
            self._is_turn_due = False
        try:
            if self._flush_queue:
                self._flush_all()  # what is answered does not wait for the turn
        finally:
            connection.take_turn()

    def on_completed(self, request: Request, response_bytes: int, now_ms: float) -> None:
        self.bytes_sent += response_bytes
        metrics = self._metrics
        if metrics is not None:
            received = request.received_ms
            metrics.request_completed(
                request, response_bytes, request.handled_ms - received, now_ms - received
            )

    def wait_for_memory(self, connection: ServerConnection) -> None:
        """Wake the connection when frames have been released."""
        self._memory_waiters.append(connection)
        # It may be free again: frames that came with the one that waits have been answered since.
        self.on_memory_released()

    def on_memory_released(self) -> None:
        if self._memory_waiters and not self._waking and not self.memory.is_exhausted:
            self._waking = True
            self.loop.call_soon(self._wake_memory_waiters)

    def _wake_memory_waiters(self) -> None:
        self._waking = False
        for _ in range(len(self._memory_waiters)):
            if self.memory.is_exhausted:
                return
            self._memory_waiters.popleft().memory_available()

    # -- sweeping --------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self._sweep_timer = self.timers.call_later(SWEEP_INTERVAL_MS, self._sweep)
        now = self.clock.monotonic_ms()
        idle_ms = self.limits.connections_max_idle_ms
        frames_wait = bool(self._memory_waiters)
        for connection in list(self._connections):
            silent_ms = now - connection.last_active_ms
            if 0 <= idle_ms < silent_ms and connection.is_idle:
                connection.close(f"idle for {silent_ms:.0f} ms")
            elif (
                frames_wait and silent_ms > STALLED_FRAME_MS and connection.is_stalled_inside_frame
            ):
                connection.close("stalled inside a request while others wait for its memory")
