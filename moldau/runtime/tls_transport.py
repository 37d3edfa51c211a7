"""TLS between a socket's transport and a protocol, on any event loop.

Owns both directions' BIOs, and what a closing connection still says: an alert, the end of TLS. Must
not know sockets, or what certificates a context trusts. (The loops' own TLS keeps a raw buffer of
256 KB for each connection, asks OpenSSL once more after the last byte and catches what it says to
that, and drops the alert of a handshake that fails: ADR 0017.)

Invariants: what one peer can make a connection hold is one raw read and one record, and what its
protocol wrote; while the protocol's reading is paused nothing is decrypted, nor read from the
socket; a connection that closes is gone after `SHUTDOWN_TIMEOUT_S`, whatever its peer does; no
connection is opened on a certificate that has ended, also where a session is resumed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from typing import Any, Final, cast

RAW_BYTES: Final = 128 * 1024
"""What one read from a socket may bring. Measured with 20 connections: with 256 KB the processor
copies from memory instead of its cache, with 32 KB it runs the loop too often.
"""

SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a connection that closes waits for its peer to read what is left, and to close too."""


class TlsState(Enum):
    """What a connection is doing; what follows is in `TRANSITIONS`."""

    SHAKING = "shaking hands"
    OPEN = "open"
    LINGERING = "all is said; what still comes is thrown away"
    CLOSED = "closed"


TRANSITIONS: Final = {
    TlsState.SHAKING: (TlsState.OPEN, TlsState.LINGERING, TlsState.CLOSED),
    TlsState.OPEN: (TlsState.LINGERING, TlsState.CLOSED),
    TlsState.LINGERING: (TlsState.CLOSED,),
    TlsState.CLOSED: (),
}


class _Pieces:
    """Stands between decrypted bytes and a protocol that has no buffers, such as aiohttp's."""

    __slots__ = ("_buffer", "_protocol")

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._buffer = bytearray()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = bytearray(sizehint)
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        self._protocol.data_received(bytes(memoryview(buffer)[:nbytes]))


