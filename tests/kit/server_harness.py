"""A server on real sockets, raw clients of it, and a node's log: for `runtime` and `server`."""

import asyncio
import io
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Final

import pytest
import uvloop

from moldau.protocol.framing import ReceiveMemory
from moldau.runtime.ports import Ports
from moldau.runtime.telemetry.logs import configure_logging
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server
from tests.kit.manual_clock import ManualClock

NODE_LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
"""The loops that nodes may use."""


class Peer:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @staticmethod
    def request(correlation_id: int, body: bytes = b"", api_key: int = 3) -> bytes:
        head = struct.pack(">hhih", api_key, 0, correlation_id, 4) + b"test"
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def receive(self) -> tuple[int, bytes]:
        """The next response: correlation id and body."""
        async with asyncio.timeout(20):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    async def at_eof(self) -> bool:
        """Whether the server closes the connection without sending more."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.transport.abort()


class Harness:
    """Starts servers and connects to them."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    async def server(self, handler: Callable[[Request], None], **options: object) -> Server:
        options.setdefault("memory", ReceiveMemory(poison=True))
        ports = Ports.of_machine()
        options = {"network": ports.network, "clock": ports.clock, **options}
        server = Server(handler, **options)  # type: ignore[arg-type]
        await server.start([ListenerSpec("PLAINTEXT", "127.0.0.1", 0)])
        self.stack.push_async_callback(server.close, 0)
        return server

    async def peer(self, server: Server) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("PLAINTEXT"))
        peer = Peer(reader, writer)
        self.stack.callback(peer.close)
        return peer


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    yield harness
    await harness.stack.aclose()


@pytest.fixture
def dual_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners have sockets that show clients of IPv4 as those of IPv6."""

    def bind(*_: object) -> socket.socket:
        bound = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        bound.setblocking(False)
        return bound

    monkeypatch.setattr("moldau.runtime.network._bind", bind)


def response(request: Request, *parts: object) -> list[object]:
    """An encoded response around any parts."""
    size = 4 + sum(len(part) for part in parts)  # type: ignore[arg-type]
    return [struct.pack(">ii", size, request.correlation_id), *parts]


Scenario = Callable[[Harness], Awaitable[None]]


class Written:
    """What a node's handler has written, on a clock of the test's own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stream = io.StringIO()
        configure_logging("json", "INFO", stream=self.stream, clock=self.clock)

    def take(self) -> list[str]:
        """The events since the last call."""
        return [str(each["event"]) for each in self.take_entries()]

    def take_entries(self) -> list[dict[str, object]]:
        """The lines since the last call."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def written() -> Iterator[Written]:
    """The logs of this process go there, until the test is over."""
    root, mine = logging.getLogger("moldau"), logging.getLogger("moldau.test")
    before = root.handlers[:], root.level, root.propagate
    yield Written()
    mine.setLevel(logging.NOTSET)
    root.setLevel(before[1])
    root.handlers[:], _, root.propagate = before
