"""The HTTP listener on the virtual machine, its clients at addresses of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import pytest

from moldau.broker.api.services import BrokerServices
from moldau.config import NodeConfig
from moldau.metadata.image import MetadataImage
from moldau.node.expirations import Expirations
from moldau.node.http import server as http_server
from moldau.node.http.access import Authority, HttpAccess, HttpSecurity
from moldau.node.http.connections import HttpLimits
from moldau.node.http.console import NodeConsole
from moldau.node.http.server import HttpListener
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from tests.kit.manual_clock import ManualClock
from tests.virtual.loop import Process
from tests.virtual.machine import HOST, MachineLoop

T = TypeVar("T")

SETTINGS: Final = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
}
CLIENT: Final = "10.0.0.1"


def config(**changed: str) -> NodeConfig:
    """A node's; keys of `moldau.http.` with underscores."""
    own = {f"moldau.http.{key.replace('_', '.')}": value for key, value in changed.items()}
    return NodeConfig({**SETTINGS, **own})


class HereThread:
    """What a LoopThread is to its callers, on the loop that runs."""

    def __init__(self, name: str) -> None:
        self.is_running = False

    def start(self) -> None:
        self.is_running = True

    async def run(self, work: Coroutine[object, None, T]) -> T:
        return await work

    async def stop(self) -> None:
        self.is_running = False


class Answer:
    """What came back for one request."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1]) if first else 0
        self.headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }

    @property
    def document(self) -> Any:
        """The body as JSON."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.received = b""
        self.is_closed = False
        self.transport: Any = None
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._changed.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_closed = True
        self._changed.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def get(self, path: str, *headers: str, method: str = "GET") -> None:
        lines = (f"{method} {path} HTTP/1.1", "Host: x", *headers, "", "")
        self.send("\r\n".join(lines).encode("latin-1"))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self.is_closed, self.received[-500:]
            self._changed.clear()
            await self._changed.wait()

    async def answer(self) -> Answer:
        """The next whole answer."""
        await self.until(lambda: b"\r\n\r\n" in self.received)
        head_length = self.received.index(b"\r\n\r\n") + 4
        head = Answer(self.received[:head_length])
        length = head_length + int(head.headers["content-length"])
        await self.until(lambda: len(self.received) >= length)
        raw, self.received = self.received[:length], self.received[length:]
        return Answer(raw)

    async def closed(self) -> bytes:
        """What came until the end."""
        while not self.is_closed:
            self._changed.clear()
            await self._changed.wait()
        return self.received

    def close(self) -> None:
        self.transport.abort()


class Site:
    """A listener that serves, and who may ask it."""

    def __init__(self, listener: HttpListener) -> None:
        self.listener = listener
        self._hosts: dict[str, Any] = {}

    async def client(self, host: str = CLIENT) -> Client:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MachineLoop)
        if host not in self._hosts:
            process = Process(loop, host, owns_tasks=False)
            self._hosts[host] = loop.fabric.port_of(process, host)
        _, client = await self._hosts[host].connect(Client, HOST, self.listener.port)
        assert isinstance(client, Client)
        return client

    async def ask(
        self, path: str, *headers: str, method: str = "GET", host: str = CLIENT
    ) -> Answer:
        client = await self.client(host)
        try:
            client.get(path, *headers, method=method)
            if method == "HEAD":
                await client.until(lambda: b"\r\n\r\n" in client.received)
                return Answer(client.received)
            return await client.answer()
        finally:
            client.close()


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch,
    *,
    settings: Mapping[str, str] | None = None,
    services: Callable[[], BrokerServices | None] = lambda: None,
    server: Callable[[], Any] = lambda: None,
    is_ready: Callable[[], bool] = lambda: True,
    registry: Registry | None = None,
    authorizer: Callable[[], Authorizer | None] = Authorizer,
    image: Callable[[], MetadataImage] = MetadataImage,
    expirations: Expirations | None = None,
    console: NodeConsole | None = None,
) -> AsyncIterator[Site]:
    """A listener with these settings; without any, every client may read every page."""
    monkeypatch.setattr(http_server, "LoopThread", HereThread)
    loop = asyncio.get_running_loop()
    made = config(**(settings or {}))
    authority = Authority(authorizer, lambda: loop, image)
    listener = HttpListener(
        services,
        server=server,
        registry=registry or Registry(lambda: 0.0),
        is_ready=is_ready,
        data_loop=loop,
        access=HttpAccess(HttpSecurity.of(made), authority),
        limits=HttpLimits.from_config(made),
        expirations=expirations or Expirations(ManualClock(), tuple, tuple, 30),
        console=console,
    )
    await listener.start(HOST, 0)
    try:
        yield Site(listener)
    finally:
        await listener.close()
