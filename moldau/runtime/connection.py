"""The client side of one socket: pipelined requests, answered in order.

Owns: correlation ids, the queue of requests awaiting responses, their deadlines, version
negotiation, when to log in again (KIP-368). Must not: choose brokers, retry, or know what messages
mean (but ApiVersions). Invariant: responses belong to requests in order. As soon as that cannot be
relied on (a foreign correlation id, undecodable bytes, a request timed out) the connection is
closed and everything pending fails.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict, Unpack, cast

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.framing import (
    CHUNK_BYTES,
    DEFAULT_MAX_FRAME_BYTES,
    BadFrameLength,
    FrameReader,
    ReceiveMemory,
)
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.schema import Message, Request, Response
from moldau.protocol.types import Buffer
from moldau.runtime.authentication import (
    TLS_ADVICE,
    AuthenticationError,
    LoginExpiration,
    TlsError,
)
from moldau.runtime.clock import Clock, SystemClock, TimerHandle
from moldau.runtime.fault_words import words_of
from moldau.runtime.files import source_bytes
from moldau.runtime.network import (
    DEFAULT_CONNECT_TIMEOUT_MS,
    OS_DEFAULT_BYTES,
    Network,
    set_socket_options,
)

if TYPE_CHECKING:
    from moldau.protocol.messages.p18_api_versions import ApiVersionsResponse

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000.0
"""Default of `request.timeout.ms`."""

DEFAULT_MAX_IN_FLIGHT: Final = 64
"""Requests awaiting their response on one connection; `send` waits for a place."""

JOIN_LIMIT_BYTES: Final = 64 * 1024
"""Requests of one loop iteration are joined into one write up to this size."""

EAGER_BYTES: Final = 8 * 1024
"""Records of this size are worth their own write, where several requests go out in a row."""

TLS_ALERT: Final = 0x1503
"""The first two bytes of the alert with which a TLS peer refuses plaintext."""

_MAX_CORRELATION_ID: Final = 2**31 - 1


_BYTES: Final = (bytes, bytearray, memoryview)


CLIENT_SOFTWARE_NAME: Final = "moldau"


class ConnectionLost(ConnectionError):
    """The connection ended before the response; the request may or may not have been served."""


class NothingHeard(ConnectionLost):
    """The connection ended before the peer had said a single word."""


class RequestTimedOut(TimeoutError):
    """No response within the request's time; the connection was closed."""


class UnsupportedByPeer(LocalProtocolError):
    """The peer serves no version of the API that we speak."""


class Send(Protocol):
    """Sends a request in the highest version both sides speak and returns the response."""

    async def __call__(self, message: Request[Response], /) -> Response:
        """Raises what `Connection.send` raises."""


Authenticator: TypeAlias = Callable[[Send, str], Awaitable[int]]
"""Logs a connection in; returns for how many ms, 0 for ever. Raises AuthenticationError."""


class Login(Protocol):
    """What this process logs in to its peers with (`moldau.sasl`)."""

    @property
    def mechanism(self) -> str:
        """The SASL mechanism's name."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What an identity provider is trusted by, other than the system's authorities."""

    async def prepare(self) -> None:
        """Have what may take long before the peer waits for it. Raises: AuthenticationError."""

    async def authenticate(self, send: Send, peer: str) -> int:
        """As an `Authenticator`."""

    def change(self, value: Callable[[str], Any]) -> None:
        """Go by what the keys say now, as far as a login that exists can."""

    def expirations(self) -> Sequence[LoginExpiration]:
        """What it depends on that expires, and that others renew. Blocks."""


