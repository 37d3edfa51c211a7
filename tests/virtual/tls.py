"""TLS on the simulated network, with the production acceptor and transport on both sides.

Owns: what stands for a bound socket, and for an accepted one, until its transport has a protocol.
Must not: shake hands itself. What OpenSSL draws comes from no seed: the bytes differ in each run.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from moldau.addresses import tls_name
from moldau.runtime.tls_transport import RAW_BYTES, TlsTransport
from tests.virtual.transport import SimulatedTransport

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class Door:
    """Stands for a bound socket: clients wait here until one is accepted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, close: Callable[[], None]) -> None:
        self._loop = loop
        self._close = close
        self._arrived: deque[Arrival] = deque()
        self._accepting: asyncio.Future[None] | None = None

    def arrive(self, arrival: Arrival) -> None:
        """A client has connected."""
        self._arrived.append(arrival)
        if self._accepting is not None and not self._accepting.done():
            self._accepting.set_result(None)

    async def accept(self) -> tuple[Arrival, tuple[str, int]]:
        """The next client that is still there, and its address."""
        while not self._arrived:
            self._accepting = self._loop.create_future()
            await self._accepting
        arrival = self._arrived.popleft()
        return arrival, arrival.transport.get_extra_info("peername")

    def close(self) -> None:
        """Those that wait are reset."""
        self._close()
        while self._arrived:
            self._arrived.popleft().close()


class Arrival(asyncio.Protocol):
    """Stands for an accepted socket; nothing of it is read until it has a protocol."""

    transport: SimulatedTransport

    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(SimulatedTransport, transport)
        self.transport.pause_reading()
        self._door.arrive(self)

    def hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """The transport is the protocol's from now on."""
        self.transport.hand_over(protocol)
        self.transport.resume_reading()

    def close(self) -> None:
        self.transport.abort()


def client_side(
    factory: Callable[[], ProtocolT], context: ssl.SSLContext, host: str
) -> Callable[[], TlsTransport]:
    """Makes the transport of TLS for a connection to `host`."""
    loop = asyncio.get_running_loop()
    raw = memoryview(bytearray(RAW_BYTES))
    name = tls_name(host) if context.check_hostname else None
    return lambda: TlsTransport(factory, context, raw, loop, is_server=False, server_hostname=name)
