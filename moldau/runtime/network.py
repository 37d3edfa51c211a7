"""The Network port: listening and connecting, and its real form on asyncio (or uvloop).

Owns: sockets until they are handed to a transport, name resolution, socket options.
Must not: know Kafka's frames; asyncio's transport and protocol classes are the vocabulary both
sides speak. Invariant: a call that raises leaves no open socket behind.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import socket
import ssl
import sys
import termios
from collections.abc import Awaitable, Callable, Sequence
from struct import Struct
from typing import Protocol, TypeVar

from moldau.addresses import canonical_address, tls_name
from moldau.runtime.event_loop import this_task
from moldau.runtime.tls_transport import RAW_BYTES, TlsTransport

DEFAULT_BACKLOG = 50
"""Default of `socket.listen.backlog.size`."""

DEFAULT_CONNECT_TIMEOUT_MS = 10_000
"""Default of `socket.connection.setup.timeout.ms`."""

OS_DEFAULT_BYTES = -1
"""A socket buffer size that leaves the choice (and its tuning) to the operating system."""

ACCEPT_PAUSE_S = 1.0
"""After a failure to accept; what asyncio does, too."""

_INT = Struct("i")

logger = logging.getLogger(__name__)

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class Listener:
    """A bound address that accepts connections until closed; `port` is the system's choice where 0
    was asked for.
    """

    __slots__ = ("_servers", "port")

    def __init__(self, servers: Sequence[asyncio.Server | _TlsAcceptor], port: int) -> None:
        self._servers = list(servers)
        self.port = port

    def close(self) -> None:
        """Stop accepting; connections already accepted live on."""
        for server in self._servers:
            server.close()
        self._servers.clear()


class Handshakes(Protocol):
    """What a listener with TLS hears of the handshakes that come before its connections."""

    @property
    def timeout_ms(self) -> float:
        """How long one may take."""

    async def context(self) -> ssl.SSLContext:
        """For the next one."""

    def begin(self, host: str, handshake: asyncio.Task[None]) -> bool | Awaitable[bool]:
        """Whether a client from that address may begin one, now or after a pause; it may be
        cancelled later.
        """

    def end(self, host: str, error: OSError | None, *, is_late: bool) -> None:
        """It has ended, well without an error; `is_late` after the timeout. Called once for each
        that was allowed.
        """


class Network(Protocol):
    """How nodes and clients reach each other."""

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = DEFAULT_BACKLOG,
        receive_buffer_bytes: int = OS_DEFAULT_BYTES,
        handshakes: Handshakes | None = None,
    ) -> Listener:
        """Accept connections on `host` ("" for every interface); with `handshakes` those of TLS,
        for which a protocol is made after a handshake that ended well. Raises OSError.
        """

    async def connect(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Connect to the first address of `host` that answers. Raises OSError, TimeoutError."""


