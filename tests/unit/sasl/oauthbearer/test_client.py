"""Where tokens come from: token endpoints with every grant, files, and unsecured ones."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import uuid
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import parse_qsl
from urllib.request import Request

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from moldau.client.config.client import ClientConfig
from moldau.runtime.authentication import (
    AuthenticationError,
    LoginRefused,
    SecuritySettingError,
)
from moldau.sasl.oauthbearer.assertions import WatchedFile, jwt_text
from moldau.sasl.oauthbearer.client import TokenLogin, token_source
from moldau.sasl.oauthbearer.identity_provider import PACKAGE
from moldau.sasl.oauthbearer.token_endpoint import MAX_ANSWER_BYTES, ClientSecret, TokenEndpoint
from moldau.sasl.oauthbearer.tokens import OAuthBearerToken, TokenSource
from tests.kit.counting import Newcomers
from tests.kit.manual_clock import ManualClock
from tests.unit.sasl.oauthbearer.test_tokens import jwt

RSA_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
JWT_BEARER = f"{PACKAGE}.JwtBearerJwtRetriever"
URL = "https://127.0.0.1:1/token"


def source_of(options: dict[str, str] | None = None, **settings: Any) -> TokenSource:
    """As a client's settings have it; names without what begins them all."""
    named = {f"sasl_oauthbearer_{name}": value for name, value in settings.items()}
    config = ClientConfig("h:1", sasl_login_retry_backoff_ms=1, **named)  # type: ignore[arg-type]
    return token_source(
        lambda key: getattr(config, key.replace(".", "_")),
        options or {},
        ManualClock(),
        context=lambda: None,
        try_count=2,
    )


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, passphrase: str = "") -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def parts_of(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, payload, _ = (urlsafe_b64decode(each + "==") for each in token.split("."))
    return json.loads(header), json.loads(payload)


class _Endpoint(BaseHTTPRequestHandler):
    answers: list[tuple[int, bytes]]
    seen: list[tuple[dict[str, str], bytes]]
    location = ""

    def do_GET(self) -> None:
        self.seen.append((dict(self.headers), b"a redirection was followed"))
        self.send_response(404)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((dict(self.headers), body))
        status, answer = self.answers.pop(0)
        self.send_response(status)
        if self.location:
            self.send_header("Location", self.location)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass

    @classmethod
    def last_form(cls) -> dict[str, str]:
        return dict(parse_qsl(cls.seen[-1][1].decode(), strict_parsing=True))


class _End(socket.socket):
    """One end of a pair that takes itself for TCP."""

    def setsockopt(self, *_: Any) -> None:
        """There is nothing to delay."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[_Endpoint]]]:
    handler = type("Endpoint", (_Endpoint,), {"answers": [], "seen": []})
    threads: list[threading.Thread] = []

    def serve(end: socket.socket) -> None:
        with end, suppress(ConnectionError):  # its client may have had enough
            handler(end, ("client", 1), None)  # type: ignore[arg-type]

    def connect(address: tuple[str, int], timeout: float, *_: object) -> socket.socket:
        assert address == ("127.0.0.1", 8_080)
        client, server = socket.socketpair()
        threads.append(threading.Thread(target=serve, args=(server,)))
        threads[-1].start()
        made = _End(fileno=client.detach())
        made.settimeout(timeout)
        return made

    monkeypatch.setattr(socket, "create_connection", connect)
    yield "http://127.0.0.1:8080/token", handler
    for thread in threads:
        thread.join()


def given(name: str = "access_token", **claims: Any) -> tuple[int, bytes]:
    return 200, json.dumps({name: jwt(**claims)}).encode()


SECRET = {
    "client_credentials_client_id": "me",
    "client_credentials_client_secret": "a secret",
    "scope": " read write ",
}


async def test_client_credentials(endpoint: tuple[str, type[_Endpoint]]):
    url, handler = endpoint
    handler.answers = [(500, b""), given(exp=9)]
    source = source_of(token_endpoint_url=url, **SECRET)
    assert (await source()).expires_at_ms == 9_000
    headers, body = handler.seen[1]
    assert b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:a secret"
    assert body == b"grant_type=client_credentials&scope=read+write"
    handler.answers = [given("id_token", exp=8)]
    assert (await source()).expires_at_ms == 8_000
    handler.answers = [given(exp=9)]
    await source_of(token_endpoint_url=url, header_urlencode=True, **SECRET)()
    value = handler.seen[-1][0]["Authorization"].removeprefix("Basic ")
    assert b64decode(value) == b"me:a+secret"


async def test_what_the_endpoint_refuses_and_what_may_pass(
    endpoint: tuple[str, type[_Endpoint]],
) -> None:
    url, handler = endpoint
    source = source_of(token_endpoint_url=url, **SECRET)
    for status in (400, 401, 404, 501):
        handler.answers = [(status, b"")]
        with pytest.raises(LoginRefused, match=str(status)):
            await source()
    handler.answers = [(200, b"[]")]
    with pytest.raises(LoginRefused, match="no access_token"):
        await source()
    for status in (408, 429, 500, 503):
        handler.answers = [(status, b""), (status, b"")]
        with pytest.raises(AuthenticationError, match=str(status)) as raised:
            await source()
        assert raised.type is AuthenticationError
        assert not handler.answers
    handler.answers = [(200, b"x" * 1_100_000)] * 2
    with pytest.raises(AuthenticationError, match="too long"):
        await source()


async def test_secrets_follow_no_redirection(endpoint: tuple[str, type[_Endpoint]]):
    url, handler = endpoint
    for status in (301, 302, 303, 307, 308):
        handler.answers, seen = [(status, b""), given(exp=9)], len(handler.seen)
        handler.location = url + "/elsewhere"
        with pytest.raises(LoginRefused, match=str(status)):
            await source_of(token_endpoint_url=url, **SECRET)()
        assert len(handler.seen) == seen + 1


@pytest.mark.parametrize(
    ("algorithm", "key", "public"),
    [
        ("RS256", RSA_KEY, RSAKey.import_key(pem(RSA_KEY))),
        ("ES256", EC_KEY, ECKey.import_key(pem(EC_KEY))),
    ],
)
async def test_assertions_are_signed_here(
    endpoint: tuple[str, type[_Endpoint]],
    tmp_path: Path,
    algorithm: str,
    key: rsa.RSAPrivateKey,
    public: Any,
) -> None:
    url, handler = endpoint
    (tmp_path / "key").write_bytes(pem(key, "phrase"))
    template = {"header": {"kid": "k", "typ": "x"}, "payload": {"aud": ["a", "b"], "exp": 1}}
    (tmp_path / "template").write_text(json.dumps(template))
    source = source_of(
        token_endpoint_url=url,
        assertion_algorithm=algorithm.lower(),
        assertion_private_key_file=str(tmp_path / "key"),
        assertion_private_key_passphrase="phrase",
        assertion_template_file=str(tmp_path / "template"),
        assertion_claim_aud="replaced by the template's",
        assertion_claim_iss="me",
        assertion_claim_sub="this",
        assertion_claim_exp_seconds=7,
        assertion_claim_nbf_seconds=3,
        assertion_claim_jti_include=True,
        client_credentials_client_id="me",
        scope="all",
    )
    handler.answers = [given(exp=9)]
    assert (await source()).expires_at_ms == 9_000
    form = handler.last_form()
    assertion = form.pop("client_assertion")
    assert form == {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "grant_type": "client_credentials",
        "client_id": "me",
        "scope": "all",
    }
    assert "Authorization" not in handler.seen[-1][0]
    message, _, signature = assertion.rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    assert jws.JWSRegistry.algorithms[algorithm].verify(message.encode(), raw, public)
    header, payload = parts_of(assertion)
    assert header == {"kid": "k", "alg": algorithm, "typ": "JWT"}
    now_s = int(ManualClock().now_ms() // 1000)
    assert uuid.UUID(payload.pop("jti")).version == 4
    assert payload == {
        "aud": ["a", "b"],
        "iss": "me",
        "sub": "this",
        "iat": now_s,
        "exp": now_s + 7,
        "nbf": now_s - 3,
    }


async def test_the_jwt_bearer_grant_and_a_key_that_is_replaced(
    endpoint: tuple[str, type[_Endpoint]], tmp_path: Path
) -> None:
    url, handler = endpoint
    path = tmp_path / "key"
    path.write_bytes(pem(RSA_KEY))
    source = source_of(
        {"scope": "a scope of JAAS is not this grant's"},
        token_endpoint_url=url,
        jwt_retriever_class=JWT_BEARER,
        assertion_private_key_file=str(path),
        **SECRET,
    )
    used = []
    for key in (RSA_KEY, rsa.generate_private_key(65_537, 2_048)):
        path.write_bytes(pem(key))
        os.utime(path, ns=(len(used), len(used)))
        handler.answers = [given(exp=9)]
        await source()
        form = handler.last_form()
        message, _, signature = form.pop("assertion").rpartition(".")
        raw = urlsafe_b64decode(signature + "==")
        public = RSAKey.import_key(pem(key))
        assert jws.JWSRegistry.algorithms["RS256"].verify(message.encode(), raw, public)
        used.append(raw)
        assert form == {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "scope": "read write",
        }
        assert "Authorization" not in handler.seen[-1][0]
    assert used[0] != used[1]
    path.unlink()
    with pytest.raises(AuthenticationError, match=r"private\.key\.file: .*No such file"):
        await source()
    assert len(handler.seen) == 2


async def test_an_assertion_of_a_file_goes_before_all_else(
    endpoint: tuple[str, type[_Endpoint]], tmp_path: Path
) -> None:
    url, handler = endpoint
    path = tmp_path / "assertion"
    path.write_text(jwt(sub="one") + "\n")
    settings = {
        **SECRET,
        "token_endpoint_url": url,
        "assertion_file": str(path),
        "assertion_claim_iss": "no key to sign with is needed",
    }
    source, bearer = source_of(**settings), source_of(**settings, jwt_retriever_class=JWT_BEARER)
    path.write_text(jwt(sub="another one"))
    handler.answers = [given(exp=9)]
    await source()
    assert handler.last_form()["client_assertion"] == jwt(sub="another one")
    handler.answers = [given(exp=9)]
    await bearer()
    assert handler.last_form()["assertion"] == jwt(sub="another one")


async def test_a_token_in_a_file(tmp_path: Path):
    path = tmp_path / "a token"
    path.write_text(jwt(exp=5) + "\n")
    source = source_of(token_endpoint_url=path.as_uri())
    assert (await source()).value == jwt(exp=5)
    path.unlink()
    with pytest.raises(AuthenticationError, match="token file"):
        await source()
    os.mkfifo(path)
    with pytest.raises(AuthenticationError, match="not a regular file"):
        await source()


async def test_who_gives_up_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch):
    """A request that hangs is in no thread that the end of the event loop waits for."""
    asked, hangs = threading.Event(), threading.Event()

    def opened(*_: object) -> None:
        asked.set()
        hangs.wait()
        raise OSError("the test is over")

    monkeypatch.setattr("moldau.runtime.https.opener", opened)
    source = source_of(token_endpoint_url=URL, **SECRET)
    new = Newcomers()
    asking = asyncio.ensure_future(source())
    try:
        await asyncio.to_thread(asked.wait)
        [thread] = new.threads("token-request")
        assert thread.daemon
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        # The loop's own threads are all at rest, while the request still hangs.
        await asyncio.get_running_loop().shutdown_default_executor()
        assert thread.is_alive()
    finally:
        hangs.set()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "token.endpoint.url is needed"),
        ({"token_endpoint_url": URL}, "client.secret are needed"),
        ({"token_endpoint_url": "ftp://a/b"}, "an https:, http: or file: URL"),
        ({"jwt_retriever_class": "org.example.Own"}, "jwt.retriever.class=org.example.Own: one of"),
        (
            {"token_endpoint_url": URL, "jwt_retriever_class": f"{PACKAGE}.FileJwtRetriever"},
            "does not fit",
        ),
        ({"token_endpoint_url": "file:///x", "jwt_retriever_class": JWT_BEARER}, "does not fit"),
        (
            {"token_endpoint_url": URL, "jwt_retriever_class": JWT_BEARER},
            "private.key.file is needed, to sign assertions",
        ),
        ({"token_endpoint_url": URL, "assertion_claim_iss": "me"}, "private.key.file is needed"),
        ({"token_endpoint_url": URL, "assertion_file": "/no/such"}, "/no/such: No such file"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(SecuritySettingError) as refused:
        source_of(**settings)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("content", "more", "complaint"),
    [
        (lambda: b"no key", {}, "it is no private key in PEM"),
        (lambda: pem(RSA_KEY), {"assertion_private_key_passphrase": "hidden"}, "is not encrypted"),
        (lambda: pem(RSA_KEY, "right"), {}, "is encrypted, and needs sasl.oauthbearer.assertion"),
        (
            lambda: pem(RSA_KEY, "right"),
            {"assertion_private_key_passphrase": "hidden"},
            "private.key.passphrase is wrong",
        ),
        (lambda: pem(RSA_KEY), {"assertion_algorithm": "ES256"}, "ES256 needs a key of the curve"),
        (lambda: pem(EC_KEY), {}, "RS256 needs an RSA key"),
        (
            lambda: pem(ec.generate_private_key(ec.SECP384R1())),
            {"assertion_algorithm": "ES256"},
            "the curve P-256",
        ),
    ],
)
def test_keys_that_cannot_sign(
    tmp_path: Path, content: Callable[[], bytes], more: dict[str, str], complaint: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content())
    with pytest.raises(SecuritySettingError) as refused:
        source_of(
            token_endpoint_url=URL,
            assertion_claim_iss="me",
            assertion_private_key_file=str(path),
            **more,
        )
    assert complaint in str(refused.value)
    assert "hidden" not in str(refused.value)
    assert "PRIVATE" not in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"header": 1}', '{"payload": []}'])
def test_templates_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_bytes(pem(RSA_KEY))
    (tmp_path / "template").write_text(text)
    with pytest.raises(SecuritySettingError, match="no JSON object with the objects header"):
        source_of(
            token_endpoint_url=URL,
            assertion_claim_iss="me",
            assertion_private_key_file=str(tmp_path / "key"),
            assertion_template_file=str(tmp_path / "template"),
        )


USER = {"unsecuredLoginStringClaim_sub": "alice"}


async def test_unsecured_tokens_are_those_of_apache_kafka():
    """The claims are what Apache Kafka 4.3.0 made of the same options."""
    source = source_of(
        {
            **USER,
            "unsecuredLoginNumberClaim_n": "7",
            "unsecuredLoginListClaim_scope": "|a|b||c|",
            "unsecuredLoginListClaim_e": "",
            "unsecuredLoginListClaim_l": ",",
            "unsecuredLoginStringClaim_": "no name",
            "unsecuredLoginLifetimeSeconds": "60",
            "unsecuredLoginExtension_traceId": "123",
        }
    )
    token = await source()
    now_s = ManualClock().now_ms() / 1000
    assert token.value.endswith(".")
    assert parts_of(token.value) == (
        {"alg": "none"},
        {
            "exp": now_s + 60,
            "iat": now_s,
            "sub": "alice",
            "n": 7.0,
            "scope": ["a", "b", "", "c", ""],
            "e": [],
            "l": [],
        },
    )
    assert token.expires_at_ms == (now_s + 60) * 1000
    assert token.extensions == (("traceId", "123"),)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"unsecuredLoginStringClaim_who": "a"}, "StringClaim_sub is needed"),
        ({"unsecuredLoginNumberClaim_sub": "5"}, "StringClaim_sub is needed"),
        ({"unsecuredLoginStringClaim_sub": " "}, "StringClaim_sub is needed"),
        ({"unsecuredLoginExtension_a": "5"}, "StringClaim_sub is needed"),
        ({**USER, "unsecuredLoginPrincipalClaimName": "who"}, "StringClaim_who is needed"),
        ({**USER, "unsecuredLoginStringClaim_iat": "5"}, "the token's iat is made here"),
        ({**USER, "unsecuredLoginNumberClaim_n": "x"}, "NumberClaim_n: a number"),
        ({**USER, "unsecuredLoginNumberClaim_n": "nan"}, "NumberClaim_n: a finite number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": "x"}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": "-5"}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": "0"}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": "1.5"}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": ""}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": "²"}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": "٣"}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginLifetimeSeconds": str(2**31)}, "LifetimeSeconds: a whole number"),
        ({**USER, "unsecuredLoginNumberClaim_n": "inf"}, "NumberClaim_n: a finite number"),
        ({**USER, "unsecuredLoginNumberClaim_n": "-inf"}, "NumberClaim_n: a finite number"),
        ({**USER, "unsecuredLoginListClaim_exp": ",5"}, "the token's exp is made here"),
        ({"unsecuredLoginListClaim_sub": ",alice"}, "StringClaim_sub is needed"),
    ],
)
def test_options_that_make_no_token(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(SecuritySettingError) as refused:
        source_of(options)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 1), (" 60 ", 60), (str(2**31 - 1), 2**31 - 1), (None, 3_600)]
)
async def test_an_unsecured_token_lives_as_long_as_it_says(text: str | None, seconds: int) -> None:
    lifetime = {} if text is None else {"unsecuredLoginLifetimeSeconds": text}
    token = await source_of({**USER, **lifetime})()
    now_ms = ManualClock().now_ms()
    assert token.expires_at_ms == now_ms + seconds * 1000
    assert parts_of(token.value)[1]["exp"] == now_ms / 1000 + seconds


@pytest.mark.parametrize(
    ("text", "elements"),
    [("", []), (",", []), (",a", ["a"]), ("ab", ["b"]), (",,", ["", ""]), ("|a|b", ["a", "b"])],
)
async def test_a_list_begins_with_what_stands_between_its_elements(
    text: str, elements: list[str]
) -> None:
    token = await source_of({**USER, "unsecuredLoginListClaim_l": text})()
    assert parts_of(token.value)[1]["l"] == elements


async def test_an_unsecured_token_names_its_user_in_the_claim_that_is_said() -> None:
    options = {"unsecuredLoginStringClaim_who": "bob", "unsecuredLoginPrincipalClaimName": " who "}
    token = await source_of(options)()
    assert parts_of(token.value)[1]["who"] == "bob"
    assert token.extensions == ()


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"a.b.c", "a.b.c"), (b"\n a.b.c \r\n", "a.b.c"), (b"\x7f", "\x7f")],
)
def test_the_token_of_a_file_is_its_text(data: bytes, text: str) -> None:
    assert jwt_text(data) == text


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"a.b.c\x80", "it holds more than a token: bytes outside ASCII"),
        ("a.b.ç".encode(), "it holds more than a token: bytes outside ASCII"),
    ],
)
def test_what_is_no_token_of_a_file(tmp_path: Path, data: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        jwt_text(data)
    path = tmp_path / "assertion"
    path.write_bytes(data)
    with pytest.raises(SecuritySettingError) as refused:
        source_of(token_endpoint_url=URL, assertion_file=str(path))
    assert str(refused.value) == f"sasl.oauthbearer.assertion.file: {path}: {complaint}"


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    parsed: list[bytes] = []

    def parse(data: bytes) -> int:
        parsed.append(data)
        if data == b"bad":
            raise ValueError("it is bad")
        return len(parsed)

    file = WatchedFile("a.key", str(path), parse)
    with pytest.raises(AuthenticationError) as refused:
        file()
    assert str(refused.value) == f"a.key: {path}: No such file or directory"
    path.write_bytes(b"one")
    assert [file(), file()] == [1, 1]
    path.write_bytes(b"bad")
    for _ in range(2):
        with pytest.raises(AuthenticationError) as refused:
            file()
        assert str(refused.value) == f"a.key: {path}: it is bad"
    path.write_bytes(b"three")
    assert [file(), file()] == [4, 4]
    assert parsed == [b"one", b"bad", b"bad", b"three"]
    path.unlink()
    with pytest.raises(AuthenticationError, match="No such file"):
        file()


def test_a_file_whose_content_says_nothing_is_read_every_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    parsed: list[bytes] = []
    file = WatchedFile("a.key", str(path), parsed.append)
    file()
    file()
    assert parsed == [b"x", b"x"]


def test_what_signing_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(pem(RSA_KEY))
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(SecuritySettingError, match="signing needs the package cryptography"):
        source_of(
            token_endpoint_url=URL,
            assertion_claim_iss="me",
            assertion_private_key_file=str(tmp_path / "key"),
        )


# -- one request, and the next one ----------------------------------------------------------------


class Opened:
    """Stands for what opens URLs, and for an answer that comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.now_s = 100.0
        self.piece_s = 0.0
        self.contexts: list[object] = []
        self.asked: list[tuple[Request, float]] = []
        self.sizes: set[int] = set()

    def __call__(self, context: object) -> Self:
        self.contexts.append(context)
        return self

    def open(self, request: Request, *, timeout: float) -> Self:
        self.asked.append((request, timeout))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def read1(self, size: int) -> bytes:
        self.sizes.add(size)
        self.now_s += self.piece_s
        return self.pieces.pop(0) if self.pieces else b""

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    made = Opened()
    monkeypatch.setattr("moldau.runtime.https.opener", made)
    monkeypatch.setattr("moldau.sasl.oauthbearer.token_endpoint.time", made)
    return made


def asked_once(opened: Opened, *pieces: bytes) -> str:
    """The token of an answer in pieces."""
    opened.pieces = list(pieces)
    made = TokenEndpoint(URL, ClientSecret("me", "secret"), timeout_ms=7_500)
    return made._ask().value


def test_a_request_says_what_it_is_and_has_its_time(opened: Opened) -> None:
    assert asked_once(opened, b'{"access_', b'token": "t"}') == "t"
    [(request, timeout_s)] = opened.asked
    assert (request.full_url, timeout_s, opened.contexts) == (URL, 7.5, [None])
    assert request.data == b"grant_type=client_credentials"
    assert dict(request.header_items()) == {
        "Accept": "application/json",
        "Cache-control": "no-cache",
        "Authorization": "Basic " + b64encode(b"me:secret").decode(),
    }


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_has_so_many_bytes_and_no_more(opened: Opened, more: int) -> None:
    answer = b'{"access_token": "t"}'.ljust(MAX_ANSWER_BYTES + more)
    if more:
        with pytest.raises(OSError, match="its answer is too long, in bytes or in time"):
            asked_once(opened, answer)
    else:
        assert asked_once(opened, answer) == "t"


@pytest.mark.parametrize(("piece_s", "is_late"), [(2.5, False), (2.6, True)])
def test_an_answer_that_drips_has_the_time_of_one_request(
    opened: Opened, piece_s: float, is_late: bool
) -> None:
    opened.piece_s = piece_s
    pieces = [b'{"access', b'_token"', b': "t"}']
    if is_late:
        with pytest.raises(OSError, match="its answer is too long, in bytes or in time"):
            asked_once(opened, *pieces)
    else:
        assert asked_once(opened, *pieces) == "t"


@pytest.mark.parametrize(
    ("told", "token"),
    [
        ({"access_token": "a", "id_token": "i"}, "a"),
        ({"access_token": " ", "id_token": "i"}, "i"),
        ({"access_token": 5, "id_token": " i "}, "i"),
    ],
)
def test_which_token_of_an_answer_is_taken(
    opened: Opened, told: dict[str, object], token: str
) -> None:
    assert asked_once(opened, json.dumps(told).encode()) == token


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"{}", b'{"id_token": ""}', b"5"])
def test_an_answer_without_a_token_is_refused(opened: Opened, answer: bytes) -> None:
    with pytest.raises(LoginRefused, match="no access_token in its answer"):
        asked_once(opened, answer)