@dataclass(slots=True, eq=False, repr=False)
class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of a protocol, and to the socket's transport a protocol.

    The protocol is made when the handshake has ended well. One that fails leaves its alert: the
    peer reads why. A peer's end without the end of TLS is an end like any other, since Kafka's
    frames say where they end.
    """

    _factory: Callable[[], asyncio.BaseProtocol] | None
    _context: ssl.SSLContext
    _raw: memoryview
    """Where a socket's bytes lie for a moment; the connections of one loop share it."""
    _loop: asyncio.AbstractEventLoop
    _: KW_ONLY
    is_server: InitVar[bool] = True
    server_hostname: InitVar[str | None] = None
    _incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    _outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    _tls: ssl.SSLObject = field(init=False)
    _below: asyncio.Transport | None = None
    _protocol: asyncio.BufferedProtocol | asyncio.Protocol | None = None
    _receiver: asyncio.BufferedProtocol | _Pieces | None = None
    _state: TlsState = TlsState.SHAKING
    _shaken: asyncio.Future[asyncio.BaseProtocol] | None = None
    _gone: asyncio.Future[None] = field(init=False)
    _limit: asyncio.TimerHandle | None = None
    _problem: BaseException | None = None
    _is_paused: bool = False
    _is_choked: bool = False
    _is_writing_paused: bool = False

    def __post_init__(self, is_server: bool, server_hostname: str | None) -> None:
        """Raises: ValueError: `server_hostname` cannot be a name."""
        asyncio.Transport.__init__(self)
        self._tls = self._context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_hostname
        )
        self._shaken, self._gone = self._loop.create_future(), self._loop.create_future()

    async def handshake(self) -> asyncio.BaseProtocol:
        """Wait for its end; the protocol, which has its connection. Cancelled, the connection is
        cut. Raises: ssl.SSLError; OSError: the peer has gone.
        """
        assert self._shaken is not None, "waited for once"
        try:
            return await self._shaken
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            # An error's traceback knows this frame: without that, no cycle is left.
            self._shaken = None

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.wait([self._gone])

    # -- the protocol's side ---------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._context
        return default if self._below is None else self._below.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._state is TlsState.LINGERING or self._state is TlsState.CLOSED

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._state is not TlsState.OPEN or not data:
            return
        try:
            # All of it: a BIO takes what comes, and grows to the largest piece for good.
            self._tls.write(data)
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def is_reading(self) -> bool:
        return not self._is_paused and not self.is_closing()

    def pause_reading(self) -> None:
        if self._state is TlsState.OPEN and not self._is_paused:
            self._is_paused = True
            if not self._is_choked:
                self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._state is TlsState.OPEN and self._is_paused:
            self._is_paused = False
            if not self._is_choked:
                self._socket.resume_reading()
            if self._has_input:
                self._loop.call_soon(self._read_rest)

    def close(self) -> None:
        """Say the end of TLS after all that was written, then wait for the peer's end."""
        if self._state is TlsState.SHAKING:
            self.abort()
        elif self._state is TlsState.OPEN:
            # It has said its end now; that it has not read the peer's is no error.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            # The socket's end waits for the peer's: with it uvloop's TLS forgets what its protocol
            # has not read yet.
            self._linger(ends_socket=False)

    def abort(self) -> None:
        if self._state is TlsState.CLOSED:
            return
        self._move(TlsState.CLOSED)
        if self._below is not None:
            self._below.abort()

    # -- the socket's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes: nothing to check at run time.
        self._below = cast(asyncio.Transport, transport)
        if self._state is TlsState.CLOSED:
            self._below.abort()
        else:
            self._shake()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._state is not TlsState.CLOSED:
            self._move(TlsState.CLOSED)
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        self._refuse(exc or ConnectionResetError("the peer has gone"))
        if not self._gone.done():
            self._gone.set_result(None)
        protocol, self._protocol = self._protocol, None
        self._receiver = None
        problem, self._problem = exc or self._problem, None
        # No cycle is left: the collector comes seldom, and OpenSSL's part is large.
        self._below = self._factory = None
        if protocol is not None:
            protocol.connection_lost(cast("Exception | None", problem))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._raw

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is TlsState.OPEN:
            self._incoming.write(self._raw[:nbytes])
            self._read()
        elif self._state is TlsState.SHAKING:
            self._incoming.write(self._raw[:nbytes])
            self._shake()

    def eof_received(self) -> bool:
        # TLS knows no half-closed connections, and its peer reads no more: nothing waits for it.
        self.abort()
        return False

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._is_choked:
            self._is_choked = False
            if not self._is_paused and not self.is_closing():
                self._socket.resume_reading()
        if self._protocol is not None:
            self._protocol.resume_writing()

    # -- inner workings --------------------------------------------------------------------------

    @property
    def _socket(self) -> asyncio.Transport:
        assert self._below is not None, "connected"
        return self._below

    @property
    def _has_input(self) -> bool:
        return bool(self._incoming.pending or self._tls.pending())

    def _move(self, state: TlsState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} → {state}"
        self._state = state

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
            _check_resumption(self._tls)
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._refuse(error.with_traceback(None))
            self._linger()
            return
        self._flush()
        self._move(TlsState.OPEN)
        assert self._factory is not None, "not lost"
        made, self._factory = self._factory(), None
        protocol = self._protocol = cast("asyncio.BufferedProtocol | asyncio.Protocol", made)
        if isinstance(protocol, asyncio.BufferedProtocol):
            self._receiver = protocol
        else:
            self._receiver = _Pieces(protocol)
        protocol.connection_made(self)
        if self._shaken is not None and not self._shaken.done():
            self._shaken.set_result(protocol)
        self._read()

    def _refuse(self, error: BaseException) -> None:
        """Have `handshake` raise the error, if it has not ended."""
        if self._shaken is not None and not self._shaken.done():
            self._shaken.set_exception(error)
            self._shaken.exception()  # nothing may wait for it any more

    def _read(self) -> None:
        """Hand on what can be decrypted, until the protocol wants no more."""
        incoming, tls = self._incoming, self._tls
        while self._state is TlsState.OPEN and not self._is_paused:
            # Else OpenSSL would be asked for a record that is not there.
            waiting = incoming.pending or tls.pending()
            if not waiting:
                break
            receiver = self._receiver
            assert receiver is not None, "open"
            is_ended = False
            count = 0
            buffer = cast(memoryview, receiver.get_buffer(waiting))
            size = len(buffer)
            problem: ssl.SSLError | None = None
            try:
                while count < size and (incoming.pending or tls.pending()):
                    read = tls.read(size - count, buffer[count:] if count else buffer)
                    if not read:
                        is_ended = True
                        break
                    count += cast(int, read)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                problem = error.with_traceback(None)
            if count:
                receiver.buffer_updated(count)
            if problem is not None:
                self._fail(problem)
            elif is_ended:
                self._end()
        if self._outgoing.pending:
            self._answer()

    def _read_rest(self) -> None:
        """What had come already when the protocol's reading was resumed."""
        is_read = False
        try:
            self._read()
            is_read = True
        finally:
            if not is_read:
                self.abort()

    def _answer(self) -> None:
        """Send what TLS itself has to say to what it read. While the peer reads none of it nothing
        more is read from the peer, which could else make us say ever more.
        """
        self._flush()
        if self._is_writing_paused and not self._is_choked and self._state is TlsState.OPEN:
            self._is_choked = True
            if not self._is_paused:
                self._socket.pause_reading()

    def _end(self) -> None:
        """The peer has said the end of TLS."""
        protocol = self._protocol
        if self._state is TlsState.OPEN and protocol is not None:
            protocol.eof_received()
            self.close()

    def _fail(self, error: ssl.SSLError) -> None:
        if self._state is TlsState.OPEN:
            self._problem = error.with_traceback(None)
            self._linger()

    def _linger(self, *, ends_socket: bool = True) -> None:
        """Send what is left, and let the peer read it: what it has sent until then is read first,
        or the system would answer with a reset that takes our last words away.
        """
        self._move(TlsState.LINGERING)
        below = self._socket
        if below.is_closing():
            return
        self._limit = self._loop.call_later(SHUTDOWN_TIMEOUT_S, self.abort)
        self._flush()
        if self._is_paused or self._is_choked:
            below.resume_reading()
        if ends_socket:
            below.write_eof()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._below is not None:
            self._below.write(data)


def _check_resumption(tls: ssl.SSLObject) -> None:
    """Refuse a peer whose certificate has ended since the session that it resumes was made.

    OpenSSL looks at certificates in full handshakes alone, and gives each resumed session of TLS
    1.3 a fresh ticket: without this the certificate would never end.

    Raises: ssl.SSLCertVerificationError.
    """
    certificate = tls.getpeercert() if tls.session_reused else None
    if not certificate:
        return
    if ssl.cert_time_to_seconds(str(certificate["notAfter"])) <= time.time():
        error = ssl.SSLCertVerificationError("certificate has expired")
        error.verify_message = "certificate has expired"
        raise error
