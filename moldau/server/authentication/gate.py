"""The session of a connection at work: requests that are about it, and those that must wait for it.

Owns the way from a request to the session's core and back, and the pause before a refusal
(`connection.failed.authentication.delay.ms`). Must not know mechanisms. Invariants: what the core
does not let through reaches no handler; the connection of a client that is refused reads nothing
more, and ends when the refusal has been sent; while a token's step waits, nothing behind it on its
connection is looked at.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.headers import RequestHeader, decode_request_header
from moldau.protocol.messages import p36_sasl_authenticate as p36
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.schema import Message
from moldau.runtime.slices import Work
from moldau.sasl.mechanism import Postponed
from moldau.server.authentication.core.session import Outcome, SaslSession, State

if TYPE_CHECKING:
    from moldau.server.connection_group import ConnectionGroup
    from moldau.server.request import Connection, Request

RAW_TOKEN_HEADER: Final = RequestHeader(
    api_key=ApiKey.SASL_AUTHENTICATE, api_version=0, correlation_id=0, client_id=None
)
"""What stands for the header of a frame that is a token and nothing else."""

_SIZE: Final = struct.Struct(">i")


class SaslGate:
    """Every request of a connection on a SASL listener passes here.

    Args:
        max_receive_bytes: `sasl.server.max.receive.size`.
        refusal_delay_ms: `connection.failed.authentication.delay.ms`.
    """

    __slots__ = ("_group", "_max_receive_bytes", "_refusal_delay_ms", "_session")

    def __init__(
        self,
        session: SaslSession,
        connection: Connection,
        group: ConnectionGroup,
        *,
        max_receive_bytes: int,
        refusal_delay_ms: float,
    ) -> None:
        self._session = session
        self._group = group
        self._max_receive_bytes = max_receive_bytes
        self._refusal_delay_ms = refusal_delay_ms
        connection.limit_frames(max_receive_bytes)

    def waits_since_ms(self, opened_ms: float) -> float | None:
        """See `SaslSession.waits_since_ms`."""
        return self._session.waits_since_ms(opened_ms)

    def read_header(self, frame: memoryview) -> tuple[RequestHeader, int]:
        """A frame's header and its size. Raises: RemoteProtocolError."""
        if self._session.waits_for_raw_token:
            return RAW_TOKEN_HEADER, 0
        return decode_request_header(frame)

    def takes(self, request: Request) -> bool | Work:
        """Whether the request is answered or refused here, by what is returned where that takes
        long; otherwise it is for its handler.

        Raises:
            RemoteProtocolError: its body is malformed.
        """
        is_raw = self._session.waits_for_raw_token
        try:
            outcome = self._outcome(request)
        except Postponed as postponed:
            return self._take_later(request, postponed)
        if outcome is None:
            return False
        self._conclude(request, outcome, is_raw=is_raw)
        return True

    async def _take_later(self, request: Request, postponed: Postponed) -> None:
        """Take the request when what its step needs is ready."""
        is_there = await postponed.wait(lambda: request.is_connection_lost)
        if request.is_connection_lost:
            request.discard()
            return
        if not is_there:
            request.close("too many logins wait")
            return
        taken = self.takes(request)  # or postponed again, if keys have been dropped by now
        assert taken, "the session still waits for this token"
        if taken is not True:
            await taken

    def _conclude(self, request: Request, outcome: Outcome, *, is_raw: bool) -> None:
        if outcome.failure is not None:
            self._refuse(request, outcome.failure, outcome.response, is_raw=is_raw)
            return
        self._answer(request, outcome.response, is_raw=is_raw)
        if self._session.waits_for_raw_token:
            request.connection.limit_frames(self._max_receive_bytes, min_bytes=0)
        if self._session.state is State.ACTIVE:
            connection = request.connection
            connection.authenticate(f"User:{self._session.user}")
            connection.token_authenticated = self._session.is_token
            connection.limit_frames(self._group.limits.request_max_bytes)

    def _outcome(self, request: Request) -> Outcome | None:
        session, now_ms = self._session, self._group.clock.monotonic_ms()
        version = request.api_version
        if session.waits_for_raw_token:
            return session.token(bytes(request.body), now_ms)
        if request.api_key == ApiKey.SASL_HANDSHAKE:
            handshake, _ = SaslHandshakeRequest.decode(request.body, version)
            return session.handshake(handshake.mechanism, version, now_ms)
        if request.api_key == ApiKey.SASL_AUTHENTICATE:
            if session.waits_for_token and request.size_bytes > self._max_receive_bytes:
                return Outcome(failure=f"a token of more than {self._max_receive_bytes} bytes")
            authentication, _ = p36.SaslAuthenticateRequest.decode(request.body, version)
            return session.token(bytes(authentication.auth_bytes), now_ms)
        if request.api_key == ApiKey.API_VERSIONS:
            return session.versions(now_ms)
        return session.request(api_name(request.api_key), now_ms)

    def _answer(self, request: Request, response: Message | None, *, is_raw: bool) -> None:
        assert response is not None, "what is not refused has an answer"
        if not is_raw:
            request.respond(response)
            return
        assert isinstance(response, p36.SaslAuthenticateResponse)
        token = bytes(response.auth_bytes)
        request.respond_parts([_SIZE.pack(len(token)) + token])

    def _refuse(
        self, request: Request, failure: str, response: Message | None, *, is_raw: bool
    ) -> None:
        """Say no, after a pause: guessing passwords takes time. A raw token's answer is the end of
        the connection. What has no response, such as a request that is out of place, ends it at
        once.
        """
        if response is None:
            request.close(failure)
            return
        connection = request.connection
        request.release_body()  # it waits for its answer
        self._group.authentication_log.failed(
            connection.listener_name, connection.client_host, failure
        )
        connection.begin_closing()
        tell = partial(self._tell, request, None if is_raw else response)
        if self._refusal_delay_ms > 0:
            self._group.timers.call_later(self._refusal_delay_ms, tell)
        else:
            tell()

    @staticmethod
    def _tell(request: Request, response: Message | None) -> None:
        if request.is_connection_lost:
            request.discard()
        elif response is None:
            request.close("its authentication failed")
        else:
            request.respond(response)