@pytest.mark.parametrize(
    ("faults", "slept_s", "told"),
    [
        ([OSError("down")] * 5, [0.1, 0.2, 0.3, 0.3], "down"),
        ([TimeoutError()] * 5, [0.1, 0.2, 0.3, 0.3], "no answer within 7500 ms"),
        ([OSError("down"), TimeoutError()], [0.1, 0.2], None),
    ],
)
async def test_pauses_between_tries_grow(
    monkeypatch: pytest.MonkeyPatch, faults: list[OSError], slept_s: list[float], told: str | None
) -> None:
    slept: list[float] = []
    left = list(faults)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def ask(_: object) -> OAuthBearerToken:
        if left:
            raise left.pop(0)
        return OAuthBearerToken("t")

    monkeypatch.setattr(
        "moldau.sasl.oauthbearer.token_endpoint.asyncio", SimpleNamespace(sleep=sleep)
    )
    endpoint = TokenEndpoint(
        URL,
        ClientSecret("me", "secret"),
        timeout_ms=7_500,
        retry_backoff_ms=100,
        retry_backoff_max_ms=300,
    )
    endpoint._aside = ask  # type: ignore[assignment]
    if told is None:
        assert (await endpoint()).value == "t"
    else:
        with pytest.raises(AuthenticationError) as raised:
            await endpoint()
        assert raised.type is AuthenticationError
        assert str(raised.value) == f"token endpoint {URL}: {told}"
    assert slept == slept_s


