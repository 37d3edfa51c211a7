"""The console in a node's HTTP listener, beside its other pages."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO

import aiohttp
import pytest

from tests.system.console.site import Site

SESSION = "/api/v1/session"


async def test_an_open_node_needs_no_login(open_site: Site) -> None:
    shown = (await open_site.ask(SESSION)).document
    assert shown["principal"] == "User:ANONYMOUS"
    assert shown["is_anonymous"]
    assert shown["login"] == []
    assert shown["request_token"]
    assert shown["software"].startswith("moldau ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
async def test_the_guard_stands_before_it(
    open_site: Site, headers: dict[str, str], status: int
) -> None:
    assert (await open_site.ask(SESSION, headers)).status == status


async def test_the_nodes_own_pages_stay(open_site: Site) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/api/v1/cluster", "/api/v1/topics"):
        assert (await open_site.ask(path)).status == 200
    refused = await open_site.ask("/healthz", method="GET", body={})
    assert refused.status == 413, "bodies are for the console's paths alone"


async def test_the_page_is_served(open_site: Site) -> None:
    answer = await open_site.ask("/")
    assert (answer.status, answer.headers["Location"]) == (308, "/console/")
    page = await open_site.ask("/console/")
    assert page.status == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


async def raw(site: Site, text: bytes) -> bytes:
    """What comes back for bytes, until the node closes or is silent after an answer."""
    host, _, port = site.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/console/../metrics", 404),
        (b"/console/%2e%2e/metrics", 404),
        (b"/api/v1/session/", 404),
        (b"/v3//clusters", 404),
        (b"/v3/%zz", 400),
        (b"/V3/clusters", 404),
    ],
)
async def test_tricks_with_paths_lead_nowhere(open_site: Site, target: bytes, status: int) -> None:
    host = open_site.address.encode()
    head = await raw(open_site, b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert int(head.split()[1]) == status


async def test_a_body_is_waited_for(open_site: Site) -> None:
    """A client may wait for leave to send its body, and a connection with a body goes on."""
    host, _, port = open_site.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    small = b'{"username": "x", "password": "y"}'

    def head(length: int) -> bytes:
        lines = (
            f"POST {SESSION} HTTP/1.1",
            f"Host: {open_site.address}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            "Expect: 100-continue",
        )
        return "\r\n".join((*lines, "", "")).encode()

    writer.write(head(200_000))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
    writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(3):
        writer.write(head(len(small)))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(small)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 409"), "people do not log in there"
        length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


async def test_large_bodies_come_whole(open_site: Site) -> None:
    """More of a body may be read at once than a connection may have behind a request."""
    at = f"{open_site.origin}/v3/clusters/{await open_site.cluster_id()}/topics"
    body = json.dumps({"topic_name": "bad name", "ignored": "y" * 700_000}).encode()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session:
        for _ in range(30):
            async with session.post(at, data=BytesIO(body), headers=headers) as answer:
                assert answer.status == 400
                assert "bad name" in await answer.text()
    assert "too many bytes" not in open_site.cluster.node().log_path.read_text()


async def test_a_node_that_served_the_console_stops_well(open_site: Site) -> None:
    await open_site.ask(SESSION)
    node = open_site.cluster.node()
    assert await asyncio.to_thread(node.stop) == 0
    assert "Traceback" not in node.log_path.read_text()
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)
