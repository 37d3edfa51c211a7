"""The SASL session of one connection: handshake → authenticate → active → authenticate again.

Owns which request is allowed when, and what SaslHandshake and SaslAuthenticate are answered
(KIP-43, KIP-152), and when a session ends (`connections.max.reauth.ms`, KIP-368). Must not read or
write the connection, or know a mechanism's messages. Invariants: no request but ApiVersions,
SaslHandshake and SaslAuthenticate is served before a mechanism has accepted the client; a session's
principal and mechanism never change; a session that has failed stays so. `TRANSITIONS` is the whole
table: what is not in it ends the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from moldau.config.principals import reserved
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeResponse
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateResponse
from moldau.protocol.schema import Message
from moldau.sasl.mechanism import Accepted, Offer, SaslRefused, ServerExchange

LEAST_BETWEEN_RENEWALS_MS: Final = 1_000.0
"""A client that authenticates again sooner than this after the last time is refused (KIP-368)."""


class State(Enum):
    """Where a session stands."""

    OPENED = "opened"
    """Nothing has come yet."""
    VERSIONS_TOLD = "versions told"
    AUTHENTICATING = "authenticating"
    """A mechanism is chosen, and waits for the client's next token."""
    ACTIVE = "active"
    RENEWING = "renewing"
    """As AUTHENTICATING, for a client that has a session."""
    MECHANISM_CHANGED = "mechanism changed"
    """A client that has a session chose another mechanism: its next token is refused."""
    FAILED = "failed"


class Event(Enum):
    """What a request means to a session."""

    VERSIONS = "ApiVersions"
    CHOSEN = "a mechanism that is enabled"
    ANOTHER_CHOSEN = "a mechanism that is enabled, and is not the session's"
    CHALLENGED = "a token with which the mechanism goes on"
    ACCEPTED = "a token with which the mechanism accepts the client"
    REQUEST = "any other request"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.OPENED, Event.VERSIONS): State.VERSIONS_TOLD,
    (State.OPENED, Event.CHOSEN): State.AUTHENTICATING,
    (State.VERSIONS_TOLD, Event.CHOSEN): State.AUTHENTICATING,
    (State.AUTHENTICATING, Event.CHALLENGED): State.AUTHENTICATING,
    (State.AUTHENTICATING, Event.ACCEPTED): State.ACTIVE,
    (State.ACTIVE, Event.VERSIONS): State.ACTIVE,
    (State.ACTIVE, Event.REQUEST): State.ACTIVE,
    (State.ACTIVE, Event.CHOSEN): State.RENEWING,
    (State.ACTIVE, Event.ANOTHER_CHOSEN): State.MECHANISM_CHANGED,
    (State.RENEWING, Event.CHALLENGED): State.RENEWING,
    (State.RENEWING, Event.ACCEPTED): State.ACTIVE,
}

_WAITS_FOR_TOKEN: Final = (State.AUTHENTICATING, State.RENEWING, State.MECHANISM_CHANGED)


class Outcome(NamedTuple):
    """What becomes of a request that the session takes.

    Attributes:
        response: None for none.
        failure: why the connection ends behind the response, for the log; None while it lasts.
    """

    response: Message | None = None
    failure: str | None = None


