"""A connection of a server: frames in, requests to the handler, responses out in request order.

Owns: the deque of unanswered requests, the frames not yet given to the handler, why reading is
paused. Must not: know any API (but the header), or wait; what connections share is
`connection_group`'s, which ends idle and slow ones.

Invariants: responses leave in the order of their requests; at most `MAX_IN_FLIGHT_REQUESTS` are
with the handler, `MAX_HELD_REQUESTS` of those that are held; while any pause reason holds, nothing
more is read from the socket; what the handler has not had at once waits for turns, one request
each; whatever one peer sends, only its own connection suffers; all memory that a peer can make us
hold has a limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from moldau.addresses import canonical_address, network_of
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.framing import FrameReader
from moldau.protocol.headers import decode_request_header
from moldau.runtime.clock import TimerHandle
from moldau.runtime.files import FileRegion, source_bytes
from moldau.runtime.network import has_lost_peer
from moldau.runtime.slices import Work
from moldau.server.loop_watchdog import STALL_MS
from moldau.server.memory_shares import PeerKind, Share
from moldau.server.outgoing import SENDFILE_MIN_BYTES, Offload, OutgoingStream, run_inline
from moldau.server.request import Gate, Request
from moldau.server.turns import InTurns

if TYPE_CHECKING:
    from moldau.server.authentication.listener_security import ListenerSecurity
    from moldau.server.connection_group import ConnectionGroup

T = TypeVar("T")

MAX_IN_FLIGHT_REQUESTS: Final = 64
"""Requests of one connection with the handler; more wait in the receive buffer, then in the socket.
"""

MAX_HELD_REQUESTS: Final = 4
"""Requests of one connection that may wait where room is limited for all; its next ones are not
handled before. Apache Kafka handles one request of a connection at a time, whatever it waits for.
"""

MAX_HELD_BYTES: Final = 1024 * 1024
"""Bytes of such requests after which the connection's next ones are not handled."""

UNSENT_MS: Final = 1.0
"""The answers of so much handling leave together while the connection stays in the line: a call to
the kernel costs as much as a tenth of a request. Those of what has just been read leave at once, so
that a client with few requests in flight sends the next ones early.
"""

MAX_PENDING_RESPONSE_BYTES: Final = 1024 * 1024
"""Response bytes a peer may leave unread before its further requests wait."""

FRAME_MS: Final = 30_000.0
"""How long a frame may take to arrive, and an answer to be read, while others wait for memory: the
default of clients' `request.timeout.ms`. The parts of it are due at the same rate.
"""

OVER_SHARE_FRAME_MS: Final = 10_000.0
"""The same for a principal or an address that holds more than its share."""

ANONYMOUS: Final = "User:ANONYMOUS"

_LOG = logging.getLogger(__name__)


class PauseReason:
    """Why a connection is not read from: bits of a plain int (measured: to test a bit of an
    IntFlag takes 0.2-0.4 µs, several times per request).
    """

    IN_FLIGHT: Final = 1
    UNREAD_RESPONSES: Final = 2
    MEMORY: Final = 4
    THROTTLED: Final = 8
    CLOSING: Final = 16
    HELD: Final = 32
    BACKLOG: Final = 64
    SUSPENDED: Final = 128


_STOPS_DISPATCH: Final = (
    PauseReason.IN_FLIGHT
    | PauseReason.UNREAD_RESPONSES
    | PauseReason.THROTTLED
    | PauseReason.CLOSING
    | PauseReason.HELD
    | PauseReason.SUSPENDED
)


class Unread:
    """Answers of a connection that its peer has not read, as far as they are in memory.

    Attributes:
        held_bytes: of all of them.
        slow_ms: how long the oldest of them are being read; for the sweep to add to.
    """

    __slots__ = ("_due_bytes", "_newer_bytes", "held_bytes", "slow_ms")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.slow_ms = 0.0
        self._due_bytes = 0
        self._newer_bytes = 0

    @property
    def read_part(self) -> float:
        """How much of the oldest has been read, from 0 to 1."""
        if not self._due_bytes:
            return 1.0
        return 1.0 - max(self.held_bytes - self._newer_bytes, 0) / self._due_bytes

    def update(self, held_bytes: int) -> None:
        """So much is unread now. What has come is newer than what was unread before: the oldest are
        due first.
        """
        self._newer_bytes += max(held_bytes - self.held_bytes, 0)
        self.held_bytes = held_bytes
        if held_bytes <= self._newer_bytes:
            self._due_bytes, self._newer_bytes, self.slow_ms = held_bytes, 0, 0.0


