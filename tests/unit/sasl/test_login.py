"""SCRAM against the examples of RFC 5802 and RFC 7677, and against servers that cheat."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeResponse
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateResponse
from moldau.runtime.authentication import (
    AuthenticationError,
    SecuritySettingError,
    is_lasting_status,
)
from moldau.sasl.gssapi.client import KerberosLogin
from moldau.sasl.login import MOST_STEPS, SaslLogin
from moldau.sasl.oauthbearer.client import TokenLogin
from moldau.sasl.oauthbearer.tokens import OAuthBearerToken
from moldau.sasl.plain import PlainLogin
from moldau.sasl.scram import ScramClient, ScramLogin
from tests.kit.manual_clock import ManualClock

VECTORS = {
    # RFC 5802, section 5
    "sha1": (
        "fyko+d2lbbFgONRv9qkxdawL",
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    # RFC 7677, section 3
    "sha256": (
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("hash_name", list(VECTORS))
def test_the_rfcs_examples(hash_name: str):
    nonce, server_first, client_final, server_final = VECTORS[hash_name]
    client = ScramClient(hash_name, "user", "pencil", nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    assert client.answer(server_first.encode()) == client_final.encode()
    assert not client.is_complete
    assert client.answer(server_final.encode()) is None
    assert client.is_complete


def test_a_client_speaks_first() -> None:
    nonce, server_first, _, _ = VECTORS["sha256"]
    client = ScramClient("sha256", "user", "pencil", nonce)
    assert client.is_complete is False
    with pytest.raises(AuthenticationError):
        client.answer(server_first.encode())
    assert client.is_complete is False


def test_names_are_escaped_and_extensions_sent():
    client = ScramClient("sha256", "a=b,c", "x", "nonce", {"tokenauth": "true"})
    assert client.first() == b"n,,n=a=3Db=2Cc,r=nonce,tokenauth=true"


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        ("r=other,s=QSXCR+Q6sek8bf92,i=4096", "does not continue ours"),
        ("r=nonce,s=QSXCR+Q6sek8bf92,i=4096", "does not continue ours"),
        ("r=nonce1,s=,i=4096", "salt is not base64"),
        ("r=nonce1,s=%%%,i=4096", "salt is not base64"),
        ("r=nonce1,s=QSXCR+Q6sek8bf9=,i=4096", "salt is not base64"),  # its last bits are spare
        ("r=nonce1,s=QSXCR+Q6sek8bf92,i=many", "not a number"),
        ("r=nonce1,s=QSXCR+Q6sek8bf92", "not a number"),
        ("r=nonce1,s=QSXCR+Q6sek8bf92,i=4095", "from 4096"),
        ("r=nonce1,s=QSXCR+Q6sek8bf92,i=999999999", "from 4096"),
        ("m=x,r=nonce1,s=QSXCR+Q6sek8bf92,i=4096", "extension"),
        ("", "does not continue ours"),
    ],
)
def test_a_first_message_that_breaks_the_rules(server_first: str, reason: str):
    client = ScramClient("sha256", "user", "pencil", "nonce")
    client.first()
    with pytest.raises(AuthenticationError, match=reason):
        client.answer(server_first.encode())


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        ("4096", None),
        ("000004096", None),
        ("0000004096", "not a number"),
        ("4999", None),
        ("5000", None),
        ("5001", "from 4096 to 5000 are"),
        ("²", "not a number"),
    ],
)
def test_a_password_is_hashed_so_many_times_and_no_more(
    monkeypatch: pytest.MonkeyPatch, count: str, reason: str | None
) -> None:
    monkeypatch.setattr("moldau.sasl.scram.MOST_ITERATIONS", 5_000)
    client = ScramClient("sha256", "user", "pencil", "nonce")
    client.first()
    message = f"r=nonce1,s=QSXCR+Q6sek8bf92,i={count}".encode()
    if reason is None:
        assert client.answer(message) is not None
    else:
        with pytest.raises(AuthenticationError, match=reason):
            client.answer(message)


def test_a_server_that_does_not_know_the_password():
    nonce, server_first, _, server_final = VECTORS["sha256"]
    for last, reason in (
        ("v=" + "A" * 43 + "=", "could not prove"),
        (server_final[:-2] + "5=", "could not prove"),  # the same bytes, with spare bits
        ("", "could not prove"),
        ("e=invalid-proof", "invalid-proof"),
    ):
        client = ScramClient("sha256", "user", "pencil", nonce)
        client.first()
        client.answer(server_first.encode())
        with pytest.raises(AuthenticationError, match=reason):
            client.answer(last.encode())
        assert not client.is_complete
    client = ScramClient("sha256", "user", "pencil", nonce)
    client.first()
    with pytest.raises(AuthenticationError, match="UTF-8"):
        client.answer(b"\xff")
    client.answer(server_first.encode())
    client.answer(server_final.encode())
    with pytest.raises(AuthenticationError, match="after the end"):
        client.answer(b"")


# -- the conversation -----------------------------------------------------------------------------


class Broker:
    """Answers with what the test says, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def __call__(self, request: Any) -> Any:
        self.asked.append(request)
        return self.answers.pop(0)


def chosen(error: ErrorCode = ErrorCode.NONE, *mechanisms: str) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error, mechanisms=list(mechanisms))


def said(token: bytes = b"", **more: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=token, **more)


PLAIN = PlainLogin("alice", "a-secret")


