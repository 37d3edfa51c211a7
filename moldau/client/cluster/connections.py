"""The sockets of one client: opened on demand, one per node and purpose, closed when idle.

Owns connections, the attempts under way, the pauses after failures (`reconnect.backoff.ms`,
KIP-144), throttling (KIP-219) and the probes of what a port speaks that does not understand us.
Must not know which node leads what, or what requests mean. Invariants: cancelling a caller never
closes or corrupts a connection that others use; after `close`, or the orderly end of the loop,
nothing is left open and nothing runs; a probe leaves nothing open, and one that fails says nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.cluster.reachability import Address, RecurringWarning, addresses_text
from moldau.client.cluster.security import Security
from moldau.client.config.client import ClientConfig
from moldau.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    KafkaError,
    TlsFailed,
    WrongEventLoop,
)
from moldau.config.backoff import backoff_ms
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.framing import DEFAULT_MAX_FRAME_BYTES
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.runtime.authentication import (
    PLAINTEXT_ADVICE,
    TLS_ADVICE,
    AuthenticationError,
    TlsError,
)
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.connection import DEFAULT_MAX_IN_FLIGHT, Connection, NothingHeard
from moldau.runtime.network import Network
from moldau.runtime.shared_work import outcome_of

Purpose: TypeAlias = Literal["data", "fetch", "coordinator"]
"""Each has its own socket, so that heartbeats wait neither for fetches nor for joins."""

ROOM_BYTES: Final = 16 * 1024 * 1024
"""How much longer than `fetch.max.bytes` a fetch response may be: one batch always comes, and
names."""

LASTING_FAILURES: Final = 3
"""So many failures in a row of one broker are said although others can be reached."""

FRESH_MS: Final = 60_000.0
"""For how long a failure says something about its address: longer than an attempt takes."""


@dataclass(eq=False, repr=False)
class Connections:
    """All connections of one client, on one event loop. States: open → closed.

    Args:
        _security: TLS and SASL of all of them.
        _on_lost: called when a connection ended that this client has not closed.
        _warning: of brokers that cannot be reached although others can.
        _unreachable: of a cluster of which no broker can be reached; any new connection ends it.
    """

    _config: ClientConfig
    _clock: Clock
    _network: Network
    _random: random.Random
    _security: Security
    _on_lost: Callable[[], object]
    _warning: RecurringWarning
    _unreachable: RecurringWarning
    _open: dict[tuple[Address, Purpose], Connection] = field(default_factory=dict)
    _attempts: dict[tuple[Address, Purpose], asyncio.Task[Connection]] = field(default_factory=dict)
    _failures: dict[Address, tuple[int, float, str]] = field(default_factory=dict)
    _silent: dict[Address, int] = field(default_factory=dict)
    _throttled_until_ms: dict[tuple[Address, Purpose], float] = field(default_factory=dict)
    _idle_timer: TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _guard: AsyncGenerator[None, None] | None = None
    _owner_process_id: int = field(default_factory=os.getpid)
    is_closed: bool = False
    was_reached: bool = False
    """Whether there ever was a connection."""
    _is_left_open: bool = False  # it has tried to connect, and has not been closed

    async def close(self) -> None:
        """Close every connection and end every attempt (idempotent)."""
        self.is_closed = True
        self._is_left_open = False
        attempts = list(self._attempts.values())
        for task in attempts:
            task.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        self._drop()
        if self._guard is not None:
            await self._guard.aclose()

    def abandon(self, _process_id: Callable[[], int] = os.getpid) -> bool:
        """The client is collected: close what it has left open. Returns whether it should have been
        closed before. From any thread; in the child of a fork nothing is touched. Late in the
        interpreter's end, too, when this module has no names any more.
        """
        if not self._is_left_open or self._owner_process_id != _process_id():
            return False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop)
        return True

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        """Closes what is left open when `asyncio.run` ends the generators of its loop, so that no
        socket is left to warn of.
        """
        try:
            yield
        finally:
            self._drop()

    def _drop(self) -> None:
        self.is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        for connection in list(self._open.values()):
            connection.close()
        self._open.clear()

    def opened(self, address: Address, purpose: Purpose) -> Connection | None:
        """The connection, when there is one that requests may be sent on right now."""
        connection = self._open.get((address, purpose))
        if connection is None or connection.is_closed or self.pause_ms(address, purpose) > 0:
            return None
        return connection

    def is_connected(self, address: Address, purpose: Purpose) -> bool:
        return (address, purpose) in self._open

    def is_failing(self, address: Address) -> bool:
        """Whether the last attempt failed and it is too early for another one."""
        failure = self._failures.get(address)
        return failure is not None and failure[1] > self._clock.monotonic_ms()

    def tell_reached(self, address: Address) -> None:
        """A node was reached, or has answered on a connection that was open before."""
        self._unreachable.end(f"the cluster is reached, at {address[0]}:{address[1]}")

    def in_flight_count(self, address: Address, purpose: Purpose) -> int:
        connection = self._open.get((address, purpose))
        return 0 if connection is None else connection.in_flight_count

    def throttle(self, address: Address, purpose: Purpose, throttle_time_ms: float) -> None:
        until_ms = self._clock.monotonic_ms() + throttle_time_ms
        key = (address, purpose)
        self._throttled_until_ms[key] = max(until_ms, self._throttled_until_ms.get(key, 0.0))

    def pause_ms(self, address: Address, purpose: Purpose) -> float:
        """For how long nothing may be sent to the throttled node; else 0."""
        if not self._throttled_until_ms:
            return 0.0
        until_ms = self._throttled_until_ms.get((address, purpose))
        if until_ms is None:
            return 0.0
        left_ms = until_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            del self._throttled_until_ms[address, purpose]
            return 0.0
        return left_ms

    def start(self, address: Address, purpose: Purpose) -> None:
        """Begin to connect in the background, unless an attempt is under way or it is too early."""
        if self.is_closed or (address, purpose) in self._attempts or self.is_failing(address):
            return
        self._attempt(address, purpose)

    async def connect(self, address: Address, purpose: Purpose) -> Connection:
        """The open connection, or a new one; waits out the pause after a failure. Raises:
        ClientClosed, WrongEventLoop, AuthenticationFailed, TlsFailed, or a passing fault.
        """
        if self.is_closed and not self._is_left_open:  # else its loop has ended
            raise ClientClosed("the client is closed; make a new one")
        self._stay_on_loop()
        existing = self._open.get((address, purpose))
        if existing is not None and not existing.is_closed:
            return existing
        task = self._attempts.get((address, purpose)) or self._attempt(address, purpose)
        try:
            return await outcome_of(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            assert caller is not None
            if self.is_closed and task.cancelled() and not caller.cancelling():
                # `close` ended the attempt; the caller was not cancelled.
                raise ClientClosed("the client was closed") from None
            raise

    async def wait_out_throttle(self, address: Address, purpose: Purpose) -> None:
        while (pause_ms := self.pause_ms(address, purpose)) > 0:
            await asyncio.sleep(pause_ms / 1000)
            if self.is_closed:
                raise ClientClosed("the client was closed")

    def trouble(self) -> str:
        """The addresses that cannot be reached, and why; empty when there are none."""
        reasons = {address: "no answer so far" for address, _ in self._attempts}
        since_ms = self._clock.monotonic_ms() - FRESH_MS
        failures = self._failures.items()
        reasons |= {each: reason for each, (_, at_ms, reason) in failures if at_ms >= since_ms}
        return addresses_text(reasons)

    def _stay_on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._is_left_open = True
        elif self._loop is not loop:
            raise WrongEventLoop(
                "this client belongs to another event loop; make one per loop, or use "
                "moldau.client.sync, which threads can share"
            )

    def _attempt(self, address: Address, purpose: Purpose) -> asyncio.Task[Connection]:
        key = (address, purpose)
        task = asyncio.create_task(self._connected(address, purpose))
        self._attempts[key] = task

        def ended(done: asyncio.Task[Connection]) -> None:
            del self._attempts[key]
            if not done.cancelled():
                # Retrieved here, since no caller awaits an attempt that `start` began.
                done.exception()

        task.add_done_callback(ended)
        return task

    async def _connected(self, address: Address, purpose: Purpose) -> Connection:
        if self._guard is None:
            self._guard = self._until_loop_ends()
            await anext(self._guard)  # in one turn of the loop
        failure_count, not_before_ms, _ = self._failures.get(address, (0, 0.0, ""))
        pause_ms = not_before_ms - self._clock.monotonic_ms()
        if pause_ms > 0:
            await asyncio.sleep(pause_ms / 1000)
        config = self._config
        try:
            connection = await self._make(address, purpose, failure_count)
        except (*PASSING_FAULTS, KafkaError) as fault:
            reason = describe_fault(fault)
            failure_count += 1
            pause_ms = backoff_ms(
                failure_count,
                config.reconnect_backoff_ms,
                config.reconnect_backoff_max_ms,
                self._random,
            )
            until_ms = self._clock.monotonic_ms() + pause_ms
            self._failures[address] = (failure_count, until_ms, reason)
            if failure_count >= LASTING_FAILURES and self._open:
                self._warning.note(
                    f"a {config.node_kind} cannot be reached: {addresses_text({address: reason})}"
                )
            raise
        self.was_reached = True
        if self._failures.pop(address, None) is not None:
            self._warning.end(
                f"the {config.node_kind} at {address[0]}:{address[1]} is reached again"
            )
        self.tell_reached(address)
        self._open[address, purpose] = connection
        connection.on_close(self._forget)
        self._watch_idleness()
        return connection

    async def _make(self, address: Address, purpose: Purpose, failure_count: int) -> Connection:
        config = self._config
        first_ms = config.socket_connection_setup_timeout_ms
        most_ms = max(first_ms, config.socket_connection_setup_timeout_max_ms)
        timeout_ms = max(1, int(backoff_ms(failure_count + 1, first_ms, most_ms, self._random)))
        try:
            connection = await self._connection(address, timeout_ms)
            if self._silent.get(address):
                await self._find_out_why_silent(connection)
        except NothingHeard:
            await self._find_out_protocol(address, timeout_ms)
            raise
        except ConnectionResetError:
            if self._security.context is not None:
                await self._find_out_protocol(address, timeout_ms)
            raise
        except AuthenticationError as error:
            raise AuthenticationFailed(str(error)) from error
        except TlsError as error:
            raise TlsFailed(str(error)) from error
        return connection

    async def _connection(self, address: Address, connect_timeout_ms: int) -> Connection:
        config = self._config
        in_flight: int = getattr(config, "max_in_flight_requests_per_connection", 0)
        fetch_bytes: int = getattr(config, "fetch_max_bytes", 0)
        security = self._security
        return await Connection.connect(
            self._network,
            *address,
            client_id=config.client_id,
            clock=self._clock,
            ssl_context=security.context,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            max_in_flight=max(DEFAULT_MAX_IN_FLIGHT, in_flight),
            max_response_bytes=max(DEFAULT_MAX_FRAME_BYTES, fetch_bytes + ROOM_BYTES),
            send_buffer_bytes=config.send_buffer_bytes,
            receive_buffer_bytes=config.receive_buffer_bytes,
            authenticator=None if security.login is None else security.login.authenticate,
        )

    async def _find_out_protocol(self, address: Address, timeout_ms: int) -> None:
        """Raise TlsFailed when a port understood nothing because only one side speaks TLS. A TLS
        handshake shows up in a plaintext broker's log, so it is tried only when the same has
        happened twice.
        """
        where = f"{address[0]}:{address[1]}"
        if self._security.context is not None:
            if await _speaks_plaintext(self._network, *address, timeout_ms):
                raise TlsFailed(f"{where} does not speak TLS; {PLAINTEXT_ADVICE}")
            return
        self._silent[address] = self._silent.get(address, 0) + 1
        if self._silent[address] == 2 and await _speaks_tls(self._network, *address, timeout_ms):
            raise TlsFailed(f"{where} speaks TLS; {TLS_ADVICE}")

    async def _find_out_why_silent(self, connection: Connection) -> None:
        """Ask a listener that closed the last connection at its first request whether it wants
        SASL. Raises: AuthenticationFailed when it does.
        """
        if self._security.login is not None:
            return
        offered = await _offered_mechanisms(connection)
        if offered:
            connection.close()
            raise AuthenticationFailed(
                f"{connection.host}:{connection.port} wants SASL; set security.protocol to "
                f"SASL_PLAINTEXT or SASL_SSL, and sasl.mechanism to one of: {', '.join(offered)}"
            )

    def _forget(self, connection: Connection) -> None:
        address = (connection.host, connection.port)
        lost = [key for key, known in self._open.items() if known is connection]
        # One answer is that to ApiVersions, which every listener gives to every client.
        if connection.answer_count > 1:
            self._silent.pop(address, None)
        elif lost and not self.is_closed:
            self._silent[address] = self._silent.get(address, 0) + 1
        for key in lost:
            del self._open[key]
            if not self.is_closed:
                self._on_lost()

    def _watch_idleness(self) -> None:
        limit_ms = self._config.connections_max_idle_ms
        if limit_ms < 0 or self._idle_timer is not None or not self._open:
            return
        oldest_ms = min(connection.last_used_ms for connection in self._open.values())
        delay_ms = max(oldest_ms + limit_ms - self._clock.monotonic_ms(), 1.0)
        self._idle_timer = self._clock.call_later(delay_ms, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        limit_ms = self._config.connections_max_idle_ms
        now_ms = self._clock.monotonic_ms()
        for key, connection in list(self._open.items()):
            if connection.in_flight_count:
                connection.last_used_ms = now_ms
            elif now_ms - connection.last_used_ms >= limit_ms:
                # Out of the table first: a connection that is closed because it is idle is not
                # lost, nor was its broker silent.
                del self._open[key]
                connection.close()
        self._watch_idleness()


async def _speaks_tls(network: Network, host: str, port: int, timeout_ms: int) -> bool:
    """Whether the port answers a TLS handshake; the peer's identity does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        transport, _protocol = await network.connect(
            asyncio.Protocol, host, port, ssl_context=context, timeout_ms=timeout_ms
        )
    except ssl.SSLError as error:
        # Only a TLS peer can refuse us in TLS.
        return "ALERT" in (error.reason or "") or "CERTIFICATE" in (error.reason or "")
    except (OSError, TimeoutError):
        return False
    transport.abort()
    return True


async def _speaks_plaintext(network: Network, host: str, port: int, timeout_ms: int) -> bool:
    try:
        connection = await Connection.connect(
            network, host, port, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
        )
    except (OSError, TimeoutError, RemoteProtocolError):
        return False
    connection.close()
    return True


async def _offered_mechanisms(connection: Connection) -> list[str]:
    """The SASL mechanisms that the listener demands; empty when it demands none. With some, the
    connection is of no use afterwards.
    """
    try:
        response = await connection.send(SaslHandshakeRequest(mechanism="PLAIN"))
    except (OSError, TimeoutError, RemoteProtocolError, LocalProtocolError):
        return []
    code = ErrorCode.of(response.error_code)
    if code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_SASL_MECHANISM):
        return list(response.mechanisms) or ["?"]
    return []
