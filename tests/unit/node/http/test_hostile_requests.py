"""What is no request that a page serves: answered or cut, in a line and without a traceback."""

from __future__ import annotations

import gzip
import logging
import zlib
from typing import Final

import pytest

from tests.unit.node.http.site import Answer, served

LINE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
BOMB: Final = gzip.compress(bytes(50_000_000))


def encoded(encoding: str, body: bytes, method: str = "GET") -> bytes:
    line = f"{method} /healthz HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\n"
    return f"{line}Content-Length: {len(body)}\r\n\r\n".encode() + body


HOSTILE: Final = {
    "broken gzip": (encoded("gzip", b"x" * 20), 413),
    "broken gzip of a method that is none": (encoded("gzip", b"x" * 20, "POST"), 405),
    "broken deflate": (encoded("deflate", b"x" * 20), 413),
    "broken brotli": (encoded("br", b"x" * 20), 413),
    "broken zstd": (encoded("zstd", b"x" * 20), 413),
    "gzip bomb": (encoded("gzip", BOMB), 413),
    "deflate bomb": (encoded("deflate", zlib.compress(bytes(50_000_000))), 413),
    "a body that does not come": (LINE + b"Content-Length: 9\r\n\r\n", 413),
    "a chunked body": (LINE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 413),
    "a chunk without a size": (LINE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "an unknown coding": (LINE + b"Transfer-Encoding: x\r\n\r\nzz\r\n", 400),
    "two lengths": (LINE + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "length and chunks": (
        LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        400,
    ),
    "negative length": (LINE + b"Content-Length: -3\r\n\r\nabc", 400),
    "huge header": (LINE + b"X: " + b"y" * 30_000 + b"\r\n\r\n", 400),
    "huge target": (b"GET /" + b"y" * 30_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a line without a colon": (LINE + b"nothing\r\n\r\n", 400),
    "a folded header": (LINE + b" folded\r\n\r\n", 400),
    "target not of ASCII": (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "query not of UTF-8": (b"GET /healthz?%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    "a header not of UTF-8": (LINE + b"Cookie: \xff\xfe=;;\r\nX: \xff\r\n\r\n", 200),
    "NUL in the target": (b"GET /healthz?\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "escapes in the target": (b"GET /%00%0a%1b%zz HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "a range that is none": (LINE + b"Range: bytes=9-1,foo\r\n\r\n", 200),
    "a method that is none": (b"BREW /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a method that no page has": (b"DELETE /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "a method with NUL": (b"G\x00T /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target": (b"GET http://evil/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    "absolute target that is none": (b"GET http://[evil/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target's port": (b"GET http://x:99999999/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00", 400),
    "a handshake of TLS": (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + bytes(200), 400),
    "a request of Kafka": (b"\x00\x00\x00\x10\x00\x12\x00\x00\r\n\r\n", 400),
    "an upgrade": (LINE + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nx\r\n\r\n", 200),
    "a body that waits": (LINE + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", 417),
    "another expectation": (LINE + b"Expect: coffee\r\n\r\n", 417),
    "version 9.9": (b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n", 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "nonsense behind a request": (LINE + b"\r\nNONSENSE\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
):
    sent, status = HOSTILE[name]
    caplog.set_level(logging.DEBUG)
    async with served(monkeypatch) as site:
        client = await site.client()
        client.send(sent)
        answer = await client.answer()
        assert answer.status == status
        assert answer.headers["server"] == "moldau"
        if status in (400, 413, 417):
            await client.closed()
        assert (await site.ask("/healthz", host="10.0.0.2")).status == 200
        client.close()
    records = [each for each in caplog.records if each.name != "asyncio"]
    assert not [each for each in records if each.exc_info], "no traceback"
    lines = [each.getMessage() for each in records if each.levelno >= logging.WARNING]
    told = "HTTP client at 10.0.0.1: what it sends is no HTTP"
    assert lines == ([told] if status == 400 else [])


@pytest.mark.parametrize("header", ["", "Basic !", "Basic /////w==", "Bearer \xff", "x" * 8_000])
async def test_headers_that_name_no_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, header: str
):
    async with served(monkeypatch, settings={"authentication": "BASIC"}) as site:
        answer = await site.ask("/metrics", f"Authorization: {header}")
        assert answer.status == 401
        assert answer.headers["server"] == "moldau"
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/healthz", "/metrics", "/none", "/api/v1/cluster", "/api/v1/topics/x"]
)
async def test_no_answer_names_a_version(monkeypatch: pytest.MonkeyPatch, path: str, method: str):
    async with served(monkeypatch) as site:
        answer = await site.ask(path, method=method)
        assert answer.headers["server"] == "moldau"
        text = repr((answer.headers, answer.body)).lower()
        assert "aiohttp" not in text
        assert "python/" not in text


async def test_a_fault_of_our_own_names_no_version_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch) as site:
        monkeypatch.setattr(site.listener, "_on_data_loop", None)
        answer = await site.ask("/healthz")
        assert answer.status == 500
        assert answer.headers["server"] == "moldau"
        assert b"Traceback" not in answer.body
    [record] = [each for each in caplog.records if each.exc_info]
    assert record.name == "moldau.node.http.connections"


async def test_refused_bodies_are_thrown_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Long enough that the client reads why."""
    async with served(monkeypatch) as site:
        client = await site.client()
        client.send(LINE + b"Content-Length: 10000000\r\n\r\n")
        for _ in range(50):
            client.send(b"x" * 10_000)
        answer = await client.answer()
        assert isinstance(answer, Answer)
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert answer.document == {"error": "no page takes a body"}
        assert await client.closed() == b""
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