async def test_a_login_ends_with_the_life_of_its_session():
    broker = Broker(chosen(), said(session_lifetime_ms=5_000))
    assert await PLAIN.authenticate(broker, "h:1") == 5_000
    handshake, token = broker.asked
    assert handshake.mechanism == "PLAIN"
    assert token.auth_bytes == b"\0alice\0a-secret"


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (
            [chosen(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "A", "B")],
            "h:1: PLAIN is not offered there; set sasl.mechanism to one of: A, B",
        ),
        ([chosen(ErrorCode.UNSUPPORTED_SASL_MECHANISM)], "to one of: none"),
        ([chosen(ErrorCode.ILLEGAL_SASL_STATE)], "h:1: PLAIN: this listener does not authenticate"),
        ([chosen(ErrorCode.UNKNOWN_SERVER_ERROR)], "h:1: PLAIN: UNKNOWN_SERVER_ERROR: "),
        (
            [
                chosen(),
                said(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="wrong"),
            ],
            "h:1: PLAIN: wrong",
        ),
        (
            [chosen(), said(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)],
            f"h:1: PLAIN: {ErrorCode.SASL_AUTHENTICATION_FAILED.message}",
        ),
    ],
)
async def test_a_login_that_is_refused_says_why(answers: list[Any], text: str):
    with pytest.raises(AuthenticationError) as refused:
        await PLAIN.authenticate(Broker(*answers), "h:1")
    assert text in str(refused.value)


class Chatty:
    """An exchange that ends after so many answers, or never."""

    def __init__(self, steps: int, *, completes: bool = True) -> None:
        self.left = steps
        self.completes = completes

    def first(self) -> bytes:
        return b"first"

    def answer(self, challenge: bytes) -> bytes | None:
        self.left -= 1
        return None if self.left == 0 else b"more"

    @property
    def is_complete(self) -> bool:
        return self.completes and self.left == 0


@pytest.mark.parametrize(
    ("steps", "completes", "complaint"),
    [
        (1, True, None),
        (MOST_STEPS, True, "never comes to an end"),
        (MOST_STEPS - 1, True, None),
        (2, False, "ended it too early"),
    ],
)
async def test_an_exchange_has_an_end(steps: int, completes: bool, complaint: str | None):
    class Chatting(SaslLogin):
        mechanism = "PLAIN"

        async def exchange(self, host: str) -> Chatty:
            assert host == "h"
            return Chatty(steps, completes=completes)

    broker = Broker(chosen(), *(said() for _ in range(MOST_STEPS)))
    if complaint is None:
        assert await Chatting().authenticate(broker, "h:1") == 0
        assert len(broker.asked) == 1 + steps
    else:
        with pytest.raises(AuthenticationError, match=complaint):
            await Chatting().authenticate(broker, "h:1")


async def test_a_broker_that_cheats_is_named():
    credentials = ScramLogin("SCRAM-SHA-256", "user", "pencil")
    broker = Broker(chosen(), said(b"nonsense"))
    with pytest.raises(AuthenticationError, match=r"^h:1: "):
        await credentials.authenticate(broker, "h:1")


async def test_which_exchange_a_mechanism_has():
    async def token() -> OAuthBearerToken:
        return OAuthBearerToken("a.b.c")

    for credentials, first in (
        (PLAIN, b"\0alice\0a-secret"),
        (ScramLogin("SCRAM-SHA-256", "user", "pencil"), b"n,,n=user,r="),
        (ScramLogin("SCRAM-SHA-512", "user", "pencil"), b"n,,n=user,r="),
        (TokenLogin(token), b"n,,\x01auth=Bearer a.b.c"),
    ):
        exchange = await credentials.exchange("h")
        assert exchange.first().startswith(first)
    both = [await ScramLogin("SCRAM-SHA-256", "u", "p").exchange("h") for _ in range(2)]
    assert both[0].first() != both[1].first(), "a nonce of its own"


@pytest.mark.parametrize(("name", "password"), [("", "p"), ("n", ""), ("a\0b", "p"), ("n", "a\0")])
def test_plain_has_a_name_and_a_password_without_zeroes(name: str, password: str):
    with pytest.raises(SecuritySettingError):
        PlainLogin(name, password)


class Slow(KerberosLogin):
    """A login with Kerberos whose exchange is a double."""

    async def exchange(self, host: str) -> Chatty:
        return Chatty(2)


async def test_a_step_of_kerberos_is_taken_beside_the_loop(monkeypatch: pytest.MonkeyPatch):
    beside: list[str] = []

    async def aside(function: Any, *args: Any) -> Any:
        beside.append(function.__name__)
        return function(*args)

    monkeypatch.setattr("moldau.sasl.gssapi.client.aside", lambda: aside)
    await Slow("kafka", ManualClock()).authenticate(Broker(chosen(), said(), said()), "h:1")
    assert beside == ["first", "answer", "answer"]
    assert await PLAIN.authenticate(Broker(chosen(), said()), "h:1") == 0
    assert len(beside) == 3


async def test_a_slow_step_without_an_end_says_so(monkeypatch: pytest.MonkeyPatch):
    async def aside(function: Any, *args: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr("moldau.sasl.gssapi.client.aside", lambda: aside)
    with pytest.raises(AuthenticationError, match="h:1: Kerberos does not come to an end"):
        await Slow("kafka", ManualClock()).authenticate(Broker(chosen()), "h:1")


@pytest.mark.parametrize(
    ("status", "is_lasting"),
    [
        (299, False),
        (300, True),
        (301, True),
        (400, True),
        (401, True),
        (408, False),
        (429, False),
        (499, True),
        (500, False),
        (501, True),
        (503, False),
    ],
)
def test_which_status_would_come_again(status: int, is_lasting: bool):
    assert is_lasting_status(status) is is_lasting
