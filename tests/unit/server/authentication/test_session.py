"""The session of a connection: every state with every request, and random sequences of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeResponse
from moldau.protocol.messages.p18_api_versions import ApiVersionsResponse
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateResponse
from moldau.sasl.mechanism import Accepted, Offer, SaslRefused
from moldau.server.authentication.core.session import (
    LEAST_BETWEEN_RENEWALS_MS,
    TRANSITIONS,
    Event,
    Outcome,
    SaslSession,
    State,
)
from tests.kit.injected_bugs import InjectedBug, Patch

SESSION_MS = 10_000.0


class Scripted:
    """A mechanism whose tokens say what it does."""

    def step(self, token: bytes) -> bytes | Accepted:
        if token == b"more":
            return b"challenge"
        if token.startswith(b"I am "):
            return Accepted(token[5:].decode(), b"welcome")
        if token == b"again":
            raise SaslRefused("the token came again", is_passing=True)
        raise SaslRefused("the token is wrong")


def session(session_ms: float = SESSION_MS) -> SaslSession:
    return SaslSession({"A": Offer(Scripted, session_ms), "B": Offer(Scripted)})


def authenticated(session_ms: float = SESSION_MS) -> SaslSession:
    made = session(session_ms)
    made.handshake("A", 1, 0)
    made.token(b"I am x", 0)
    assert made.state is State.ACTIVE
    return made


def brought_to(state: State) -> SaslSession:
    """A session in that state, at time 0."""
    if state in (State.ACTIVE, State.RENEWING, State.MECHANISM_CHANGED):
        made = authenticated()
        if state is not State.ACTIVE:
            made.handshake("A" if state is State.RENEWING else "B", 1, 0)
    else:
        made = session()
        if state is State.VERSIONS_TOLD:
            made.versions(0)
        elif state is State.AUTHENTICATING:
            made.handshake("A", 1, 0)
        elif state is State.FAILED:
            made.request("METADATA", 0)
    assert made.state is state
    return made


REQUESTS: dict[str, Any] = {
    "versions": lambda each: each.versions(0),
    "handshake": lambda each: each.handshake("A", 1, 0),
    "another handshake": lambda each: each.handshake("B", 1, 0),
    "unknown mechanism": lambda each: each.handshake("X", 1, 0),
    "token that goes on": lambda each: each.token(b"more", 0),
    "good token": lambda each: each.token(b"I am x", 0),
    "other user": lambda each: each.token(b"I am y", 0),
    "bad token": lambda each: each.token(b"bad", 0),
    "request": lambda each: each.request("METADATA", 0),
}
GOES_ON = {
    (State.OPENED, "versions"): (State.VERSIONS_TOLD, "served"),
    (State.OPENED, "handshake"): (State.AUTHENTICATING, "answered"),
    (State.OPENED, "another handshake"): (State.AUTHENTICATING, "answered"),
    (State.VERSIONS_TOLD, "handshake"): (State.AUTHENTICATING, "answered"),
    (State.VERSIONS_TOLD, "another handshake"): (State.AUTHENTICATING, "answered"),
    (State.AUTHENTICATING, "token that goes on"): (State.AUTHENTICATING, "answered"),
    (State.AUTHENTICATING, "good token"): (State.ACTIVE, "answered"),
    (State.AUTHENTICATING, "other user"): (State.ACTIVE, "answered"),
    (State.ACTIVE, "versions"): (State.ACTIVE, "served"),
    (State.ACTIVE, "request"): (State.ACTIVE, "served"),
    (State.ACTIVE, "token that goes on"): (State.ACTIVE, "served"),
    (State.ACTIVE, "good token"): (State.ACTIVE, "served"),
    (State.ACTIVE, "other user"): (State.ACTIVE, "served"),
    (State.ACTIVE, "bad token"): (State.ACTIVE, "served"),
    (State.ACTIVE, "handshake"): (State.RENEWING, "answered"),
    (State.ACTIVE, "another handshake"): (State.MECHANISM_CHANGED, "answered"),
    (State.RENEWING, "token that goes on"): (State.RENEWING, "answered"),
    (State.RENEWING, "good token"): (State.ACTIVE, "answered"),
}
"""What does not end a session. A token for an active one is "served": its handler refuses it."""


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_state_with_every_request(state: State, request_name: str) -> None:
    made = brought_to(state)
    outcome = REQUESTS[request_name](made)
    next_state, what = GOES_ON.get((state, request_name), (State.FAILED, "refused"))
    assert made.state is next_state
    if what == "served":
        assert outcome is None
    else:
        assert outcome is not None
        assert (outcome.failure is not None) == (what == "refused")
        assert what == "refused" or outcome.response.error_code == ErrorCode.NONE


def test_the_table_leads_nowhere_without_an_accepted_token() -> None:
    into_active = {key for key, state in TRANSITIONS.items() if state is State.ACTIVE}
    assert {key for key in into_active if key[0] is not State.ACTIVE} == {
        (State.AUTHENTICATING, Event.ACCEPTED),
        (State.RENEWING, Event.ACCEPTED),
    }
    assert not [key for key in TRANSITIONS if key[0] is State.FAILED]


def test_clients_get_mechanisms_challenges_and_the_sessions_lifetime() -> None:
    made = session()
    answer = made.handshake("A", 1, 0)
    assert isinstance(answer, Outcome)
    assert answer.response == SaslHandshakeResponse(mechanisms=["A", "B"])
    assert made.token(b"more", 0) == Outcome(
        SaslAuthenticateResponse(error_message=None, auth_bytes=b"challenge")
    )
    assert made.token(b"I am x", 0) == Outcome(
        SaslAuthenticateResponse(
            error_message=None, auth_bytes=b"welcome", session_lifetime_ms=int(SESSION_MS)
        )
    )
    assert (made.user, made.mechanism) == ("x", "A")
    refused = session().handshake("GSSAPI", 1, 0)
    assert refused is not None
    assert refused.response == SaslHandshakeResponse(
        error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["A", "B"]
    )


def told(outcome: Outcome | None) -> Any:
    assert outcome is not None
    assert outcome.failure is not None
    return outcome.response


def test_a_passing_refusal_has_no_answer() -> None:
    made = session()
    made.handshake("A", 1, 0)
    refused = made.token(b"again", 0)
    assert told(refused) is None
    assert refused is not None
    assert "came again" in (refused.failure or "")
    assert made.state is State.FAILED


def test_refusals_say_nothing_of_what_is_wrong() -> None:
    made = session()
    made.handshake("A", 1, 0)
    refused = made.token(b"bad", 0)
    assert told(refused).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "token is wrong" not in told(refused).error_message
    assert made.token(b"I am x", 0) != Outcome()  # FAILED stays
    assert made.user is None
    again = brought_to(State.RENEWING)
    assert "again" in told(again.token(b"bad", 0)).error_message
    assert told(brought_to(State.AUTHENTICATING).versions(0)) == ApiVersionsResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE
    )
    assert told(brought_to(State.AUTHENTICATING).handshake("A", 1, 0)) == SaslHandshakeResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE
    )
    # As Apache Kafka: without a word.
    assert told(brought_to(State.MECHANISM_CHANGED).token(b"I am x", 0)) is None
    assert told(session().request("METADATA", 0)) is None
    assert told(authenticated().handshake("GSSAPI", 1, 0)) is None


def test_a_session_s_user_cannot_change() -> None:
    made = brought_to(State.RENEWING)
    assert told(made.token(b"I am y", 0)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert made.user == "x"


def test_sessions_end_and_are_renewed() -> None:
    made = authenticated()
    assert made.request("FETCH", SESSION_MS) is None
    over = made.request("FETCH", SESSION_MS + 1)
    assert told(over) is None
    assert over is not None
    assert "its session is over" in str(over.failure)
    # One that is over may still be renewed: the client is on its way (KIP-368).
    late = authenticated()
    assert late.handshake("A", 1, SESSION_MS + 1) is not None
    assert late.token(b"I am x", SESSION_MS + 2) is not None
    assert late.request("FETCH", 2 * SESSION_MS) is None
    assert not late.is_expired(2 * SESSION_MS + 2)
    assert late.is_expired(2 * SESSION_MS + 3)


def test_a_renewal_soon_after_another_is_for_the_handler_which_refuses_it() -> None:
    made = authenticated()
    assert made.handshake("A", 1, 5) is not None
    made.token(b"I am x", 5)
    assert made.handshake("A", 1, 4 + LEAST_BETWEEN_RENEWALS_MS) is None
    assert made.state is State.ACTIVE
    assert made.handshake("A", 1, 5 + LEAST_BETWEEN_RENEWALS_MS) is not None
    assert made.state is State.RENEWING


@pytest.mark.parametrize("session_ms", [0.0, -1.0])
def test_sessions_without_an_end_cannot_be_renewed(session_ms: float) -> None:
    made = authenticated(session_ms)
    assert made.handshake("A", 1, 10**9) is None
    assert made.state is State.ACTIVE
    assert made.request("FETCH", 10**12) is None


def test_raw_tokens_follow_a_handshake_of_version_0_only() -> None:
    made = session()
    assert not made.waits_for_raw_token
    made.handshake("A", 0, 0)
    assert made.waits_for_raw_token
    made.token(b"I am x", 0)
    assert not made.waits_for_raw_token
    assert not brought_to(State.AUTHENTICATING).waits_for_raw_token


@given(st.lists(st.sampled_from(sorted(REQUESTS)), max_size=30))
def test_nothing_is_served_without_an_accepted_token(names: list[str]) -> None:
    made, accepted, failed = session(), False, False
    first_user: str | None = None
    for name in names:
        before = made.state
        outcome = REQUESTS[name](made)
        accepted = accepted or made.user is not None
        if name == "request" and outcome is None:
            assert before is State.ACTIVE
        if failed:
            assert outcome is not None
            assert outcome.failure is not None
        failed = made.state is State.FAILED
        assert not accepted or made.user in ("x", "y")
        if before in (State.ACTIVE, State.RENEWING) and made.state is State.ACTIVE:
            assert made.user == first_user
        if made.state is State.ACTIVE and before is State.AUTHENTICATING:
            first_user = made.user


# -- sessions and the time that their token gives them ---------------------------------------------


def walk(dice: random.Random) -> None:
    """A client that authenticates again, or is late with it, or does not, and sends requests.

    An accepted token is worth SESSION_MS from its own moment on, and nothing else gives time.
    """
    made, now_ms, ends_at_ms = session(), 0.0, -1.0
    made.handshake("A", 1, now_ms)
    for _ in range(60):
        now_ms += dice.choice((0.0, 1.0, 500.0, SESSION_MS / 3, SESSION_MS, SESSION_MS + 1))
        if made.waits_for_token:
            token = dice.choice((b"more", b"I am x", b"I am x"))
            outcome = made.token(token, now_ms)
            assert outcome is not None
            assert outcome.failure is None
            if token != b"more":
                ends_at_ms = now_ms + SESSION_MS
                assert outcome.response.session_lifetime_ms == SESSION_MS  # type: ignore[union-attr]
        elif dice.random() < 0.4:
            made.handshake("A", 1, now_ms)
        else:
            outcome = made.request("FETCH", now_ms)
            assert (outcome is None) == (now_ms <= ends_at_ms)
        if made.state is State.FAILED:
            assert now_ms > ends_at_ms
            return


def walks() -> None:
    for seed in range(300):
        print(f"seed {seed}")
        walk(random.Random(seed))


def session_outlives_its_token(patch: Patch) -> None:
    """A session is never over."""
    patch.setattr(SaslSession, "is_expired", lambda self, now_ms: False)


def renewal_begun_is_renewal(patch: Patch) -> None:
    """A client that has only chosen its mechanism again has a new session's time."""
    original = SaslSession.handshake

    def handshake(self: Any, mechanism: str, version: int, now_ms: float) -> Any:
        outcome = original(self, mechanism, version, now_ms)
        if self.state is State.RENEWING:
            self._expires_at_ms = now_ms + SESSION_MS
            self.state = State.ACTIVE
        return outcome

    patch.setattr(SaslSession, "handshake", handshake)


def renewed_time_is_added(patch: Patch) -> None:
    """A renewal's time begins when the old session's would have ended."""
    original = SaslSession.token

    def token(self: Any, token: bytes, now_ms: float) -> Any:
        old = self._expires_at_ms
        outcome = original(self, token, now_ms)
        if old is not None and self.state is State.ACTIVE:
            self._expires_at_ms = max(old, now_ms) + SESSION_MS
        return outcome

    patch.setattr(SaslSession, "token", token)


def test_a_session_lasts_as_long_as_its_last_token_gives_it() -> None:
    walks()


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(InjectedBug(inject), id=inject.__name__)
        for inject in (session_outlives_its_token, renewal_begun_is_renewal, renewed_time_is_added)
    ],
)
def test_sessions_that_last_too_long_are_found(bug: InjectedBug) -> None:
    with bug.injected(), pytest.raises(AssertionError):
        walks()
