"""The Network port in memory: named hosts, streams between them, and what can go wrong there.

Owns: delays, the splitting of streams into segments, connections made, refused, reset and cut,
partitions. Must not: look into what is sent.
Invariant: all choices come from the given Random, so that the same seed gives the same network.

What is modelled is TCP: a stream has no gaps and no duplicates, but a segment may take long while a
younger connection between the same two hosts is quicker; a cut link holds segments back until it
heals or one end gives up; a killed process leaves a kernel that resets, a dead machine silence.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar, cast

from moldau.runtime.network import Handshakes, _TlsAcceptor
from tests.virtual.loop import Process, VirtualLoop, current_process
from tests.virtual.tls import Arrival, Door, client_side
from tests.virtual.transport import FIN, SimulatedTransport

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

FIRST_EPHEMERAL_PORT = 40_000
FIRST_FREE_PORT = 30_000
"""The first one after it is what a listener gets that asks for any."""

SYN_RETRY_MS = 1_000.0
SEGMENT_BYTES = 16 * 1024


@dataclass(slots=True)
class NetworkSettings:
    """How bad the network is; probabilities per segment or per event, times in milliseconds."""

    min_delay_ms: float = 0.05
    max_delay_ms: float = 1.5
    slow_segment: float = 0.0
    slow_segment_ms: float = 1_500.0
    split_segment: float = 0.1
    reset_on_heal: float = 0.3
    give_up_after_ms: tuple[float, float] = (4_000.0, 20_000.0)


@dataclass(slots=True)
class _Listener:
    process: Process
    factory: Callable[[], asyncio.BaseProtocol]
    host: str
    port: int
    fabric: Fabric
    acceptor: _TlsAcceptor | None = None

    def close(self) -> None:
        if self.acceptor is not None:
            self.acceptor.close()
        self.fabric.close_listener(self)


@dataclass(slots=True)
class _Host:
    is_up: bool = True
    listeners: dict[int, _Listener] = field(default_factory=dict)


class Fabric:
    """All hosts and everything between them. `counts` has what happened how often."""

    def __init__(
        self, loop: VirtualLoop, random: Random, settings: NetworkSettings | None = None
    ) -> None:
        self.loop = loop
        self.random = random
        self.settings = settings or NetworkSettings()
        self.counts = {
            "segments": 0,
            "connections": 0,
            "resets": 0,
            "refused": 0,
            "held": 0,
            "gave_up": 0,
        }
        self.on_write: Callable[[SimulatedTransport, bytes], None] | None = None
        """Sees what is written before it leaves, and may break or silence the connection."""
        self.distrust: Callable[[str, str], ssl.SSLError | None] | None = None
        """What a TLS handshake of a host with another one fails with: a verification error for the
        one that connects, any other when it has connected.
        """
        self._hosts: dict[str, _Host] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._slowed_ms: dict[tuple[str, str], float] = {}
        self._transports: dict[SimulatedTransport, None] = {}
        self._held: dict[SimulatedTransport, list[bytes]] = {}
        self._silent: set[SimulatedTransport] = set()
        self._held_acknowledgements: dict[SimulatedTransport, int] = {}
        self._connection_number = 0
        self._last_free_port = FIRST_FREE_PORT
        # What the network does belongs to no process: neither its death nor its pause delays it.
        self._context = contextvars.copy_context()

    def port_of(self, process: Process, host: str) -> SimulatedNetwork:
        """The Network port of a process on `host`."""
        self._hosts.setdefault(host, _Host())
        process.on_kill.append(lambda: self._process_died(process))
        return SimulatedNetwork(self, process, host)

    # -- faults ----------------------------------------------------------------------------------

    def is_blocked(self, source: str, destination: str) -> bool:
        """Whether nothing gets from one host to the other."""
        return (source, destination) in self._blocked

    def block(self, source: str, destination: str) -> None:
        """Let nothing pass in this direction: a black hole, no errors."""
        self._blocked.add((source, destination))

    def slow(self, source: str, destination: str, delay_ms: float) -> None:
        """Let every segment in this direction take so much longer; 0 ends it."""
        self._slowed_ms[(source, destination)] = delay_ms

    def heal(self, source: str, destination: str) -> None:
        """Let segments pass again; what was held back arrives late, or finds a reset."""
        self._blocked.discard((source, destination))
        for transport in list(self._transports):
            if (transport.host, transport.remote_host) == (source, destination):
                if transport in self._held:
                    if self.random.random() < self.settings.reset_on_heal:
                        self.reset(transport)
                    else:
                        self._later(self._retry_ms(), self._release, transport)
            elif (transport.remote_host, transport.host) == (source, destination):
                held = self._held_acknowledgements.pop(transport, 0)
                if held:
                    self._later(self._retry_ms(), self._acknowledge, transport, held)

    def heal_all(self) -> None:
        """End every partition, and what is slow in one direction."""
        self._slowed_ms.clear()
        for source, destination in sorted(self._blocked):
            self.heal(source, destination)

    def reset_one(self) -> SimulatedTransport | None:
        """Break a random connection at both ends; what is under way is lost."""
        if not self._transports:
            return None
        transport = self.random.choice(list(self._transports))
        self.reset(transport)
        return transport

    def reset(self, transport: SimulatedTransport) -> None:
        """Break a connection at both ends."""
        self.counts["resets"] += 1
        for end in (transport, transport.peer):
            if end is not None and end.process.is_alive:
                end.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def silence(self, transport: SimulatedTransport) -> None:
        """Let nothing more of what this end writes arrive; its kernel gives up some time."""
        self._held.setdefault(transport, [])
        self._silent.add(transport)

    def host_down(self, host: str) -> None:
        """The machine loses power (its processes have been killed before): silence."""
        self._hosts[host].is_up = False

    def host_up(self, host: str) -> None:
        """The machine is back; who still writes to its old connections gets a reset."""
        self._hosts.setdefault(host, _Host()).is_up = True
        # Who has nothing to retransmit learns nothing.
        for transport in list(self._held):
            if transport.remote_host == host:
                self._later(self._retry_ms(), self._release, transport)

    # -- streams (called by transports) ----------------------------------------------------------

    def cut(self, data: bytes) -> bytes:
        """The next segment of what is to be sent."""
        if len(data) > 1 and self.random.random() < self.settings.split_segment:
            return data[: self.random.randrange(1, len(data))]
        return data[:SEGMENT_BYTES]

    def send(self, transport: SimulatedTransport, piece: bytes) -> None:
        """Let a segment arrive some time, after those before it."""
        slowed_ms = self._slowed_ms.get((transport.host, transport.remote_host), 0.0)
        arrival = self.loop.time() + (self._delay_ms() + slowed_ms) / 1000
        transport.last_arrival = max(arrival, transport.last_arrival)
        self.counts["segments"] += 1
        self._at(transport.last_arrival, self._deliver, transport, piece)

    def send_acknowledgement(self, reader: SimulatedTransport, size_bytes: int) -> None:
        """Tell the writer that `size_bytes` were read."""
        if reader.peer is not None:
            self._later(self._delay_ms(), self._acknowledge, reader.peer, size_bytes)

    def send_reset(self, transport: SimulatedTransport) -> None:
        """Tell the peer of `transport` that no process listens."""
        peer = transport.peer
        if peer is not None and not peer.is_lost:
            arrival = max(self.loop.time() + self._delay_ms() / 1000, transport.last_arrival)
            transport.last_arrival = arrival
            self._at(arrival, self._reset_arrives, peer)

    def forget(self, transport: SimulatedTransport) -> None:
        """The transport is over at its own end."""
        self._transports.pop(transport, None)
        self._silent.discard(transport)

    def _deliver(self, transport: SimulatedTransport, piece: bytes) -> None:
        peer = transport.peer
        if peer is None:
            return
        if transport in self._held or self._is_cut(transport.host, transport.remote_host):
            self.counts["held"] += 1
            self._held.setdefault(transport, []).append(piece)
            self._watch(transport)
        elif not peer.process.is_alive:
            self._later(self._delay_ms(), self._reset_arrives, transport)
        else:
            self.loop.call_soon(peer.arrive, piece, context=peer.process.context)

    def _release(self, transport: SimulatedTransport) -> None:
        if transport in self._silent or self._is_cut(transport.host, transport.remote_host):
            return
        transport.stuck_since = None
        for piece in self._held.pop(transport, []):
            self._deliver(transport, piece)

    def _acknowledge(self, writer: SimulatedTransport, size_bytes: int) -> None:
        if self._is_cut(writer.remote_host, writer.host):
            held = self._held_acknowledgements.get(writer, 0)
            self._held_acknowledgements[writer] = held + size_bytes
        elif writer.process.is_alive:
            self.loop.call_soon(writer.acknowledged, size_bytes, context=writer.process.context)

    def _watch(self, transport: SimulatedTransport) -> None:
        """Begin the time after which the kernel gives up what is not acknowledged."""
        if transport.stuck_since is None and not transport.is_lost:
            transport.stuck_since = since = self.loop.time()
            wait_ms = self.random.uniform(*self.settings.give_up_after_ms)
            self._later(wait_ms, self._give_up, transport, since)

    def _give_up(self, transport: SimulatedTransport, since: float) -> None:
        if transport.stuck_since == since and transport.process.is_alive:
            self.counts["gave_up"] += 1
            transport.lose(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _reset_arrives(self, transport: SimulatedTransport) -> None:
        if transport.is_lost or self._is_cut(transport.remote_host, transport.host):
            return
        if transport.process.is_alive:
            self.counts["resets"] += 1
            transport.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _is_cut(self, source: str, destination: str) -> bool:
        if (source, destination) in self._blocked:
            return True
        return not self._hosts[source].is_up or not self._hosts[destination].is_up

    def _process_died(self, process: Process) -> None:
        """The kernel closes what the process had open: a reset, or an end of stream."""
        for host in self._hosts.values():
            for port in [p for p, each in host.listeners.items() if each.process is process]:
                del host.listeners[port]
        for transport in [each for each in self._transports if each.process is process]:
            transport.is_lost = True
            self.forget(transport)
            if self.random.random() < 0.5:
                self.send_reset(transport)
            else:
                self.send(transport, FIN)

    # -- connections -----------------------------------------------------------------------------

    def add_listener(self, listener: _Listener) -> None:
        """Accept connections there. Raises OSError."""
        listeners = self._hosts[listener.host].listeners
        if listener.port in listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {listener.host}:{listener.port}")
        listeners[listener.port] = listener

    def free_port(self, host: str) -> int:
        """A port of the host on which nothing has listened yet."""
        self._last_free_port += 1
        assert self._last_free_port not in self._hosts[host].listeners
        return self._last_free_port

    def speaks_tls(self, host: str, port: int) -> bool:
        """Whether a listener there does."""
        listener = self._hosts[host].listeners.get(port) if host in self._hosts else None
        return listener is not None and listener.acceptor is not None

    def close_listener(self, listener: _Listener) -> None:
        """Accept nothing any more (idempotent)."""
        listeners = self._hosts[listener.host].listeners
        if listeners.get(listener.port) is listener:
            del listeners[listener.port]

    def dial(
        self,
        process: Process,
        source: str,
        address: tuple[str, int],
        factory: Callable[[], asyncio.BaseProtocol],
        future: asyncio.Future[tuple[SimulatedTransport, asyncio.BaseProtocol]],
    ) -> None:
        """Resolve `future` with a connection, or fail it, or leave it waiting."""
        if address[0] not in self._hosts:
            future.set_exception(socket.gaierror(socket.EAI_NONAME, f"{address[0]}: no such host"))
            return
        self._later(self._delay_ms(), self._syn_arrives, process, source, address, factory, future)

    def _syn_arrives(
        self,
        process: Process,
        source: str,
        address: tuple[str, int],
        factory: Callable[[], asyncio.BaseProtocol],
        future: asyncio.Future[tuple[SimulatedTransport, asyncio.BaseProtocol]],
    ) -> None:
        host, port = address
        if future.done() or not process.is_alive:
            return
        if self._is_cut(source, host) or self._is_cut(host, source):
            self._later(SYN_RETRY_MS, self._syn_arrives, process, source, address, factory, future)
            return
        listener = self._hosts[host].listeners.get(port)
        if listener is None:
            self.counts["refused"] += 1
            refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            self._later(self._delay_ms(), _fail, process, future, refused)
            return
        error = None if self.distrust is None else self.distrust(source, host)
        if isinstance(error, ssl.SSLCertVerificationError):
            self._later(self._delay_ms(), _fail, process, future, error)
            return
        self.counts["connections"] += 1
        self._connection_number += 1
        number = self._connection_number
        here = (source, FIRST_EPHEMERAL_PORT + number)
        there = SimulatedTransport(
            self, listener.process, host, address, here, number, is_asking=False
        )
        near = SimulatedTransport(self, process, source, here, address, number, is_asking=True)
        if error is not None:
            # With TLS 1.3 who connects hears only afterwards that its certificate is refused.
            arrival = self.loop.time() + self._delay_ms() / 1000
            self._transports[near] = None
            self.loop.call_at(arrival, _connected, near, factory, future, context=process.context)
            self._at(arrival + self._delay_ms() / 1000, _lose, near, error)
            return
        there.peer, near.peer = near, there
        self._transports[there] = self._transports[near] = None
        self.loop.call_soon(_accept, there, listener.factory, context=listener.process.context)
        arrival = self.loop.time() + self._delay_ms() / 1000
        there.last_arrival = arrival
        self.loop.call_at(arrival, _connected, near, factory, future, context=process.context)

    def open_transports(self) -> list[SimulatedTransport]:
        """The ends that nothing has closed."""
        return [each for each in self._transports if not each.is_closing()]

    # -- small things ----------------------------------------------------------------------------

    def _delay_ms(self) -> float:
        settings = self.settings
        if settings.slow_segment and self.random.random() < settings.slow_segment:
            return self.random.uniform(settings.max_delay_ms, settings.slow_segment_ms)
        return self.random.uniform(settings.min_delay_ms, settings.max_delay_ms)

    def _retry_ms(self) -> float:
        return self.random.uniform(5.0, 400.0)

    def _later(self, delay_ms: float, callback: Callable[..., object], *args: object) -> None:
        self._at(self.loop.time() + delay_ms / 1000, callback, *args)

    def _at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        self.loop.call_at(when, callback, *args, context=self._context)


def _accept(transport: SimulatedTransport, factory: Callable[[], asyncio.BaseProtocol]) -> None:
    transport.hand_over(factory())


def _fail(process: Process, future: asyncio.Future[object], error: OSError) -> None:
    if not future.done() and process.is_alive:
        future.set_exception(error)


def _lose(transport: SimulatedTransport, error: OSError) -> None:
    if transport.process.is_alive:
        transport.lose(error)


def _connected(
    transport: SimulatedTransport,
    factory: Callable[[], asyncio.BaseProtocol],
    future: asyncio.Future[tuple[SimulatedTransport, asyncio.BaseProtocol]],
) -> None:
    if future.done():
        transport.abort()
        return
    if transport.is_lost:
        future.set_exception(ConnectionResetError(errno.ECONNRESET, "reset while connecting"))
        return
    protocol = factory()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    future.set_result((transport, protocol))


class SimulatedNetwork:
    """Implements `moldau.runtime.network.Network` for one process on one host."""

    def __init__(self, fabric: Fabric, process: Process, host: str) -> None:
        self._fabric = fabric
        self._process = process
        self._host = host

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = 50,
        receive_buffer_bytes: int = -1,
        handshakes: Handshakes | None = None,
    ) -> _Listener:
        chosen = port or self._fabric.free_port(self._host)
        listener = _Listener(self._process, protocol_factory, self._host, chosen, self._fabric)
        if handshakes is not None:
            loop = asyncio.get_running_loop()
            door = Door(loop, lambda: self._fabric.close_listener(listener))
            listener.factory = lambda: Arrival(door)
            listener.acceptor = _TlsAcceptor(door, protocol_factory, handshakes, loop)  # type: ignore[arg-type]
        self._fabric.add_listener(listener)
        return listener

    async def connect(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        timeout_ms: int = 10_000,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        if ssl_context is None:
            return await self._connect(protocol_factory, host, port, timeout_ms)
        if not self._fabric.speaks_tls(host, port):
            # A client looks whether TLS is spoken there: the peer hangs up on what is no frame.
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        async with asyncio.timeout(timeout_ms / 1000):
            factory = client_side(protocol_factory, ssl_context, server_hostname or host)
            _, tls = await self._connect(factory, host, port, timeout_ms)
            return tls, cast(ProtocolT, await tls.handshake())

    async def _connect(
        self, protocol_factory: Callable[[], ProtocolT], host: str, port: int, timeout_ms: int
    ) -> tuple[SimulatedTransport, ProtocolT]:
        assert current_process() is self._process.owner_of_tasks, "a process uses its own network"
        future: asyncio.Future[tuple[SimulatedTransport, ProtocolT]]
        future = asyncio.get_running_loop().create_future()
        self._fabric.dial(self._process, self._host, (host, port), protocol_factory, future)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result()[0].abort()
            raise
