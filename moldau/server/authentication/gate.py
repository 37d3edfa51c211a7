"""The session of a connection at work: requests that are about it, and those that must wait for it.

Owns the way from a request to the session's core and back, and the pause before a refusal. Must not
know mechanisms. Invariants: what the core does not let through reaches no handler; the connection
of a client that is refused reads nothing more, and ends when the refusal has been sent; while a
token waits for keys, nothing behind it on its connection is looked at.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from moldau.protocol.api_keys import ApiKey, api_name
from moldau.protocol.headers import RequestHeader, decode_request_header
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.protocol.schema import Message
from moldau.runtime.slices import Work
from moldau.server.authentication.core.mechanism import Mechanism, Postponed, SaslRefused
from moldau.server.authentication.core.session import (
    Outcome,
    SaslSession,
    State,
    StepResult,
    result_of,
)

if TYPE_CHECKING:
    from moldau.runtime.authentication.aside import Aside
    from moldau.server.connection_group import ConnectionGroup
    from moldau.server.request import Request
    from moldau.server.server_connection import ServerConnection

RAW_TOKEN_HEADER: Final = RequestHeader(
    api_key=ApiKey.SASL_AUTHENTICATE, api_version=0, correlation_id=0, client_id=None
)
"""What stands for the header of a frame that is a token and nothing else."""

_SIZE: Final = struct.Struct(">i")


class _SlowStep(NamedTuple):
    """A token, and the mechanism whose step with it belongs beside the loop."""

    exchange: Mechanism
    token: bytes


class SaslGate:
    """Every request of a connection on a SASL listener passes here.

    Args:
        max_receive_bytes: `sasl.server.max.receive.size`.
        refusal_delay_ms: `connection.failed.authentication.delay.ms`.
        aside: where slow mechanisms take their steps; None without any.
    """

    __slots__ = ("_aside", "_group", "_max_receive_bytes", "_refusal_delay_ms", "_session")

    def __init__(
        self,
        session: SaslSession,
        connection: ServerConnection,
        group: ConnectionGroup,
        *,
        max_receive_bytes: int,
        refusal_delay_ms: float,
        aside: Aside | None = None,
    ) -> None:
        self._aside = aside
        self._session = session
        self._group = group
        self._max_receive_bytes = max_receive_bytes
        self._refusal_delay_ms = refusal_delay_ms
        connection.limit_frames(max_receive_bytes)

    @property
    def is_authenticated(self) -> bool:
        return self._session.user is not None

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
            self._postpone(request, postponed)
            return True
        if isinstance(outcome, _SlowStep):
            return self._take_step(request, outcome, is_raw=is_raw)
        if outcome is None:
            return False
        self._conclude(request, outcome, is_raw=is_raw)
        return True

    async def _take_step(self, request: Request, step: _SlowStep, *, is_raw: bool) -> None:
        """Take a slow mechanism's step beside the loop."""
        assert self._aside is not None, "a listener with a slow mechanism has its threads"
        result: StepResult
        try:
            result = await self._aside(result_of, step.exchange, step.token)
        except TimeoutError:
            reason = "the mechanism has not come to an end in time"
            result = SaslRefused(reason, is_passing=True)
        if request.is_connection_lost:
            request.discard()
            return
        now_ms = self._group.clock.monotonic_ms()
        self._conclude(request, self._session.stepped(result, now_ms), is_raw=is_raw)

    def _conclude(self, request: Request, outcome: Outcome, *, is_raw: bool) -> None:
        if outcome.failure is not None:
            self._refuse(request, outcome.failure, None if is_raw else outcome.response)
            return
        self._answer(request, outcome.response, is_raw=is_raw)
        if self._session.waits_for_raw_token:
            _connection_of(request).limit_frames(self._max_receive_bytes, min_bytes=0)
        if self._session.state is State.ACTIVE:
            connection = _connection_of(request)
            connection.principal = f"User:{self._session.user}"
            connection.token_authenticated = self._session.is_token
            connection.limit_frames(self._group.limits.request_max_bytes)

    def _outcome(self, request: Request) -> Outcome | _SlowStep | None:
        session, now_ms = self._session, self._group.clock.monotonic_ms()
        version = request.api_version
        if session.waits_for_raw_token:
            return self._token(bytes(request.body), now_ms)
        if request.api_key == ApiKey.SASL_HANDSHAKE:
            handshake, _ = SaslHandshakeRequest.decode(request.body, version)
            return session.handshake(handshake.mechanism, version, now_ms)
        if request.api_key == ApiKey.SASL_AUTHENTICATE:
            if session.waits_for_token and request.size_bytes > self._max_receive_bytes:
                return Outcome(failure=f"a token of more than {self._max_receive_bytes} bytes")
            authentication, _ = SaslAuthenticateRequest.decode(request.body, version)
            return self._token(bytes(authentication.auth_bytes), now_ms)
        if request.api_key == ApiKey.API_VERSIONS:
            return session.versions(now_ms)
        return session.request(api_name(request.api_key), now_ms)

    def _postpone(self, request: Request, postponed: Postponed) -> None:
        """Take the request when the keys for it are there."""
        request.connection.suspend()
        go_on = partial(self._go_on, request)
        if not postponed.wait(go_on, lambda: request.is_connection_lost):
            request.close("too many logins wait for the keys of delegation tokens")

    def _go_on(self, request: Request) -> None:
        if request.is_connection_lost:
            request.discard()
            return
        request.connection.proceed()
        is_taken = self.takes(request)  # or postponed again, if the keys have been dropped by now
        assert is_taken, "the session still waits for this token"

    def _token(self, token: bytes, now_ms: float) -> Outcome | _SlowStep | None:
        exchange = self._session.slow_exchange
        if exchange is not None:
            return _SlowStep(exchange, token)
        return self._session.token(token, now_ms)

    def _answer(self, request: Request, response: Message | None, *, is_raw: bool) -> None:
        assert response is not None, "what is not refused has an answer"
        if not is_raw:
            request.respond(response)
            return
        assert isinstance(response, SaslAuthenticateResponse)
        token = bytes(response.auth_bytes)
        request.respond_parts([_SIZE.pack(len(token)) + token])

    def _refuse(self, request: Request, failure: str, response: Message | None) -> None:
        """Say no, after a pause: guessing passwords takes time. There is no answer to a raw token,
        or to a request that is out of place: the connection ends.
        """
        if response is None:
            request.close(failure)
            return
        connection = _connection_of(request)
        self._group.authentication_log.failed(
            connection.listener_name, connection.client_host, failure
        )
        connection.begin_closing()
        if self._refusal_delay_ms > 0:
            tell = partial(self._tell, request, response)
            self._group.timers.call_later(self._refusal_delay_ms, tell)
        else:
            self._tell(request, response)

    @staticmethod
    def _tell(request: Request, response: Message) -> None:
        if not request.is_connection_lost:
            request.respond(response)
        else:
            request.discard()


def _connection_of(request: Request) -> ServerConnection:
    """The gate does not keep it: each would keep the other alive."""
    return cast("ServerConnection", request.connection)
