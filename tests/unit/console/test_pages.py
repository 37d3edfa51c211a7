"""The page's files: those that are in its directory, with a policy that lets nothing else in."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from moldau.console.application import Console
from moldau.console.pages import Pages
from moldau.console.people import Way
from moldau.console.settings import ConsoleSettings
from tests.unit.console.asking import ask

SCRIPT = b"console.log('moldau')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assets = tmp_path / "page" / "assets"
    assets.mkdir(parents=True)
    (assets.parent / "index.html").write_bytes(b'<!doctype html><meta nonce="{{nonce}}">')
    (assets / "app-1a2b.js").write_bytes(SCRIPT)
    (assets / "app-1a2b.js.gz").write_bytes(b"gz")
    (assets / "app-1a2b.js.br").write_bytes(b"br")
    (assets / "notes.exe").write_bytes(b"x")
    (tmp_path / "secret.js").write_bytes(b"confidential")
    return assets.parent


def console(folder: Path) -> Console:
    return Console(ConsoleSettings(Way({"bootstrap.servers": "localhost:1"})), pages=Pages(folder))


@pytest.mark.parametrize("path", ["/", "/console", "/console?x=1"])
async def test_the_page_has_one_address(folder: Path, path: str) -> None:
    answer = await ask(console(folder), path)
    assert (answer.status, answer.headers["Location"]) == (308, "/console/")


@pytest.mark.parametrize(
    "path",
    [
        "/console/",
        "/console/topics",
        "/console/topics/a%2Fb/messages",
        "/console/topics/orders.v1",
        "/console/topics/",
        "/console/index.html",
        "/console/secret.js",
        "/console/..%2fsecret.js",
    ],
)
async def test_the_page_routes_by_path(folder: Path, path: str) -> None:
    answer = await ask(console(folder), path)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert b"nonce" in answer.body


async def test_the_policy_lets_only_this_server_in(folder: Path) -> None:
    served = console(folder)
    answers = [await ask(served, "/console/") for _ in range(2)]
    nonces = set()
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert "*" not in policy
        assert "unsafe" not in policy
        nonce = policy.partition("'nonce-")[2].partition("'")[0]
        assert f'nonce="{nonce}"'.encode() in answer.body
        nonces.add(nonce)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Frame-Options"] == "DENY"
    assert len(nonces) == 2


@pytest.mark.parametrize(
    ("accepted", "encoding", "body"),
    [
        ("", None, SCRIPT),
        ("gzip", "gzip", b"gz"),
        ("gzip;q=0.5, br", "br", b"br"),
        ("br;q=0", None, SCRIPT),
    ],
)
async def test_assets_are_compressed_and_kept(
    folder: Path, accepted: str, encoding: str | None, body: bytes
) -> None:
    answer = await ask(
        console(folder), "/console/assets/app-1a2b.js", {"Accept-Encoding": accepted}
    )
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["Cache-Control"]
    assert answer.headers.get("Content-Encoding") == encoding
    assert answer.body == body


async def test_assets_are_compressed_where_the_build_has_not(folder: Path) -> None:
    (folder / "assets" / "app-1a2b.css").write_bytes(b"body { color: red }")
    served = console(folder)
    for _ in range(2):
        answer = await ask(served, "/console/assets/app-1a2b.css", {"Accept-Encoding": "gzip"})
        assert answer.headers["Content-Encoding"] == "gzip"
        assert isinstance(answer.body, bytes)
        assert gzip.decompress(answer.body) == b"body { color: red }"
    answer = await ask(served, "/console/assets/app-1a2b.css", {"Accept-Encoding": "br"})
    assert "Content-Encoding" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/console/assets/other.js",
        "/console/assets/app-1a2b.js/",
        "/console/assets/app-1a2b.js.gz",
        "/console/assets/notes.exe",
        "/console/../secret.js",
        "/console/%2e%2e/secret.js",
        "/console/assets/..%2f..%2fsecret.js",
        "/console/assets/..%2findex.html",
        "/console/assets/%61pp-1a2b.js",
        "/console/assets/APP-1a2b.js",
        "/console//assets/app-1a2b.js",
    ],
)
async def test_no_other_file_is_served(folder: Path, path: str) -> None:
    answer = await ask(console(folder), path)
    assert answer.status == 404
    assert b"confidential" not in answer.body


async def test_the_page_is_only_read(folder: Path) -> None:
    answer = await ask(console(folder), "/console/", method="POST", body={})
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_an_installation_without_the_page_says_so(tmp_path: Path) -> None:
    answer = await ask(console(tmp_path / "none"), "/console/")
    assert answer.status == 200
    assert b"/openapi.json" in answer.body