@dataclass(slots=True, eq=False, repr=False)
class HeldRequests:
    """Requests that wait until the connection has logged in again."""

    data: list[bytes] = field(default_factory=list)
    pending: list[PendingRequest] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class PendingRequest:
    """A request that has been sent, and where its answer goes."""

    api_key: int
    api_version: int
    correlation_id: int
    deadline_ms: float
    future: asyncio.Future[Message]

    def refuse(self, error: BaseException) -> None:
        """There will be no answer. A caller that has gone never looks: the loop reports nothing."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


class ConnectionOptions(TypedDict, total=False):
    """What callers choose of a connection.

    Attributes:
        memory: for those with many responses, to reuse receive buffers among the connections of one
            loop; no timer watches it here, so it must be out of reach.
        holds_responses: the bytes of responses stay in these buffers, until the caller says with
            `release_responses` that it is through.
    """

    client_id: str | None
    request_timeout_ms: float
    max_in_flight: int
    max_response_bytes: int
    memory: ReceiveMemory | None
    holds_responses: bool


@dataclass(slots=True, eq=False, repr=False)
class Connection(asyncio.BufferedProtocol):
    """An open connection to one node. Use `await Connection.connect(…)`.

    States: open → closed, once and for good. Memoryviews in responses refer to that response's own
    bytes and stay valid as long as they are referenced; with `holds_responses` they refer to
    buffers that are used again, and are valid until `release_responses`.
    """

    host: str
    port: int
    _: KW_ONLY
    client_id: str | None = None
    clock: InitVar[Clock | None] = None
    request_timeout_ms: float = DEFAULT_REQUEST_TIMEOUT_MS
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    max_response_bytes: InitVar[int] = DEFAULT_MAX_FRAME_BYTES
    memory: InitVar[ReceiveMemory | None] = None
    holds_responses: InitVar[bool] = False
    _clock: Clock = field(init=False)
    last_used_ms: float = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _held: list[memoryview] | None = field(init=False)
    _reader: FrameReader = field(init=False)
    _transport: asyncio.Transport | None = None
    _correlation_id: int = 0
    _pending: deque[PendingRequest] = field(default_factory=deque)
    _places: asyncio.Semaphore = field(init=False)
    _writable: asyncio.Event = field(default_factory=asyncio.Event)
    _outbox: list[Buffer] = field(default_factory=list)
    _gathers: bool = False
    _deadline_timer: TimerHandle | None = None
    _timer_due_ms: float = 0.0
    _failure: BaseException | None = None
    _close_callbacks: list[Callable[[Connection], object]] = field(default_factory=list)
    versions: Mapping[int, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    """The lowest and highest version the peer serves, by API; empty without negotiation."""
    api_versions: ApiVersionsResponse | None = None
    answer_count: int = 0
    _authenticator: Authenticator | None = None
    _held_requests: HeldRequests | None = None
    _reauthentication: asyncio.Task[None] | None = None
    _reauthentication_timer: TimerHandle | None = None

    def __post_init__(
        self,
        clock: Clock | None,
        max_response_bytes: int,
        memory: ReceiveMemory | None,
        holds_responses: bool,
    ) -> None:
        self._clock = clock or SystemClock()
        self.last_used_ms = self._clock.monotonic_ms()
        self._held = [] if holds_responses else None
        self._reader = FrameReader(
            memory or ReceiveMemory(pool_limit_bytes=CHUNK_BYTES),
            max_frame_bytes=max_response_bytes,
            detached=self._held is None,
        )
        self._places = asyncio.Semaphore(self.max_in_flight)
        self._writable.set()

    @classmethod
    async def connect(
        cls,
        network: Network,
        host: str,
        port: int,
        *,
        clock: Clock | None = None,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS,
        negotiate: bool = True,
        authenticator: Authenticator | None = None,
        send_buffer_bytes: int = OS_DEFAULT_BYTES,
        receive_buffer_bytes: int = OS_DEFAULT_BYTES,
        **options: Unpack[ConnectionOptions],
    ) -> Connection:
        """Connect and learn which versions the peer serves (KIP-511) unless `negotiate` is off.

        Args:
            authenticator: logs in before anything else is sent, and again before that ends.

        Raises OSError (refused, unreachable, unknown host), TimeoutError, RemoteProtocolError,
        TlsError, AuthenticationError.
        """
        try:
            transport, connection = await network.connect(
                lambda: cls(host, port, clock=clock, **options),
                host,
                port,
                ssl_context=ssl_context,
                timeout_ms=connect_timeout_ms,
            )
        except ssl.SSLError as error:
            from moldau.runtime.authentication.tls import tls_error

            raise tls_error(f"{host}:{port}", error) from error
        if send_buffer_bytes != OS_DEFAULT_BYTES or receive_buffer_bytes != OS_DEFAULT_BYTES:
            set_socket_options(transport, send_buffer_bytes, receive_buffer_bytes)
        try:
            if negotiate:
                await connection._negotiate()
            if authenticator is not None:
                connection._authenticator = authenticator
                await connection._authenticate()
        except BaseException:
            # Cancelled too: no other code knows this connection yet.
            connection.close()
            raise
        return connection

    # -- use ------------------------------------------------------------------------------------

    @property
    def peer_certificate(self) -> bytes | None:
        """What the peer has shown, in DER; None without TLS."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if tls is None else cast("bytes | None", tls.getpeercert(binary_form=True))

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._failure is not None

    @property
    def is_writable(self) -> bool:
        """Whether the transport takes more without its buffer growing beyond its high mark."""
        return self._writable.is_set()

    @property
    def in_flight_count(self) -> int:
        return len(self._pending)

    def best_version(
        self, api_key: int, request_class: type[Message], *, max_version: int | None = None
    ) -> int:
        """The highest version both sides speak, at most `max_version`.

        Raises UnsupportedByPeer. Without negotiation our own highest version is assumed.
        """
        highest = request_class.MAX_VERSION
        if max_version is not None:
            highest = min(highest, max_version)
        if not self.versions:
            return highest
        served = self.versions.get(api_key)
        if served is None:
            raise UnsupportedByPeer(f"{self._peer} does not serve {api_name(api_key)}")
        version = min(highest, served[1])
        if version < max(request_class.MIN_VERSION, served[0]):
            raise UnsupportedByPeer(
                f"{self._peer} serves {api_name(api_key)} {served[0]} to {served[1]}, we speak "
                f"{request_class.MIN_VERSION} to {highest}"
            )
        return version

    async def send(
        self,
        message: Request[Response],
        *,
        api_version: int | None = None,
        timeout_ms: float | None = None,
    ) -> Response:
        """Send a request and return its response message.

        Waits for a place among the requests in flight. When the caller is cancelled the response is
        thrown away; the connection and the requests behind it are not affected.

        Raises ConnectionLost, RequestTimedOut, RemoteProtocolError, UnsupportedByPeer,
        LocalProtocolError.
        """
        async with self._places:
            if not self._writable.is_set():
                await self._writable.wait()
            return await self._submit(message, api_version, timeout_ms)

    def submit(
        self,
        message: Request[Response],
        *,
        api_version: int | None = None,
        timeout_ms: float | None = None,
        keeps_records: bool = False,
    ) -> asyncio.Future[Response]:
        """Send a request at once and return the future of its response, for callers that limit
        themselves.

        `keeps_records`: the caller changes nothing of the message's records before the answer has
        come or the connection has ended, so large ones are written from where they lie.

        Raises as `send`, and LocalProtocolError when twice the in-flight limit is reached.
        """
        if len(self._pending) >= 2 * self.max_in_flight:
            raise LocalProtocolError(f"{len(self._pending)} requests are in flight already")
        return self._submit(message, api_version, timeout_ms, keeps_records)

    def send_and_forget(self, message: Message, *, api_version: int | None = None) -> None:
        """Send a request that has no response (Produce with acks=0). Raises as `send`."""
        self.last_used_ms = self._clock.monotonic_ms()
        self._write(message, self._version_of(message, api_version))

    def release_responses(self) -> None:
        """The bytes of the responses so far are not read any more (with `holds_responses`)."""
        assert self._held is not None, "responses own their bytes"
        for frame in self._held:
            self._reader.release(frame)
        self._held.clear()

    def on_close(self, callback: Callable[[Connection], object]) -> None:
        self._close_callbacks.append(callback)

    def close(self) -> None:
        """Close at once; pending requests fail with ConnectionLost (idempotent)."""
        self._fail(ConnectionLost(f"the connection to {self._peer} was closed"))

    # -- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes: nothing to check at run time.
        self._transport = cast(asyncio.Transport, transport)
        set_socket_options(transport, OS_DEFAULT_BYTES)

    def connection_lost(self, exc: BaseException | None) -> None:
        if isinstance(exc, ssl.SSLError) and not self.answer_count:
            from moldau.runtime.authentication.tls import tls_error

            # With TLS 1.3 a peer refuses our certificate only after the handshake.
            self._fail(tls_error(self._peer, exc))
            return
        reason = f": {exc}" if exc is not None else ""
        kind = ConnectionLost if self.answer_count else NothingHeard
        self._fail(kind(f"the connection to {self._peer} was lost{reason}"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._failure is not None:
            return
        try:
            frames = self._reader.buffer_updated(nbytes)
            for frame in frames:
                self._accept(frame)
            self._reader.check()
        except BadFrameLength as error:
            if self.answer_count or error.length >> 16 != TLS_ALERT:
                self._fail(error)
                return
            self._fail(TlsError(f"{self._peer} speaks TLS; {TLS_ADVICE}"))
        except RemoteProtocolError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- inner workings -------------------------------------------------------------------------

    @property
    def _peer(self) -> str:
        return f"{self.host}:{self.port}"

    def _version_of(self, message: Message, api_version: int | None) -> int:
        if api_version is not None:
            return api_version
        return self.best_version(message.API_KEY, type(message))

    def _submit(
        self,
        message: Request[Response],
        api_version: int | None,
        timeout_ms: float | None,
        keeps_records: bool = False,
    ) -> asyncio.Future[Response]:
        version = self._version_of(message, api_version)
        correlation_id = self._write(message, version, keeps_records)
        if timeout_ms is None:
            timeout_ms = self.request_timeout_ms
        self.last_used_ms = self._clock.monotonic_ms()
        deadline = self.last_used_ms + timeout_ms
        future: asyncio.Future[Any] = self._loop.create_future()
        pending = PendingRequest(message.API_KEY, version, correlation_id, deadline, future)
        if self._held_requests is None:
            self._pending.append(pending)
        else:
            self._held_requests.pending.append(pending)
        if self._deadline_timer is None or deadline < self._timer_due_ms:
            self._arm_deadline(deadline)
        return future

    def _write(self, message: Message, version: int, keeps_records: bool = False) -> int:
        """Encode and queue a request; its correlation id."""
        if self._failure is not None:
            raise ConnectionLost(f"the connection to {self._peer} is closed") from self._failure
        correlation_id = self._correlation_id
        parts = encode_request(
            message, api_version=version, correlation_id=correlation_id, client_id=self.client_id
        )
        self._correlation_id = 0 if correlation_id == _MAX_CORRELATION_ID else correlation_id + 1
        pieces = [part if isinstance(part, _BYTES) else source_bytes(part) for part in parts]
        if self._held_requests is not None:
            self._held_requests.data.append(b"".join(pieces))
            return correlation_id
        largest = max(map(len, pieces)) if keeps_records else 0
        # At once: the peer shall have something to do while the next request is made.
        is_eager = largest >= EAGER_BYTES and not self._outbox
        if not self._outbox and not is_eager:
            self._loop.call_soon(self._flush)
        if is_eager or largest > JOIN_LIMIT_BYTES:
            self._outbox += gathered(pieces, JOIN_LIMIT_BYTES)
            self._gathers = True
        else:
            # Joined now: the caller may reuse the buffers that its records came from.
            self._outbox.append(b"".join(pieces))
        if is_eager:
            self._flush()
        return correlation_id

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        transport = self._transport
        if transport is None or self._failure is not None:
            return
        if len(outbox) > 1 and sum(map(len, outbox)) <= JOIN_LIMIT_BYTES:
            transport.write(b"".join(outbox))
        elif self._gathers:
            self._gathers = False
            transport.writelines(outbox)
        else:
            for data in outbox:
                transport.write(data)

    def _accept(self, frame: memoryview) -> None:
        if not self._pending:
            raise RemoteProtocolError(f"{self._peer} sent a response nobody asked for")
        if self._failure is not None:
            return
        if self._held is not None:
            self._held.append(frame)
        pending = self._pending[0]
        received_id = int.from_bytes(frame[:4], "big", signed=True)
        if received_id != pending.correlation_id or len(frame) < 4:
            raise RemoteProtocolError(
                f"{self._peer} answered request {received_id} "
                f"where {pending.correlation_id} was to be answered"
            )
        message: Message | None = None
        if not pending.future.done():
            _, message = decode_response(pending.api_key, pending.api_version, frame)
        self._pending.popleft()
        self.answer_count += 1
        if message is not None:
            pending.future.set_result(message)

    def _arm_deadline(self, due_ms: float) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._timer_due_ms = due_ms
        delay = max(due_ms - self._clock.monotonic_ms(), 0.0)
        self._deadline_timer = self._clock.call_later(delay, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        if not self._pending:
            return
        now = self._clock.monotonic_ms()
        earliest = min(pending.deadline_ms for pending in self._pending)
        if earliest > now:
            self._arm_deadline(earliest)
            return
        for pending in self._pending:
            if pending.deadline_ms <= now:
                api = api_name(pending.api_key)
                pending.refuse(RequestTimedOut(f"{self._peer} did not answer {api} in time"))
        self._fail(ConnectionLost(f"{self._peer} was given up: a request timed out"))

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._reader.close()
        self._outbox.clear()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._writable.set()
        if self._reauthentication_timer is not None:
            self._reauthentication_timer.cancel()
        if self._reauthentication is not None:
            self._reauthentication.cancel()
        held, self._held_requests = self._held_requests, None
        if held is not None:
            self._pending.extend(held.pending)
        for pending in self._pending:
            pending.refuse(type(error)(*error.args))
        self._pending.clear()
        if self._transport is not None:
            self._transport.abort()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)

    # -- authentication -------------------------------------------------------------------------

    async def _authenticate(self) -> None:
        assert self._authenticator is not None
        lifetime_ms = await self._authenticator(self._send_first, self._peer)
        if lifetime_ms > 0 and self._failure is None:
            # Early enough for slow brokers, and not all connections at once (KIP-368).
            share = 0.85 + 0.1 * random.random()
            self._reauthentication_timer = self._clock.call_later(
                lifetime_ms * share, self._reauthenticate
            )

    async def _send_first(self, message: Request[Response]) -> Response:
        """Send before the requests that are held back."""
        held, self._held_requests = self._held_requests, None
        try:
            answer = self._submit(message, None, None)
        finally:
            self._held_requests = held
        return await answer

    def _reauthenticate(self) -> None:
        """Log in again. The peer takes nothing else until then: what is sent from now on waits,
        and what was sent before is answered before, as on every connection.
        """
        self._reauthentication_timer = None
        if self._failure is None:
            self._held_requests = HeldRequests()
            self._reauthentication = self._loop.create_task(self._logged_in_again())

    async def _logged_in_again(self) -> None:
        try:
            await self._authenticate()
        except (AuthenticationError, OSError, TimeoutError, RemoteProtocolError) as error:
            self._reauthentication = None
            # The login itself reports it of the next connection.
            self._fail(ConnectionLost(f"{self._peer} did not renew the session: {words_of(error)}"))
            return
        self._reauthentication = None
        held, self._held_requests = self._held_requests, None
        if held is None or self._failure is not None:
            return
        self._pending.extend(held.pending)
        if held.data and not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.extend(held.data)
        if held.pending:
            self._arm_deadline(min(pending.deadline_ms for pending in self._pending))

    async def _negotiate(self) -> None:
        """Ask for what the peer serves, in the newest version of ApiVersions that it takes
        (KIP-511). Raises RemoteProtocolError when it refuses.
        """
        import moldau
        from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest

        request = ApiVersionsRequest(
            client_software_name=CLIENT_SOFTWARE_NAME,
            client_software_version=str(getattr(moldau, "__version__", "0")),
        )
        response = await self.send(request, api_version=ApiVersionsRequest.MAX_VERSION)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # The answer is a version 0 body; a recent enough peer names the versions it would take.
            highest = 0
            for entry in response.api_keys:
                if entry.api_key == ApiKey.API_VERSIONS:
                    highest = min(entry.max_version, ApiVersionsRequest.MAX_VERSION)
            response = await self.send(request, api_version=highest)
        error = response.error_code
        if error != ErrorCode.NONE:
            raise RemoteProtocolError(f"{self._peer} refuses ApiVersions with error {error}")
        self.api_versions = response
        self.versions = MappingProxyType(
            {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
        )


def gathered(pieces: Sequence[Buffer], limit_bytes: int) -> list[Buffer]:
    """The same bytes in few pieces: those of up to `limit_bytes` joined with their neighbours."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) <= limit_bytes:
            small.append(piece)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(piece)
    if small:
        found.append(b"".join(small))
    return found


def api_name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API {api_key}"
