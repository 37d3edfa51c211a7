"""OAUTHBEARER tokens: when one is asked for anew, and what is no token."""

from __future__ import annotations

import json
import random
import threading
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.runtime.authentication.sasl import OAuthBearerExchange
from moldau.runtime.authentication.tokens import (
    CachedTokens,
    OAuthBearerToken,
    RefreshRules,
    TokenEndpoint,
    from_function,
    token_of,
)
from tests.kit.manual_clock import ManualClock


def jwt(**claims: Any) -> str:
    body = urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.x"


def test_the_end_of_a_jwt_is_read_off_it():
    assert token_of(jwt(exp=7)).expires_at_ms == 7_000
    assert token_of("opaque").expires_at_ms is None
    assert token_of("a.b.c").expires_at_ms is None
    assert "opaque" not in repr(token_of("opaque"))


async def test_a_token_is_shared_until_most_of_its_time_is_over():
    clock = ManualClock()
    asked: list[int] = []

    def provider() -> OAuthBearerToken:
        asked.append(clock.now_ms())
        return OAuthBearerToken(f"t{len(asked)}", clock.now_ms() + 1_000_000)

    tokens = CachedTokens(from_function(provider), clock, random.Random(1), RefreshRules())
    assert (await tokens()).value == "t1"
    clock.advance(690_000)
    assert (await tokens()).value == "t1"
    # 300 seconds before its end at the latest.
    clock.advance(20_000)
    assert (await tokens()).value == "t2"


async def test_without_an_end_each_connection_asks():
    clock = ManualClock()
    values = iter(["one", "two", "three"])

    async def provider() -> str:
        return next(values)

    tokens = CachedTokens(from_function(provider), clock, random.Random(1), RefreshRules())
    assert [(await tokens()).value, (await tokens()).value] == ["one", "two"]
    clock.set_wall_clock(clock.now_ms() - 3_600_000)
    assert (await tokens()).value == "three"


async def test_what_is_no_token():
    clock = ManualClock()
    rules = RefreshRules()
    for given, reason in ((7, "returned a int"), ("", "returned a str")):
        tokens = CachedTokens(
            from_function(lambda given=given: given), clock, random.Random(1), rules
        )
        with pytest.raises(AuthenticationError, match=reason):
            await tokens()
    old = OAuthBearerToken("old", clock.now_ms() - 1)
    tokens = CachedTokens(from_function(lambda: old), clock, random.Random(1), rules)
    with pytest.raises(AuthenticationError, match="expired already"):
        await tokens()


def test_messages():
    token = OAuthBearerToken("abc", extensions=(("logicalCluster", "lkc-1"),))
    exchange = OAuthBearerExchange(token)
    assert exchange.first() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01\x01"
    assert exchange.answer(b"") is None
    assert exchange.is_complete
    assert exchange.answer(b'{"status":"invalid_token"}') == b"\x01"
    assert not exchange.is_complete
    with pytest.raises(AuthenticationError, match="invalid_token"):
        exchange.answer(b"more")
    for bad in (
        OAuthBearerToken("a b"),
        OAuthBearerToken("a", extensions=(("auth", "x"),)),
        OAuthBearerToken("a", extensions=(("x-y", "x"),)),
        OAuthBearerToken("a", extensions=(("x", "\x01"),)),
    ):
        with pytest.raises(SecuritySettingError):
            OAuthBearerExchange(bad)


class _Endpoint(BaseHTTPRequestHandler):
    answers: list[tuple[int, bytes]]
    seen: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.headers["Authorization"], body))
        status, answer = self.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[tuple[str, type[_Endpoint]]]:
    handler = type("Endpoint", (_Endpoint,), {"answers": [], "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/token", handler
        server.shutdown()
        thread.join()


async def test_client_credentials(endpoint: tuple[str, type[_Endpoint]]):
    url, handler = endpoint
    handler.answers = [(500, b""), (200, json.dumps({"access_token": jwt(exp=9)}).encode())]
    source = TokenEndpoint(url, "me", "a secret", "read write", retry_backoff_ms=1)
    assert "a secret" not in repr(source)
    assert (await source()).expires_at_ms == 9_000
    authorization, body = handler.seen[1]
    assert b64decode(authorization.removeprefix("Basic ")) == b"me:a secret"
    assert body == b"grant_type=client_credentials&scope=read+write"
    handler.answers = [(401, b"")]
    with pytest.raises(AuthenticationError, match="401"):
        await source()
    handler.answers = [(200, b"[]")]
    with pytest.raises(AuthenticationError, match="no access_token"):
        await source()


async def test_a_token_in_a_file(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text(jwt(exp=5) + "\n")
    source = TokenEndpoint(path.as_uri())
    assert (await source()).value == jwt(exp=5)
    path.unlink()
    with pytest.raises(AuthenticationError, match="token file"):
        await source()


def test_what_an_endpoint_needs():
    with pytest.raises(SecuritySettingError, match=r"client\.secret are needed"):
        TokenEndpoint("https://a/b")
    with pytest.raises(SecuritySettingError, match="an https:, http: or file: URL"):
        TokenEndpoint("ftp://a/b")