class SaslSession:
    """Each method takes one request. It returns None for a request that goes on to its
    handler, else what becomes of it. Times are in ms of one clock that never goes back.

    Args:
        mechanisms: the enabled ones by name.
        is_refused: whether a user's name is one that no client may have here.
    """

    __slots__ = (
        "_exchange",
        "_expires_at_ms",
        "_handshake_version",
        "_is_refused",
        "_mechanisms",
        "_renewed_at_ms",
        "is_token",
        "mechanism",
        "state",
        "user",
    )

    def __init__(
        self,
        mechanisms: Mapping[str, Offer],
        is_refused: Callable[[str], bool] = lambda user: False,
    ) -> None:
        self._mechanisms = mechanisms
        self._is_refused = is_refused
        self._exchange: ServerExchange | None = None
        self._expires_at_ms: float | None = None
        self._renewed_at_ms: float | None = None
        self._handshake_version = 1
        self.mechanism = ""
        self.state = State.OPENED
        self.user: str | None = None
        """The name of the authenticated user; None before."""
        self.is_token = False
        """Whether the user has come with a delegation token."""

    @property
    def waits_for_token(self) -> bool:
        return self.state in _WAITS_FOR_TOKEN

    @property
    def waits_for_raw_token(self) -> bool:
        """Whether the next frame is a token without a request around it: a handshake of version 0
        leads there (KIP-43).
        """
        return self._handshake_version == 0 and self.waits_for_token

    def waits_since_ms(self, opened_ms: float) -> float | None:
        """Since when the client has owed an authentication, the first one from `opened_ms` on; None
        while it owes none.
        """
        if self.user is None:
            return opened_ms
        return self._renewed_at_ms if self.waits_for_token else None

    def is_expired(self, now_ms: float) -> bool:
        return self._expires_at_ms is not None and now_ms > self._expires_at_ms

    def versions(self, now_ms: float) -> Outcome | None:
        """ApiVersions."""
        if self.waits_for_token:
            return self._unexpected("ApiVersions")
        return self._served(Event.VERSIONS, "ApiVersions", now_ms)

    def request(self, name: str, now_ms: float) -> Outcome | None:
        """Any request that is not about the session, by its API's name."""
        return self._served(Event.REQUEST, name, now_ms)

    def handshake(self, mechanism: str, version: int, now_ms: float) -> Outcome | None:
        """SaslHandshake. One that cannot renew the session is for the handler, which refuses it."""
        if self.waits_for_token:
            return self._unexpected("SaslHandshake")
        if self.state is State.ACTIVE:
            if not self._may_renew(now_ms):
                return self._served(Event.REQUEST, "SaslHandshake", now_ms)
            self._renewed_at_ms = now_ms
        enabled = list(self._mechanisms)
        if mechanism not in self._mechanisms:
            failure = f"it wants mechanism {mechanism[:40]!r}, which is not enabled"
            had_session = self.state is State.ACTIVE
            self.state = State.FAILED
            if had_session:
                return Outcome(failure=failure)  # as Apache Kafka: without a word
            response = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled
            )
            return Outcome(response, failure)
        changed = self.state is State.ACTIVE and mechanism != self.mechanism
        if not self._move(Event.ANOTHER_CHOSEN if changed else Event.CHOSEN):
            return Outcome(failure=f"SaslHandshake does not belong here ({self.state.value})")
        if not changed:
            self.mechanism = mechanism
            self._exchange = self._mechanisms[mechanism].begin()
        self._handshake_version = version
        return Outcome(SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=enabled))

    def token(self, token: bytes, now_ms: float) -> Outcome | None:
        """A SaslAuthenticate request's token, or a raw one. Without a mechanism that waits for one
        it is for the handler, which refuses it.

        Raises:
            Postponed: the step has to wait; the session is as it was.
        """
        if self.state is State.MECHANISM_CHANGED:
            self.state = State.FAILED
            return Outcome(failure="it wants another mechanism than its session has")
        if not self.waits_for_token:
            return self._served(Event.REQUEST, "SaslAuthenticate", now_ms)
        assert self._exchange is not None, "a mechanism is chosen"
        try:
            result = self._exchange.step(token)
            if isinstance(result, Accepted) and self.user not in (None, result.user):
                raise SaslRefused(
                    f"it was {self.user!r} and came again as {result.user!r}",
                    "the user of a session cannot change",
                )
            if isinstance(result, Accepted) and self._is_refused(result.user):
                raise SaslRefused(reserved(result.user))
        except SaslRefused as refusal:
            return self._refused(refusal)
        if not isinstance(result, Accepted):
            self._move(Event.CHALLENGED)
            return Outcome(_answer(result))
        self._move(Event.ACCEPTED)
        self._exchange = None
        self.user = result.user
        self.is_token = result.is_token
        lifetime_ms = self._lifetime_ms(result.left_ms)
        self._expires_at_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        return Outcome(_answer(result.answer, int(lifetime_ms or 0)))

    # -- inner workings -------------------------------------------------------------------------

    def _move(self, event: Event) -> bool:
        self.state = TRANSITIONS.get((self.state, event), State.FAILED)
        return self.state is not State.FAILED

    def _lifetime_ms(self, left_ms: float | None) -> float | None:
        """How long the session lasts: not beyond what proved the client's name; None for no end."""
        most_ms = self._mechanisms[self.mechanism].max_session_ms
        ends_ms = [each for each in (most_ms if most_ms > 0 else None, left_ms) if each is not None]
        return max(0.0, min(ends_ms)) if ends_ms else None

    def _may_renew(self, now_ms: float) -> bool:
        if self._expires_at_ms is None:
            return False
        last = self._renewed_at_ms
        return last is None or now_ms - last >= LEAST_BETWEEN_RENEWALS_MS

    def _served(self, event: Event, name: str, now_ms: float) -> Outcome | None:
        before = self.state
        if before is State.ACTIVE and self.is_expired(now_ms):
            self.state = State.FAILED
            return Outcome(failure="its session is over, and it has not authenticated again")
        if self._move(event):
            return None
        return Outcome(failure=f"{name} does not belong here ({before.value})")

    def _unexpected(self, name: str) -> Outcome:
        """A request of the session's own kind in place of a token: the answer says so, as Apache
        Kafka's does. Behind a handshake of version 0 it would be a token, and never comes here.
        """
        self.state = State.FAILED
        error = ErrorCode.ILLEGAL_SASL_STATE
        response: Message
        if name == "SaslHandshake":
            response = SaslHandshakeResponse(error_code=error)
        else:
            from moldau.protocol.messages.p18_api_versions import ApiVersionsResponse

            response = ApiVersionsResponse(error_code=error)
        return Outcome(response, f"{name} came in place of a token")

    def _refused(self, refusal: SaslRefused) -> Outcome:
        again = "authentication again" if self.state is State.RENEWING else "authentication"
        self.state = State.FAILED
        self._exchange = None
        failure = f"{again} with {self.mechanism} failed: {refusal}"
        if refusal.is_passing:
            return Outcome(failure=failure)
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=refusal.told or f"{again} with {self.mechanism} failed",
        )
        return Outcome(response, failure)


def _answer(token: bytes, lifetime_ms: int = 0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms
    )
