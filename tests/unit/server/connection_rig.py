"""A group of connections on a transport and a loop that do as the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from moldau.protocol.framing import ReceiveMemory
from moldau.server.connection_group import (
    ConnectionGroup,
)
from moldau.server.connection_limits import ServerLimits
from moldau.server.request import Request
from moldau.server.server_connection import (
    ServerConnection,
)
from tests.kit.manual_clock import ManualClock


class Loop:
    """Runs what is to be called soon when the test says so."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.failures: list[Any] = []

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append((callback, args))

    def step(self) -> None:
        """Run what is due now, not what that asks for."""
        due, self.soon = self.soon, []
        for callback, args in due:
            callback(*args)

    def run(self) -> None:
        while self.soon:
            self.step()

    def create_task(self, coroutine: Any) -> Any:
        return asyncio.get_running_loop().create_task(coroutine)

    def create_future(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def call_exception_handler(self, context: Any) -> None:
        self.failures.append(context)


class Transport:
    """Takes what it is given, and counts what is done to it."""

    def __init__(self, peer: tuple[str, int] | None = ("10.0.0.9", 5_000)) -> None:
        self.peer = peer
        self.written: list[bytes] = []
        self.is_reading = True
        self.calls: list[str] = []
        self.closed = self.aborted = 0

    def get_extra_info(self, name: str) -> Any:
        return {"peername": self.peer, "sockname": ("10.0.0.1", 9_092)}.get(name)

    def set_write_buffer_limits(self, **_: int) -> None:
        """It has no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        assert self.is_reading, "paused once"
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading, "resumed once"
        self.is_reading = True

    def close(self) -> None:
        self.closed += 1

    def abort(self) -> None:
        self.aborted += 1


class Rig:
    """A group of connections, and the requests that its handler has got."""

    def __init__(self, limits: ServerLimits | None = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.loop = Loop()
        self.handled: list[Request] = []
        self.on_request: Callable[[Request], object] = lambda _: None
        rest = {"metrics": None, "offload": None, "watchdog": None}
        self.memory = ReceiveMemory(poison=True)
        self.group = ConnectionGroup(
            self._handle,
            self.clock,
            limits or ServerLimits(),
            **{"memory": self.memory, **rest, **options},
        )
        self.group.loop = self.loop  # type: ignore[assignment]
        self.group.is_open = True
        self.group.shares.add_peers(is_between_nodes=False, has_logins=False)

    def _handle(self, request: Request) -> None:
        self.handled.append(request)
        self.on_request(request)

    def connection(
        self, listener: str = "L", peer: tuple[str, int] | None = ("10.0.0.9", 5_000)
    ) -> ServerConnection:
        made = ServerConnection(self.group, listener)
        made.connection_made(Transport(peer))  # type: ignore[arg-type]
        return made


def transport_of(connection: ServerConnection) -> Transport:
    return connection.transport  # type: ignore[return-value]


def frame(number: int, body: bytes = b"") -> bytes:
    head = struct.pack(">hhih", 3, 0, number, 1) + b"c"
    return struct.pack(">i", len(head) + len(body)) + head + body


def receive(connection: ServerConnection, *frames: bytes) -> None:
    """What the transport does with bytes that have come, as long as it reads."""
    data = b"".join(frames)
    while data:
        buffer = connection.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def answer(request: Request, *parts: Any) -> None:
    request.respond_parts([b"%d;" % request.correlation_id, *parts])


def numbers(rig: Rig) -> list[int]:
    return [each.correlation_id for each in rig.handled]
