"""The machine of a unit test: its loop, clock, network and randomness, all virtual, from one seed.

Owns what an async test below a folder with virtual time runs on, unless the test is marked `real`.
Must not: know what runs there. Invariants: nothing that runs there meets a thread, a socket or the
machine's clock; a test that hangs fails at once and says what waits; what it leaves open is a
ResourceWarning, as for real sockets.

A conftest gives its folder virtual time by importing `pytest_asyncio_loop_factories` and
`the_machine_is_virtual` from here. Clients, servers and fake clusters then need no `ports`: what
they take without is `Ports.of_machine()`, which on such a loop is this machine's.
"""

from __future__ import annotations

import asyncio
import contextvars
import ssl
import warnings
import zlib
from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest

from moldau.runtime.network import Listener
from moldau.runtime.ports import Ports
from tests.kit.dice import drawn_seed
from tests.kit.kinds import ON_VIRTUAL, is_virtual_too
from tests.virtual.loop import Process, UnhandledFailure, VirtualClock, VirtualLoop
from tests.virtual.network import Fabric, NetworkSettings

HOST: Final = "127.0.0.1"
LEAST_DELAY_S: Final = 1e-6
"""What is left of a delay by rounding still lets time pass, as on a machine's clock."""

LIMIT_S: Final = 3_600.0
"""So much virtual time may a test take."""

DELAYS: Final = NetworkSettings(min_delay_ms=0.01, max_delay_ms=0.2)


class MachineLoop(VirtualLoop):
    """The loop of one test, and the rest of its machine."""

    def __init__(self, seed: int) -> None:
        super().__init__(limit_s=LIMIT_S)
        self.fabric = Fabric(self, Random(f"{seed} network"), DELAYS)
        self.network = self.fabric.port_of(Process(self, "the test", owns_tasks=False), HOST)
        self.ports = Ports(VirtualClock(self), self.network, Random(seed))
        self._destinations: dict[Any, Any] = {}

    def call_later(
        self,
        delay: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if 0 < delay < LEAST_DELAY_S:
            delay = LEAST_DELAY_S
        return super().call_later(delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run it here and now, as on a thread: no loop runs there."""
        future = self.create_future()
        asyncio._set_running_loop(None)
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  the future's waiter gets it
            future.set_exception(error)
        finally:
            asyncio._set_running_loop(self)
        return future

    # -- what asyncio's streams, web servers and the acceptor of TLS ask of a loop ----------------

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        context, sock = options.get("ssl"), options.get("sock")
        if sock is not None:
            host, port = self._destinations.pop(sock)[:2]
            sock.close()
        name = options.get("server_hostname")
        return await self.network.connect(
            protocol_factory, host, port, ssl_context=context, server_hostname=name
        )

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Only noted: the connection is made when it is given a protocol."""
        self._destinations[sock] = address

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        context = options.get("ssl")
        handshakes = None if context is None else _Handshakes(context)
        listen = self.network.listen(protocol_factory, host, port, handshakes=handshakes)
        return _Server(await listen)

    async def sock_accept(self, sock: Any) -> Any:
        return await sock.accept()

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        protocol = protocol_factory()
        sock.hand_over(protocol)
        return sock.transport, protocol

    def _run_once(self) -> None:
        try:
            super()._run_once()
        except UnhandledFailure:
            self.failures.clear()  # the test has failed with it; what cleans up may go on
            raise

    def close(self) -> None:
        open_transports = [] if self.is_closed() else self.fabric.open_transports()
        super().close()
        for transport in open_transports:
            warnings.warn(f"unclosed {transport!r}", ResourceWarning, stacklevel=2)


class _Handshakes:
    """The handshakes of a listener that turns no client away."""

    timeout_ms = 60_000.0

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def context(self) -> ssl.SSLContext:
        return self._context

    def begin(self, host: str, handshake: asyncio.Task[None]) -> bool:
        return True

    def end(self, host: str, error: OSError | None, *, is_late: bool) -> None:
        """Nothing is logged."""


class _Server(asyncio.AbstractServer):
    """What `create_server` gives; its one socket only says where it listens."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.sockets = (SimpleNamespace(getsockname=lambda: (HOST, listener.port)),)

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        """Nothing has to end."""


async def pass_time(duration_ms: float) -> None:
    """Let so much virtual time pass: no test sleeps on a real loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MachineLoop), "time passes by itself only on a virtual loop"
    await loop.elapse(duration_ms)


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops on which a test runs."""
    if item.get_closest_marker("real"):
        return {"real": asyncio.new_event_loop, **virtual_too(item)}
    return _virtual_loop(item)


def virtual_too(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The virtual machine of a real test that is marked so; nothing for another one."""
    return _virtual_loop(item) if is_virtual_too(item) else {}


def _virtual_loop(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The machine of one test, by the name that makes this turn of it one of the gate."""
    own_seed = zlib.crc32(item.nodeid.encode())
    return {ON_VIRTUAL: lambda: MachineLoop(drawn_seed(own_seed))}


_of_real_machine = Ports.of_machine


def _of_machine(_kind: type[Ports]) -> Ports:
    loop = asyncio._get_running_loop()
    return loop.ports if isinstance(loop, MachineLoop) else _of_real_machine()


@pytest.fixture(autouse=True)
def the_machine_is_virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a virtual loop without ports of its own has that loop's."""
    monkeypatch.setattr(Ports, "of_machine", classmethod(_of_machine))
