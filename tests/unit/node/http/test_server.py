"""The HTTP listener while there is no broker to show: before it serves and after."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable

import pytest
from aiohttp.test_utils import make_mocked_request

from moldau.config import NodeConfig
from moldau.metadata.image import MetadataImage
from moldau.node.expirations import Expirations
from moldau.node.http.access import Authority, HttpAccess, HttpSecurity
from moldau.node.http.connections import HttpLimits
from moldau.node.http.server import HttpListener
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from tests.kit.manual_clock import ManualClock

pytestmark = pytest.mark.real


def access() -> HttpAccess:
    """The access of a node without any settings of security."""
    config = NodeConfig(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
        }
    )
    authority = Authority(Authorizer, asyncio.get_running_loop, MetadataImage)
    return HttpAccess(HttpSecurity.of(config), authority)


async def test_the_address_of_a_client_is_in_one_form():
    request = make_mocked_request("GET", "/topics").clone(remote="::ffff:10.0.0.5")
    assert (await access().sender(request)).client_host == "10.0.0.5"


async def status(port: int, path: str) -> int:
    def ask() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


def made(is_ready: Callable[[], bool] = lambda: False) -> HttpListener:
    registry = Registry(ManualClock().monotonic_ms)
    registry.counter("kafka.server:type=Test,name=Things").add(3)
    return HttpListener(
        lambda: None,
        server=lambda: None,
        registry=registry,
        is_ready=is_ready,
        data_loop=asyncio.get_running_loop(),
        access=access(),
        limits=HttpLimits(1_000, 100, 5, 75, 30, 1 << 26),
        expirations=Expirations(ManualClock(), tuple, tuple, 30),
    )


async def test_a_node_that_recovers_is_alive_and_not_ready():
    is_ready = False
    listener = made(lambda: is_ready)
    await listener.start("127.0.0.1", 0)
    try:
        assert await status(listener.port, "/healthz") == 200
        assert await status(listener.port, "/readyz") == 503
        assert await status(listener.port, "/metrics") == 200
        for path in ("cluster", "topics", "topics/x", "log-directories"):
            assert await status(listener.port, f"/api/v1/{path}") == 503
        is_ready = True
        assert await status(listener.port, "/readyz") == 200
    finally:
        port = listener.port
        await listener.close()
    await listener.close()
    with pytest.raises(OSError, match="refused"):
        await status(port, "/healthz")