@dataclass(slots=True, eq=False, repr=False)
class ServerConnection(asyncio.BufferedProtocol):
    """A client as the server sees it; `Connection` explains what its requests know of it."""

    _group: ConnectionGroup
    listener_name: str
    _security: ListenerSecurity | None = None
    """The listener's, None where it is PLAINTEXT."""
    transport: asyncio.Transport = field(init=False)
    _stream: OutgoingStream = field(init=False)
    share: Share = field(init=False)
    opened_ms: float = field(init=False)
    last_active_ms: float = field(init=False)
    gate: Gate | None = None
    _is_between_nodes: bool = field(init=False)
    _reader: FrameReader = field(init=False)
    _requests: deque[Request] = field(default_factory=deque)
    _backlog: deque[memoryview] = field(default_factory=deque)
    _pause_reasons: int = 0
    _dispatching: bool = False
    _in_line: bool = False
    _unsent_ms: float = 0.0
    _frame_ms: float = 0.0
    _unread: Unread = field(default_factory=Unread)
    _was_paused: bool = False
    _flush_scheduled: bool = False
    _held: set[Request] = field(default_factory=set)
    _held_bytes: int = 0
    _suspensions: int = 0
    _throttle_timer: TimerHandle | None = None
    _throttled_until_ms: float = 0.0
    _close_callbacks: list[Callable[[ServerConnection], object]] = field(default_factory=list)
    is_closed: bool = False
    client_host: str = ""
    client_port: int = 0
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    connection_id: str = ""
    principal: str = ANONYMOUS
    token_authenticated: bool = False
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        group = self._group
        self._is_between_nodes = self.listener_name in group.limits.node_listeners
        self._reader = FrameReader(
            group.memory,
            max_frame_bytes=group.limits.request_max_bytes,
            max_cut_count=MAX_IN_FLIGHT_REQUESTS,
        )
        self.opened_ms = self.last_active_ms = group.clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"ServerConnection({self.connection_id})"

    # -- what handlers may use ------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        return len(self._requests)

    @property
    def is_idle(self) -> bool:
        """Whether the next move is the peer's."""
        return not self._requests or (self._requests[0].is_done and not self._stream.is_empty)

    @property
    def is_inside_large_frame(self) -> bool:
        """Whether the peer owes us the rest of a large frame that has a buffer."""
        return self._reader.holds_large_frame

    @property
    def lag_ms(self) -> float:
        """How far behind its time the frame is that has not arrived whole, or the answer that has
        not been read; negative for what comes early.
        """
        allowed_ms = OVER_SHARE_FRAME_MS if self.share.is_over_share else FRAME_MS
        lag_ms = -allowed_ms
        if self._reader.is_inside_frame:
            lag_ms = self._frame_ms - allowed_ms * self._reader.arrived_part
        if self._unread.held_bytes > SENDFILE_MIN_BYTES:  # else it is a slow reader of files
            lag_ms = max(lag_ms, self._unread.slow_ms - allowed_ms * self._unread.read_part)
        return lag_ms

    def throttle(self, delay_ms: float) -> None:
        until = self._group.clock.monotonic_ms() + delay_ms
        if delay_ms <= 0 or until <= self._throttled_until_ms or self.is_closed:
            return
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._throttled_until_ms = until
        self._throttle_timer = self._group.timers.call_later(delay_ms, self._end_throttle)
        self._pause(PauseReason.THROTTLED)

    def hold(self, request: Request) -> None:
        self._held.add(request)
        self._held_bytes += request.size_bytes
        if self._holds_too_much:
            self._pause(PauseReason.HELD)

    @property
    def _holds_too_much(self) -> bool:
        return len(self._held) >= MAX_HELD_REQUESTS or self._held_bytes >= MAX_HELD_BYTES

    def suspend(self) -> None:
        self._suspensions += 1
        self._pause(PauseReason.SUSPENDED)

    def proceed(self) -> None:
        self._suspensions -= 1
        if not self._suspensions:
            self._resume(PauseReason.SUSPENDED)

    @property
    def offload(self) -> Offload:
        return self._group.offload or run_inline

    def start(self, work: Work) -> None:
        self._group.start_work(work)

    def in_turns(self, work: Coroutine[object, None, T]) -> InTurns[T]:
        return self._group.turns.taken_by(self.share, work)

    def on_close(self, callback: Callable[[ServerConnection], object]) -> None:
        self._close_callbacks.append(callback)

    def close(self, reason: str) -> None:
        if not self.is_closed:
            self._group.log_closing(self, reason)
            self._abort()

    def authenticate(self, principal: str) -> None:
        self.principal = principal
        self._reader.is_frugal = False
        kind = PeerKind.NODES if self._is_between_nodes else PeerKind.CLIENTS
        self.share.move(kind, "" if principal == ANONYMOUS else principal)

    def limit_frames(self, max_bytes: int, min_bytes: int = 1) -> None:
        self._reader.max_frame_bytes = max_bytes
        self._reader.min_frame_bytes = min_bytes

    def release_frame(self, frame: memoryview) -> None:
        self._reader.release(frame)
        self._group.on_memory_released()

    def on_response(self, request: Request) -> None:
        if request in self._held:
            self._held.remove(request)
            self._held_bytes -= request.size_bytes
            if not self._holds_too_much:
                self._resume(PauseReason.HELD)
        if self.is_closed:
            request.discard()
        elif not self._dispatching and self._requests and self._requests[0] is request:
            self._schedule_flush()

    # -- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes: nothing to check at run time.
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        local = transport.get_extra_info("sockname") or ("", 0)
        self.client_host, self.client_port = canonical_address(str(peer[0])), int(peer[1])
        group = self._group
        self.share = self._reader.account = self._opened_share()
        self._stream = OutgoingStream(self.transport, self, group.loop, offload=group.offload)
        self.connection_id = (
            f"{local[0]}:{local[1]}-{peer[0]}:{peer[1]}-{next(group.connection_numbers)}"
        )
        security = self._security
        if not group.admit(self, is_counted=security is not None and security.contexts is not None):
            self._abort()
        elif security is not None:
            problem = security.greet(self, group)
            if problem is not None:
                group.authentication_log.failed(self.listener_name, self.client_host, problem)
                self._abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._finish()
        self._group.forget(self)
        # No cycle is left: the collector comes seldom, and TLS holds much for a connection.
        del self.transport, self._stream

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        now = self._group.clock.monotonic_ms()
        self.last_active_ms = now
        reader = self._reader
        try:
            frames = reader.buffer_updated(nbytes)
        except RemoteProtocolError as error:
            self.close(str(error))
            return
        if frames:
            self._frame_ms = 0.0
            self._group.bytes_received += nbytes
            self._backlog.extend(frames)
            if not self._in_line:
                self._handle_new(now)
        if not self._pause_reasons and not self.is_closed and not reader.make_ready():
            self._wait_for_memory()

    def eof_received(self) -> bool:
        # The client reads no more answers: a half-closed Kafka connection has no meaning. Nor does
        # what the transport still holds: a peer that reads none of it would stay for ever.
        self._abort()
        return False

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    # -- the outgoing stream's side -------------------------------------------------------------

    def on_drained(self) -> None:
        if self._unread.held_bytes:
            self._count_unread()
            self._group.on_memory_released()
        if self._pause_reasons:
            self._resume(PauseReason.UNREAD_RESPONSES)

    def on_progress(self) -> None:
        self.last_active_ms = self._group.clock.monotonic_ms()

    def on_send_failed(self, error: OSError) -> None:
        self.close(f"sending failed: {error.strerror or error}")

    # -- the group's side -----------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Handle nothing of what the peer sends: the connection only waits for its end."""
        self._pause(PauseReason.CLOSING)

    def begin_closing(self) -> None:
        if self.is_closed:
            return
        self._pause(PauseReason.CLOSING)
        self._drop_backlog()
        if not self._requests:
            self._stream.close_when_sent()

    def memory_available(self) -> bool:
        """Memory was released: go on with what waited for it; whether that was possible."""
        if self.is_closed:
            return True
        reader = self._reader
        try:
            frames = reader.resume()
        except RemoteProtocolError as error:
            self.close(str(error))
            return True
        if frames:
            self._frame_ms = 0.0
            self._backlog.extend(frames)
            self._pause(PauseReason.BACKLOG)
        elif reader.is_blocked:
            return False
        self._resume(PauseReason.MEMORY)
        return True

    def end_if_peer_is_lost(self) -> None:
        """End the connection if its peer has gone before the frame came whole that it waits for:
        nothing else shows it while nothing is read.
        """
        if has_lost_peer(self.transport, self._reader.missing_bytes):
            self._abort()

    def swept(self, elapsed_ms: float) -> None:
        """So much time has passed since the last sweep in which the loop read from its sockets."""
        self._reader.settle()
        if self._unread.held_bytes:
            self._count_unread()
            self._unread.slow_ms += elapsed_ms
        # Time in which we did not read from this peer is not its own.
        if not self._was_paused and self._reader.is_inside_frame:
            self._frame_ms += elapsed_ms
        self._was_paused = bool(self._pause_reasons & ~PauseReason.UNREAD_RESPONSES)

    def take_turn(self) -> None:
        """Its turn has come: one request is handled, after what is answered has left."""
        self._in_line = False
        group = self._group
        try:
            group.flush_answered()
        finally:
            if not self.is_closed:
                self._dispatch(group.clock.monotonic_ms(), 0.0)

    def flush(self) -> None:
        """Send what can be sent: the answered requests at the head of the order, joined."""
        self._flush_scheduled = False
        self._unsent_ms = 0.0
        requests = self._requests
        if self.is_closed or not requests or not requests[0].is_done:
            return
        group = self._group
        now = group.clock.monotonic_ms()
        if self._unread.held_bytes:
            self._count_unread()
        pending: list[bytes | bytearray | memoryview] = []
        finished: list[Request] = []
        stream = self._stream
        try:
            while requests and requests[0].is_done:
                request = requests.popleft()
                finished.append(request)
                response_bytes = self._queue_parts(request, pending)
                group.on_completed(request, response_bytes, now)
        except OSError as error:
            # A file could not be read: half a response is no response.
            for request in finished:
                request.discard()
            self.on_send_failed(error)
            return
        # Joining copies: what is handed on is never a buffer that gets reused.
        stream.write(bytes(pending[0]) if len(pending) == 1 else b"".join(pending))
        pending.clear()
        for request in finished:
            request.release_body()
        if self.is_closed:
            return
        if not stream.is_empty:
            self._count_unread()
            if max(stream.pending_bytes, self._unread.held_bytes) > MAX_PENDING_RESPONSE_BYTES:
                self._pause(PauseReason.UNREAD_RESPONSES)
        if len(requests) <= MAX_IN_FLIGHT_REQUESTS // 2:
            self._resume(PauseReason.IN_FLIGHT)
        if self._pause_reasons & PauseReason.CLOSING and not requests:
            stream.close_when_sent()

    # -- inner workings -------------------------------------------------------------------------

    def _handle_new(self, now: float) -> None:
        """Give to the handler what has just been read, as far as it may have it at once."""
        group, party = self._group, self.share.party
        turn_ms = group.turns.at_once_ms(party, now)
        if turn_ms:
            group.turns.took(party, self._dispatch(now, turn_ms))
        else:
            self._pause(PauseReason.BACKLOG)
            self._join_line()

    def _dispatch(self, now: float, turn_ms: float) -> float:
        """Give frames to the handler until there are none, a pause reason stops it, or the turn is
        over, with one request at least. Returns how long that took.
        """
        if self._dispatching:
            return 0.0
        self._dispatching = True
        backlog, requests, group = self._backlog, self._requests, self._group
        reader = self._reader
        begun_ms = now
        try:
            while not self._pause_reasons & _STOPS_DISPATCH and not self.is_closed:
                if not backlog and not (reader.has_uncut and self._cut_more()):
                    break
                frame = backlog.popleft()
                gate = self.gate
                try:
                    header, header_size = (
                        decode_request_header(frame) if gate is None else gate.read_header(frame)
                    )
                except RemoteProtocolError as error:
                    self._reader.release(frame)
                    self.flush()
                    self.close(f"malformed request header: {error}")
                    return 0.0
                request = Request(self, header, header_size, frame, now)
                requests.append(request)
                try:
                    group.handler(request)
                except RemoteProtocolError as error:
                    self.flush()
                    request.close(f"malformed request: {error}")
                    return 0.0
                except BaseException:
                    # Our fault. The fault table decides about the node; this request may never
                    # be answered, and nothing behind it could be.
                    request.close("a request failed inside the node")
                    raise
                handled_ms = request.handled_ms = group.clock.monotonic_ms()
                if handled_ms - begun_ms > STALL_MS and group.watchdog is not None:
                    group.watchdog.held_by(request, handled_ms - begun_ms)
                begun_ms = handled_ms
                if len(requests) >= MAX_IN_FLIGHT_REQUESTS:
                    self.flush()
                    if len(requests) >= MAX_IN_FLIGHT_REQUESTS:
                        self._pause(PauseReason.IN_FLIGHT)
                if handled_ms - now >= turn_ms:
                    break
        finally:
            self._dispatching = False
        if backlog or reader.has_uncut:
            self._pause(PauseReason.BACKLOG)
            self._join_line()
        elif self._pause_reasons & PauseReason.BACKLOG:
            self._resume(PauseReason.BACKLOG)
        took_ms = begun_ms - now
        self._unsent_ms += took_ms
        if turn_ms or not self._in_line or self._unsent_ms >= UNSENT_MS:
            self.flush()
        return took_ms

    @property
    def _has_more(self) -> bool:
        """Whether there are frames that the handler has not had."""
        return bool(self._backlog) or self._reader.has_uncut

    def _cut_more(self) -> bool:
        """Bring more of what has been read into the backlog; whether there is anything now."""
        try:
            self._backlog.extend(self._reader.cut_more())
        except RemoteProtocolError as error:
            # What came whole before the garbage is answered first.
            self._group.log_closing(self, str(error))
            self.begin_closing()
        return bool(self._backlog)

    def _join_line(self) -> None:
        """Have a turn after the connections that wait already."""
        if self._has_more and not self._in_line and not self._pause_reasons & _STOPS_DISPATCH:
            self._in_line = True
            self._group.turns.wait(self.share.party, self)

    def _queue_parts(self, request: Request, pending: list[bytes | bytearray | memoryview]) -> int:
        """Move a response's parts to `pending`, and through it to the stream at a big region."""
        size = 0
        stream = self._stream
        for part in request.take_parts():
            size += len(part)
            if isinstance(part, bytes | bytearray | memoryview):
                pending.append(part)
            elif not isinstance(part, FileRegion):
                pending.append(source_bytes(part))
            elif part.length < SENDFILE_MIN_BYTES and not part.is_cold:
                pending.append(part.read())
                part.release()
            else:
                stream.write_before_region(b"".join(pending))
                pending.clear()
                stream.write_region(part)
        return size

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._group.schedule_flush(self)

    def _pause(self, reason: int) -> None:
        if self.is_closed:
            return
        if not self._pause_reasons:
            self.transport.pause_reading()
        if reason != PauseReason.UNREAD_RESPONSES:
            self._was_paused = True
        self._pause_reasons |= reason

    def _resume(self, reason: int) -> None:
        before = self._pause_reasons
        if self.is_closed or not before & reason:
            return
        after = self._pause_reasons = before & ~reason
        if not self._dispatching:
            self._join_line()
        if after:
            return
        if self._reader.make_ready():
            self.transport.resume_reading()
        else:
            self._pause_reasons = PauseReason.MEMORY
            self._group.wait_for_memory(self)

    def _wait_for_memory(self) -> None:
        self._pause(PauseReason.MEMORY)
        self._group.wait_for_memory(self)

    def _opened_share(self) -> Share:
        """The account of a new peer, which is frugal until the peer has said who it is."""
        shares, security = self._group.shares, self._security
        kind = PeerKind.NODES if self._is_between_nodes else PeerKind.CLIENTS
        if security is not None and security.sasl is not None:
            kind = PeerKind.NODE_LOGINS if self._is_between_nodes else PeerKind.CLIENT_LOGINS
            self._reader.is_frugal = True
        return Share(shares, self, kind, "", network_of(self.client_host))

    def _count_unread(self) -> None:
        """Count the answers that the peer has not read, as far as they are in memory."""
        stream = self._stream
        unread_bytes = 0 if stream.is_empty else stream.unsent_memory_bytes()
        self._unread.update(unread_bytes)
        self.share.count_unread(unread_bytes)

    def _end_throttle(self) -> None:
        self._throttle_timer = None
        self._resume(PauseReason.THROTTLED)

    def _abort(self) -> None:
        transport = self.transport
        self._finish()
        transport.abort()

    def _drop_backlog(self) -> None:
        for frame in self._backlog:
            self._reader.release(frame)
        self._backlog.clear()
        self._group.on_memory_released()

    def _finish(self) -> None:
        """Drop everything that belongs to the connection; unanswered requests keep their frames."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        self._stream.detach()
        self._reader.close()
        self._drop_backlog()
        self.share.close()
        for request in self._requests:
            if request.is_done:
                request.discard()
        self._requests.clear()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)