@pytest.mark.parametrize(
    ("timeouts", "timeout_ms"),
    [({}, 10_000), ({"connect": 5}, 5), ({"read": 7}, 7), ({"connect": 5, "read": 7}, 7)],
)
def test_one_request_has_the_longer_one_of_two_timeouts(
    timeouts: dict[str, int], timeout_ms: int
) -> None:
    named = {f"sasl_login_{name}_timeout_ms": value for name, value in timeouts.items()}
    config = ClientConfig("h:1", **named)  # type: ignore[arg-type]
    settings = {
        "sasl.oauthbearer.token.endpoint.url": URL,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "secret",
    }
    source = token_source(
        lambda key: settings.get(key) or getattr(config, key.replace(".", "_")),
        {},
        ManualClock(),
        context=lambda: None,
        try_count=1,
    )
    assert isinstance(source, TokenEndpoint)
    assert source.timeout_ms == timeout_ms


async def test_a_login_that_is_prepared_has_its_token() -> None:
    asked: list[str] = []

    async def tokens() -> OAuthBearerToken:
        asked.append("once")
        return OAuthBearerToken("t")

    login = TokenLogin(tokens)
    await login.prepare()
    assert asked == ["once"]
    exchange = await login.exchange("h")
    assert exchange.first() == b"n,,\x01auth=Bearer t\x01\x01"