class AsyncioNetwork:
    """Real sockets on the running loop."""

    __slots__ = ()

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = DEFAULT_BACKLOG,
        receive_buffer_bytes: int = OS_DEFAULT_BYTES,
        handshakes: Handshakes | None = None,
    ) -> Listener:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        servers: list[asyncio.Server | _TlsAcceptor] = []
        try:
            for family, kind, protocol, _name, address in dict.fromkeys(addresses):
                # With port 0 every address family shall get the same port as the first.
                bind_port = sockets[0].getsockname()[1] if sockets else port
                bound = _bind(family, kind, protocol, (address[0], bind_port), receive_buffer_bytes)
                if bound is not None:
                    sockets.append(bound)
            if not sockets:
                raise OSError(f"{host or '*'} has no address this machine can listen on")
            for each in sockets:
                if handshakes is None:
                    servers.append(
                        await loop.create_server(protocol_factory, sock=each, backlog=backlog)
                    )
                else:
                    each.listen(backlog)
                    servers.append(_TlsAcceptor(each, protocol_factory, handshakes, loop))
        except OSError as error:
            for server in servers:
                server.close()
            for each in sockets:
                each.close()
            reason = error.strerror or str(error)
            message = f"cannot listen on {host or '*'}:{port}: {reason}"
            raise OSError(error.errno, message) from error
        return Listener(servers, sockets[0].getsockname()[1])

    async def connect(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                return await loop.create_connection(
                    protocol_factory,
                    host,
                    port,
                    ssl=ssl_context,
                    server_hostname=tls_name(host) if ssl_context is not None else None,
                )
            except ssl.SSLError:
                # A ValueError too, when it is about a certificate.
                raise
            except (
                ValueError
            ) as error:  # what the resolver says of labels that are none, and of NUL
                raise OSError(f"{host!r} is not a host name") from error


class _TlsAcceptor:
    """Accepts on one socket, and shakes hands with each client in its own task: a slow client
    keeps no other waiting. (`create_server` would keep one context for good, and say nothing of a
    handshake that fails.)
    """

    __slots__ = ("_accepting", "_factory", "_handshakes", "_loop", "_raw", "_shaking", "_socket")

    def __init__(
        self,
        bound: socket.socket,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        handshakes: Handshakes,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._socket = bound
        self._factory = protocol_factory
        self._handshakes = handshakes
        self._loop = loop
        self._raw = memoryview(bytearray(RAW_BYTES))
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = loop.create_task(self._accept())

    def close(self) -> None:
        for task in (self._accepting, *self._shaking):
            task.cancel()
        # The loop must have let go of the descriptor first.
        self._accepting.add_done_callback(lambda _: self._socket.close())

    async def _accept(self) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(self._socket)
            except ConnectionError:
                continue  # the client has gone already
            except OSError as error:
                # No descriptors, or no memory: wait until some is free, as asyncio does.
                logger.error("connections cannot be accepted: %s", error.strerror or error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._start(accepted, canonical_address(str(address[0])))
            await asyncio.sleep(0)  # it begins, and closes the socket also when it is cancelled

    def _start(self, accepted: socket.socket, host: str) -> None:
        task = self._loop.create_task(self._begin(accepted, host))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _begin(self, accepted: socket.socket, host: str) -> None:
        is_allowed = False
        try:
            answer = self._handshakes.begin(host, this_task())
            is_allowed = answer if isinstance(answer, bool) else await answer
        finally:
            if not is_allowed:
                accepted.close()
        if is_allowed:
            await self._shake(accepted, host)

    async def _shake(self, accepted: socket.socket, host: str) -> None:
        handshakes = self._handshakes
        timeout_s = handshakes.timeout_ms / 1000
        begun_s = self._loop.time()
        problem: OSError | None = None
        is_late = is_handed_over = is_shaken = False
        transport: TlsTransport | None = None
        try:
            context = await handshakes.context()
            made = transport = TlsTransport(self._factory, context, self._raw, self._loop)
            is_handed_over = True
            await self._loop.connect_accepted_socket(lambda: made, accepted)
            async with asyncio.timeout(timeout_s):
                await made.handshake()
            is_shaken = True
        except OSError as error:
            problem = error
            is_late = self._loop.time() - begun_s >= timeout_s
            if transport is not None and isinstance(error, ssl.SSLError):
                await transport.wait_closed()  # its client reads why
        finally:
            if not is_handed_over:
                accepted.close()
            elif transport is not None and not is_shaken:
                transport.abort()
                transport.connection_lost(None)  # uvloop says nothing if the making was cancelled
            handshakes.end(host, problem, is_late=is_late)
            problem = None  # its traceback knows this frame: no cycle is left


def _bind(
    family: int, kind: int, protocol: int, address: tuple[str | int, int], receive_buffer_bytes: int
) -> socket.socket | None:
    """A bound socket, or None where the machine lacks the address family."""
    try:
        bound = socket.socket(family, kind, protocol)
    except OSError:
        return None
    try:
        if sys.platform != "win32":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if receive_buffer_bytes != OS_DEFAULT_BYTES:
            # Before listen: the window scale is settled while connecting.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        bound.setblocking(False)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def set_socket_options(
    transport: asyncio.BaseTransport,
    send_buffer_bytes: int,
    receive_buffer_bytes: int = OS_DEFAULT_BYTES,
) -> None:
    """TCP_NODELAY, keep-alive and the buffers of a new connection, where it has a socket."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if send_buffer_bytes != OS_DEFAULT_BYTES:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes != OS_DEFAULT_BYTES:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    except OSError:
        # The peer is gone already; the protocol gets connection_lost in a moment.
        return


def has_lost_peer(transport: asyncio.BaseTransport, missing_bytes: int) -> bool:
    """Whether the peer has gone before so much more came: it has reset the connection, or ended its
    side of it. A transport that does not read does not notice. False where there is no socket, or
    the system has no `poll` for that (other than Linux).
    """
    connection = transport.get_extra_info("socket")
    ended = getattr(select, "POLLRDHUP", 0)
    if connection is None or connection.fileno() < 0 or not ended:
        return False
    poll = select.poll()
    poll.register(connection, ended)
    found = [event for _, event in poll.poll(0)]
    if found != [ended]:
        return bool(found)
    [unread_bytes] = _INT.unpack(fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))
    if transport.get_extra_info("ssl_object") is not None:
        unread_bytes += RAW_BYTES  # what TLS may hold already
    return bool(unread_bytes < missing_bytes)
