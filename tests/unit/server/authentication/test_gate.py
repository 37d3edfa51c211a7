"""The session at work on one connection: what it takes, what it answers, and what it limits."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import RequestHeader
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.sasl.mechanism import Accepted, Offer, Postponed, SaslRefused
from moldau.server.authentication.core.session import SaslSession
from moldau.server.authentication.gate import RAW_TOKEN_HEADER, SaslGate
from moldau.server.connection_limits import ServerLimits
from moldau.server.request import Request
from tests.kit.manual_clock import ManualClock

MOST, SESSION_MS, DELAY_MS = 200, 10_000.0, 500.0
LIMITS = ServerLimits(request_max_bytes=1_000_000)


class Scripted:
    """A mechanism whose tokens say what it does; `is_there` is what a postponed step waits for."""

    is_there = False
    waits = 0

    def step(self, token: bytes) -> bytes | Accepted:
        if token == b"more":
            return b"challenge"
        if token == b"later" and not Scripted.is_there:
            raise Postponed(self._wait)
        if token == b"again":
            raise SaslRefused("the token came again", is_passing=True)
        if token in (b"I am x", b"later"):
            return Accepted("x", b"welcome")
        if token == b"I am a token of x":
            return Accepted("x", b"", 1_000.0, is_token=True)
        raise SaslRefused("the token is wrong")

    @staticmethod
    async def _wait(is_lost: Any) -> bool:
        Scripted.waits += 1
        assert is_lost() is False
        Scripted.is_there = True
        return True


class Log:
    def __init__(self) -> None:
        self.failures: list[tuple[str, str, str]] = []

    def failed(self, listener_name: str, host: str, failure: str) -> None:
        self.failures.append((listener_name, host, failure))


class Group:
    """What connections share."""

    limits = LIMITS

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = self.clock
        self.authentication_log = Log()


class Connection:
    """Remembers what is done to it."""

    client_host = "10.0.0.9"
    listener_name = "OUTSIDE"
    principal = "User:ANONYMOUS"
    token_authenticated = False

    def __init__(self) -> None:
        self.is_closed = self.is_closing = False
        self.limits: list[tuple[int, int]] = []
        self.answers: list[bytes] = []
        self.closed: list[str] = []
        self.released = 0

    def authenticate(self, principal: str) -> None:
        self.principal = principal

    def limit_frames(self, max_bytes: int, min_bytes: int = 1) -> None:
        self.limits.append((max_bytes, min_bytes))

    def begin_closing(self) -> None:
        self.is_closing = True

    def close(self, reason: str) -> None:
        self.closed.append(reason)
        self.is_closed = True

    def on_response(self, request: Request) -> None:
        self.answers.append(b"".join(bytes(each) for each in request.take_parts()))

    def release_frame(self, frame: memoryview) -> None:
        self.released += 1


class Client:
    """Sends requests through a gate."""

    def __init__(self, *, delay_ms: float = 0.0) -> None:
        Scripted.is_there, Scripted.waits = False, 0
        self.group, self.connection = Group(), Connection()
        self.session = SaslSession({"A": Offer(Scripted, SESSION_MS)})
        self.gate = SaslGate(
            self.session,
            self.connection,  # type: ignore[arg-type]
            self.group,  # type: ignore[arg-type]
            max_receive_bytes=MOST,
            refusal_delay_ms=delay_ms,
        )

    def request(self, message: Message, version: int) -> Request:
        header = RequestHeader(
            api_key=message.API_KEY, api_version=version, correlation_id=1, client_id="c"
        )
        frame = memoryview(bytearray(message.to_bytes(version)))
        return Request(self.connection, header, 0, frame, 0.0)  # type: ignore[arg-type]

    def send(self, message: Message, version: int) -> Any:
        """What the gate says of a request."""
        return self.gate.takes(self.request(message, version))

    def choose(self, mechanism: str = "A", version: int = 1) -> Any:
        return self.send(SaslHandshakeRequest(mechanism=mechanism), version)

    def token(self, token: bytes) -> Any:
        return self.send(SaslAuthenticateRequest(auth_bytes=token), 2)

    def raw(self, token: bytes) -> Any:
        header, size = self.gate.read_header(memoryview(token))
        assert (header, size) == (RAW_TOKEN_HEADER, 0)
        frame = memoryview(bytearray(token))
        return self.gate.takes(Request(self.connection, header, 0, frame, 0.0))  # type: ignore[arg-type]

    def log_in(self) -> None:
        assert self.choose() is True
        assert self.token(b"I am x") is True


def test_a_client_has_a_principal_once_its_token_is_accepted() -> None:
    client = Client()
    assert client.connection.limits == [(MOST, 1)]
    assert client.choose() is True
    assert client.token(b"more") is True
    assert client.connection.principal == "User:ANONYMOUS"
    assert client.connection.limits == [(MOST, 1)]
    assert client.token(b"I am x") is True
    assert client.connection.principal == "User:x"
    assert client.connection.token_authenticated is False
    assert client.connection.limits[-1] == (LIMITS.request_max_bytes, 1)
    assert [len(each) > 0 for each in client.connection.answers] == [True] * 3
    assert client.send(MetadataRequest(), 12) is False, "it is for its handler"


def test_a_session_of_a_delegation_token_is_marked() -> None:
    client = Client()
    client.choose()
    client.token(b"I am a token of x")
    assert client.connection.principal == "User:x"
    assert client.connection.token_authenticated is True
    client.group.clock.advance(500)
    client.log_in()
    assert client.connection.token_authenticated is False, "as what came last says"


def test_a_request_ahead_of_a_session_ends_the_connection_at_once() -> None:
    client = Client(delay_ms=DELAY_MS)
    assert client.send(MetadataRequest(), 12) is True
    assert client.connection.closed == ["Metadata does not belong here (opened)"]
    assert (client.connection.released, client.connection.answers) == (1, [])
    assert client.group.authentication_log.failures == []


def test_versions_are_answered_before_a_session() -> None:
    client = Client()
    assert client.send(ApiVersionsRequest(), 3) is False
    assert client.choose() is True
    assert client.send(ApiVersionsRequest(), 3) is True, "in place of a token: refused"
    assert client.connection.is_closing


@pytest.mark.parametrize("more", [0, 1])
def test_a_renewal_s_token_has_the_same_limit_as_the_first(more: int) -> None:
    client = Client()
    client.log_in()
    client.group.clock.advance(2_000)
    assert client.choose() is True
    around = len(SaslAuthenticateRequest(auth_bytes=b"").to_bytes(2)) + 1
    token = b"I am x".ljust(MOST - around + more, b" ")
    request = client.request(SaslAuthenticateRequest(auth_bytes=token), 2)
    assert request.size_bytes == MOST + more
    assert client.gate.takes(request) is True
    if more:
        assert client.connection.closed == [f"a token of more than {MOST} bytes"]
        assert client.connection.answers[3:] == []
    else:
        assert client.connection.closed == []
        (failure,) = client.group.authentication_log.failures
        assert "authentication again with A failed" in failure[2], "it was looked at, and is wrong"


def test_a_token_that_no_mechanism_waits_for_is_for_its_handler_whatever_its_size() -> None:
    client = Client()
    client.log_in()
    assert client.token(bytes(2 * MOST)) is False
    assert client.connection.closed == []


# -- raw tokens -----------------------------------------------------------------------------------


def test_raw_tokens_are_frames_of_their_own_and_so_are_their_answers() -> None:
    client = Client()
    header = RequestHeader(api_key=ApiKey.METADATA, api_version=1, correlation_id=5, client_id="c")
    frame = memoryview(struct.pack(">hhih", 3, 1, 5, 1) + b"c")
    assert client.gate.read_header(frame) == (header, 11)
    assert client.choose(version=0) is True
    assert client.connection.limits[-1] == (MOST, 0), "a token may be empty"
    assert client.raw(b"more") is True
    assert client.connection.limits[-1] == (MOST, 0)
    assert client.raw(b"I am x") is True
    assert client.connection.answers[1:] == [
        struct.pack(">i", 9) + b"challenge",
        struct.pack(">i", 7) + b"welcome",
    ]
    assert client.connection.limits[-1] == (LIMITS.request_max_bytes, 1)
    assert client.gate.read_header(frame) == (header, 11)


def test_a_raw_token_s_refusal_is_the_end_of_the_connection() -> None:
    client = Client(delay_ms=DELAY_MS)
    client.choose(version=0)
    assert client.raw(b"wrong") is True
    assert client.connection.closed == []
    client.group.clock.advance(DELAY_MS)
    assert client.connection.closed == ["its authentication failed"]
    assert len(client.connection.answers) == 1


# -- refusals -------------------------------------------------------------------------------------


def test_a_refusal_comes_after_a_pause_in_which_nothing_is_read() -> None:
    client = Client(delay_ms=DELAY_MS)
    client.choose()
    assert client.token(b"wrong") is True
    assert client.connection.is_closing
    assert client.group.authentication_log.failures == [
        ("OUTSIDE", "10.0.0.9", "authentication with A failed: the token is wrong")
    ]
    client.group.clock.advance(DELAY_MS - 1)
    assert len(client.connection.answers) == 1
    client.group.clock.advance(1)
    assert len(client.connection.answers) == 2
    assert client.connection.closed == []


def test_the_shortest_pause_is_one_too() -> None:
    client = Client(delay_ms=1.0)
    client.choose()
    assert client.token(b"wrong") is True
    assert (len(client.connection.answers), client.group.clock.timer_count) == (1, 1)
    client.group.clock.advance(1)
    assert (len(client.connection.answers), client.group.clock.timer_count) == (2, 0)


def test_a_refusal_without_a_pause_comes_at_once() -> None:
    client = Client()
    assert client.choose("B") is True
    assert len(client.connection.answers) == 1
    assert client.group.clock.timer_count == 0
    code = struct.unpack_from(">h", client.connection.answers[0], 8)[0]
    assert code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_a_refusal_of_a_client_that_has_gone_is_dropped() -> None:
    client = Client(delay_ms=DELAY_MS)
    client.choose()
    before = client.connection.released
    client.token(b"wrong")
    client.connection.is_closed = True
    client.group.clock.advance(DELAY_MS)
    assert len(client.connection.answers) == 1
    assert client.connection.released == before + 1


def test_a_fault_that_passes_ends_the_connection_without_a_word() -> None:
    client = Client(delay_ms=DELAY_MS)
    client.choose()
    assert client.token(b"again") is True
    assert client.connection.closed == ["authentication with A failed: the token came again"]


# -- steps that wait ------------------------------------------------------------------------------


def finished(work: Any) -> None:
    with pytest.raises(StopIteration):
        work.send(None)


def test_a_step_that_waits_is_taken_again() -> None:
    client = Client()
    client.choose()
    work = client.token(b"later")
    assert client.connection.principal == "User:ANONYMOUS"
    finished(work)
    assert client.connection.principal == "User:x"
    assert (len(client.connection.answers), Scripted.waits) == (2, 1)


def test_a_step_may_wait_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    async def wait(is_lost: Any) -> bool:
        Scripted.waits += 1
        Scripted.is_there = Scripted.waits == 2
        return True

    monkeypatch.setattr(Scripted, "_wait", staticmethod(wait))
    client.choose()
    finished(client.token(b"later"))
    assert (client.connection.principal, Scripted.waits) == ("User:x", 2)


def test_a_step_for_which_too_many_wait_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()

    async def wait(is_lost: Any) -> bool:
        return False

    monkeypatch.setattr(Scripted, "_wait", staticmethod(wait))
    client.choose()
    finished(client.token(b"later"))
    assert client.connection.closed == ["too many logins wait"]
    assert client.connection.principal == "User:ANONYMOUS"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_step_of_a_client_that_has_gone_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    client = Client()

    async def wait(is_lost: Any) -> bool:
        client.connection.is_closed = True
        assert is_lost() is True
        return is_there

    monkeypatch.setattr(Scripted, "_wait", staticmethod(wait))
    client.choose()
    before = client.connection.released
    finished(client.token(b"later"))
    assert client.connection.released == before + 1
    assert (client.connection.closed, client.connection.principal) == ([], "User:ANONYMOUS")


def test_how_long_a_client_has_owed_its_login() -> None:
    client = Client()
    assert client.gate.waits_since_ms(5.0) == 5.0
    client.log_in()
    assert client.gate.waits_since_ms(5.0) is None
    client.group.clock.advance(3_000)
    client.choose()
    assert client.gate.waits_since_ms(5.0) == client.group.clock.monotonic_ms()
