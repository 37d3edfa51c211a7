"""Connections of HTTP clients: how many there are, how long each may take, and what it may hold.

Owns the places of connections and their time limits (`moldau.http.*`), on the foundation of
aiohttp's protocol, of which versions from 3.14.4 on, before 4, are served: earlier ones raise what
is no HTTP error for some targets, and queue requests without a bound. Must not know pages, or who
asks.

Invariants: a new connection always finds a place, so that a probe does: where all are taken, the
address that has most of them loses the one that has waited longest. A connection without a request
under way is cut after `header_timeout_s` once the next has begun, else after `idle_timeout_s`; one
whose answer is not taken after `response_timeout_s`, which begins again with each part of a body
that is read, and of an answer that streams. No body is decompressed. What a client causes is one
line for each kind and address in ten seconds, and no traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from moldau.addresses import canonical_address, network_of
from moldau.config.settings import KeyedSettings, of_key
from moldau.node.http.places import Places
from moldau.runtime.clock import Clock
from moldau.runtime.telemetry.logs import Event
from moldau.server.audit_log import Lines
from moldau.text import quoted

logger = logging.getLogger(__name__)

SERVER: Final = "moldau"
"""The header `Server`, on every answer: without a version of anything."""
END_OF_HEADERS: Final = b"\r\n\r\n"
_VERSIONS: Final = (b" HTTP/1.1\r", b" HTTP/1.0\r")
MAX_HEAD_BYTES: Final = 4096
"""The limit of a first header block kept here; aiohttp reads a longer one while it comes."""
MAX_AHEAD_BYTES: Final = 128 * 1024
"""The limit for a header block, and for what a client sends behind a request that is under way."""
NO_HTTP: Final = "what it sends is no HTTP"
LINGER_S: Final = 1.0
"""How long what a client still sends is thrown away before its connection is closed: else it could
not read the answer to a request whose body was refused."""
MOVED_S: Final = 1.0
"""The time limit of an answer begins again at most so often."""
ENDING_S: Final = 5.0
"""How long a connection that closes may take for the rest of its answer."""


def _seconds(ms: int) -> float:
    return ms / 1000


@dataclass(frozen=True, slots=True)
class HttpLimits(KeyedSettings):
    """What clients of the HTTP listener may take.

    Attributes:
        max_connections: of all addresses.
        max_connections_per_ip: of one address.
        header_timeout_s: from a connection's beginning, or the first byte of a further request, to
            the end of the headers.
        idle_timeout_s: without a request under way.
        response_timeout_s: from the end of the headers until the client has taken the answer.
        max_unsent_bytes: of answers that clients have not taken yet, all together.
    """

    max_connections: int = of_key("moldau.http.max.connections")
    max_connections_per_ip: int = of_key("moldau.http.max.connections.per.ip")
    header_timeout_s: float = of_key("moldau.http.header.timeout.ms", made=_seconds)
    idle_timeout_s: float = of_key("moldau.http.idle.timeout.ms", made=_seconds)
    response_timeout_s: float = of_key("moldau.http.response.timeout.ms", made=_seconds)
    max_unsent_bytes: int = of_key("moldau.http.max.unsent.bytes")


class ClientLines:
    """What clients get wrong, one line for each kind and address in ten seconds, then a count."""

    def __init__(self, clock: Clock, max_lines: int) -> None:
        self._lines = Lines(logger, logging.WARNING, clock, max_lines)

    def tell(self, host: str, problem: str) -> None:
        """`problem` is one of a bounded number, without anything that a client chose."""

        def event() -> Event:
            text = f"HTTP client at {quoted(host)}: {problem}"
            fields: dict[str, object] = {"host": host, "problem": problem}
            return Event("HTTP client", text, fields, is_counted=True)

        self._lines.tell((host, problem), (host,), event)

    def close(self) -> None:
        """Write the counts that are due."""
        self._lines.close()


class HttpConnections:
    """All connections of one listener, on its loop."""

    def __init__(self, limits: HttpLimits, lines: ClientLines) -> None:
        self.limits = limits
        self.lines = lines
        self.places: Places[HttpConnection] = Places(
            limits.max_connections, limits.max_connections_per_ip
        )

    def close(self) -> None:
        """End what has not asked for anything yet, and write the counts that are due."""
        for each in tuple(self.places):
            each.cut()
        self.lines.close()

    def make_room(self, size_bytes: int) -> None:
        """Have so many bytes less than allowed wait for clients: the address that most of them
        wait for loses the connection that has waited longest.
        """
        waiting = {each: each.unsent_bytes for each in self.places if each.unsent_bytes}
        while waiting and sum(waiting.values()) + size_bytes > self.limits.max_unsent_bytes:
            by_host: Counter[str] = Counter()
            for each, unsent_bytes in waiting.items():
                by_host[network_of(each.host)] += unsent_bytes
            [(host, _)] = by_host.most_common(1)
            loser = min(
                (each for each in waiting if network_of(each.host) == host),
                key=lambda each: each.since_s,
            )
            del waiting[loser]
            loser.cut("cut, as its address leaves too many bytes of answers unread")


class Phase(Enum):
    """What a connection is doing; what follows is in `TRANSITIONS`."""

    HEADER = "the end of a header block is due"
    ANSWERING = "a request is under way"
    IDLE = "all that was asked is answered"
    ENDING = "the rest of the last answer leaves"
    GONE = "gone"


TRANSITIONS: Final = {
    Phase.HEADER: (Phase.ANSWERING, Phase.GONE),
    Phase.ANSWERING: (Phase.HEADER, Phase.IDLE, Phase.ENDING, Phase.GONE),
    Phase.IDLE: (Phase.HEADER, Phase.ANSWERING, Phase.GONE),
    Phase.ENDING: (Phase.GONE,),
    Phase.GONE: (),
}
_OUTSIDE_OF_HANDLERS: Final = "Unhandled exception"
"""What aiohttp says of an error that no handler has raised. It raises one itself where it still
throws away a body as the connection is cut.
"""
_LATE: Final = {
    Phase.HEADER: "no whole header block in time",
    Phase.ANSWERING: "the answer is not taken in time",
    Phase.ENDING: "the answer is not taken in time",
}
"""What is logged when a phase takes too long."""


class HttpConnection(asyncio.Protocol):
    """One client's connection, with limits. What it sends goes to aiohttp from the first whole
    header block on, or once it is none: before that a connection costs little.
    """

    def __init__(self, connections: HttpConnections, server: web.Server) -> None:
        self._connections = connections
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._phase = Phase.HEADER
        self._transport: asyncio.Transport | None = None
        self._handler: _Handler | None = None
        self._head = b""
        self._limit: asyncio.TimerHandle | None = None
        self._end = b""
        self._ahead_bytes = 0
        self.host = ""
        self.is_busy = False
        self.since_s = 0.0
        self.has_body = False

    @property
    def unsent_bytes(self) -> int:
        """What the client has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- of the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.host = canonical_address(str(peer[0])) if peer else ""
        connections = self._connections
        self.since_s = self._loop.time()
        connections.places.take(self)
        self._wait(connections.limits.header_timeout_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forget()
        handler, self._handler, self._transport = self._handler, None, None  # no cycle is left
        if handler is not None:
            handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._phase is not Phase.ENDING:
            if self._ahead_bytes > MAX_AHEAD_BYTES:
                self.cut("too many bytes of headers, or behind a request")
                return
            if not self.has_body:  # it is read as it comes, which bounds what has come
                self._ahead_bytes += len(data)
            self._end = (self._end + data[-len(END_OF_HEADERS) :])[-len(END_OF_HEADERS) :]
            if self._phase is Phase.IDLE:
                self._move(Phase.HEADER, self._connections.limits.header_timeout_s)
        if self._handler is None:
            self._head += data
            if _may_become_headers(self._head):
                return
            transport = self._transport
            if transport is None or transport.is_closing():
                return
            data, self._head = self._head, b""
            self._handler = _Handler(self, self._server, self._connections.limits.idle_timeout_s)
            self._handler.connection_made(transport)
        self._handler.data_received(data)

    def eof_received(self) -> None:
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    # -- of requests -----------------------------------------------------------------------------

    def begin_request(self) -> None:
        """The header block of the next request is whole."""
        self._ahead_bytes = 0
        if self._phase in (Phase.HEADER, Phase.IDLE):
            self._move(Phase.ANSWERING, self._connections.limits.response_timeout_s)

    def takes_body(self) -> None:
        """A body belongs to the request, and is read as it comes."""
        self.has_body = True

    def goes_on(self) -> None:
        """A part of the body was read, or one of the answer was taken: the time for the answer
        begins again.
        """
        if self._phase is Phase.ANSWERING and self._loop.time() - self.since_s >= MOVED_S:
            self.since_s = self._loop.time()
            self._wait(self._connections.limits.response_timeout_s)

    def make_room(self, size_bytes: int) -> None:
        """An answer of that size leaves next."""
        self._connections.make_room(size_bytes)

    def end_request(self, *, is_kept: bool) -> None:
        """The answer to the request has been made."""
        if self._phase is not Phase.ANSWERING:
            return
        limits = self._connections.limits
        had_body, self.has_body = self.has_body, False
        if not is_kept:
            self._move(Phase.ENDING, ENDING_S)
        elif had_body or self._end == END_OF_HEADERS:
            self._move(Phase.IDLE, limits.idle_timeout_s)
        else:  # a part of the next header block has come already
            self._move(Phase.HEADER, limits.header_timeout_s)

    def tell(self, problem: str) -> None:
        """Log what the client got wrong."""
        self._connections.lines.tell(self.host, problem)

    # -- limits ----------------------------------------------------------------------------------

    def cut(self, problem: str = "") -> None:
        """End the connection now, without another byte; with a line unless `problem` is empty."""
        if problem:
            self.tell(problem)
        transport = self._transport
        self._forget()
        if self._handler is not None:
            self._handler.force_close()
        if transport is not None:
            transport.abort()

    def give_up(self) -> None:
        self.cut("cut, as its address takes too many connections")

    def _move(self, phase: Phase, limit_s: float) -> None:
        assert phase in TRANSITIONS[self._phase], f"{self._phase} → {phase}"
        self._phase = phase
        self.since_s = self._loop.time()
        self.is_busy = phase is Phase.ANSWERING
        self._wait(limit_s)

    def _wait(self, limit_s: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._loop.call_later(limit_s, self._on_limit)

    def _on_limit(self) -> None:
        has_spoken = bool(self._end)
        self.cut(_LATE.get(self._phase, "") if has_spoken else "")

    def _forget(self) -> None:
        self._phase = Phase.GONE
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        self._connections.places.leave(self)


def _may_become_headers(head: bytes) -> bool:
    """Whether these are the first bytes of a header block, as far as that shows without reading it,
    and the rest is to come.
    """
    if not head:
        return True
    line, line_end, _ = head.partition(b"\n")
    is_request = b"A" <= line[:1] <= b"Z" and (not line_end or line.endswith(_VERSIONS))
    return is_request and END_OF_HEADERS not in head and len(head) <= MAX_HEAD_BYTES


class _Handler(web.RequestHandler):
    """aiohttp's side of a connection."""

    def __init__(
        self, connection: HttpConnection, server: web.Server, idle_timeout_s: float
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(logging.Logger, None),
            logger=logger,
            keepalive_timeout=idle_timeout_s,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self.connection = connection

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        self.connection.begin_request()
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        exc.__traceback__ = None  # whose frames know the error
        self.connection.tell(NO_HTTP)
        return web.Response(status=400, text="400: Bad Request")  # the last one, as it is HTTP/1.0

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        resp.headers.setdefault("Server", SERVER)
        if request.body_exists and not (self.connection.has_body and request.content.is_eof()):
            resp.force_close()  # the body is not read
        if isinstance(resp, web.Response) and isinstance(resp.body, bytes):
            self.connection.make_room(len(resp.body))
        finished = await super().finish_response(request, resp, start_time)
        self.connection.end_request(is_kept=bool(resp.keep_alive))
        return finished

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """One line of what a client caused; the traceback of what it did not."""
        error = kw.get("exc_info")
        if not self.connected and args == (_OUTSIDE_OF_HANDLERS,):
            return  # nothing more is read from a connection that has ended
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
            self.connection.tell(NO_HTTP)
        else:
            super().log_exception(*args, **kw)


def begin(request: web.BaseRequest) -> None:
    """Count a request as begun, whose headers have come."""
    line_of(request).begin_request()


def line_of(request: web.BaseRequest) -> HttpConnection:
    """The connection that a request came by."""
    handler = request.protocol
    assert isinstance(handler, _Handler), "made by this listener"
    return handler.connection
