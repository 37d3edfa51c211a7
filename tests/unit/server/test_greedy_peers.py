"""Greedy peers of all kinds and good ones on the same server, on virtual time: the good ones are
served, and memory is bounded.

None has a name. A good peer of the greedy ones' address has room for small requests, unless these
leave too many answers unread; one of another address has room for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from moldau.protocol.framing import SCRATCH_BYTES, ReceiveMemory
from moldau.runtime.ports import Ports
from moldau.server.connection_limits import ServerLimits
from moldau.server.request import Request
from moldau.server.server import ListenerSpec, Server
from tests.kit.dice import drawn_seed
from tests.virtual.loop import Process
from tests.virtual.machine import MachineLoop, pass_time

MIB = 1024 * 1024
LARGEST = MIB
LIMIT = 16 * MIB
ANSWER_BYTES = 300_000
GREEDY = 24
ROUNDS = 50
NEAR, FAR = "127.0.0.1", "10.0.0.2"
#: Of virtual time: a third of what clients wait for an answer by themselves.
REQUEST_TIMEOUT_S = 10.0


def frame(number: int, size: int) -> bytes:
    head = struct.pack(">hhih", 3, 0, number, 1) + b"c"
    return struct.pack(">i", len(head) + size) + head + bytes(size)


class World:
    """A server that answers requests of 1 to 10 bytes with much, and all others with little."""

    def __init__(self, seed: int) -> None:
        ports = Ports.of_machine()
        self.dice = random.Random(seed)
        self.memory = ReceiveMemory(poison=True)
        self.server = Server(
            self.handle,
            network=ports.network,
            clock=ports.clock,
            memory=self.memory,
            limits=ServerLimits(request_max_bytes=LARGEST, queued_max_request_bytes=LIMIT),
        )
        self.writers: list[asyncio.StreamWriter] = []
        self.peak_bytes = 0
        self.longest_s: Counter[str] = Counter()

    def handle(self, request: Request) -> None:
        size = ANSWER_BYTES if 1 <= len(request.body) <= 10 else 10
        number = struct.pack(">ii", 4 + size, request.correlation_id)
        loop = asyncio.get_running_loop()
        loop.call_later(
            self.dice.choice([0, 0.001, 0.5]), request.respond_parts, [number, bytes(size)]
        )
        shares = self.server.connections.shares
        self.peak_bytes = max(self.peak_bytes, shares.held_bytes)

    async def connect(self, host: str = NEAR) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from that address."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MachineLoop)
        network = loop.fabric.port_of(Process(loop, host, owns_tasks=False), host)
        reader = asyncio.StreamReader()
        transport, protocol = await network.connect(
            lambda: asyncio.StreamReaderProtocol(reader), NEAR, self.server.port("L")
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self.writers.append(writer)
        return reader, writer

    # -- greedy ones, again and again until they are stopped -------------------------------------

    async def slow(self) -> None:
        """Announces much, sends little at a time."""
        _, writer = await self.connect()
        writer.write(frame(1, LARGEST - 100)[: self.dice.choice([8, LARGEST // 2, LARGEST - 200])])
        while True:
            writer.write(b"\0")
            await writer.drain()
            await pass_time(2_000)

    async def huge(self) -> None:
        """Sends the largest frames, as fast as it can, and closes where it likes."""
        reader, writer = await self.connect()
        for number in range(self.dice.randrange(1, 6)):
            writer.write(frame(number, self.dice.randrange(LARGEST // 2, LARGEST - 100)))
            await writer.drain()
        await reader.readexactly(18)
        writer.close()

    async def unread(self) -> None:
        """Asks for much, and reads nothing."""
        _, writer = await self.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while True:
            writer.write(frame(1, 1) * 50)
            await writer.drain()
            await pass_time(1_000)

    async def pipelined(self) -> None:
        """Asks for little, as often as it can."""
        reader, writer = await self.connect()
        for number in range(3):
            writer.write(b"".join(frame(number, 0) for _ in range(200)))
            await reader.readexactly(200 * 18)
        writer.close()

    async def for_ever(self, behaviour: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await behaviour()
            await pass_time(100)

    # -- good ones ---------------------------------------------------------------------------------

    async def serve_good(self, host: str, sizes: Sequence[int]) -> None:
        """Each request is answered in time, on one connection."""
        loop = asyncio.get_running_loop()
        reader, writer = await self.connect(host)
        for number in range(ROUNDS):
            begun_s = loop.time()
            writer.write(frame(number, self.dice.choice(sizes)))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                answer = await reader.readexactly(18)
            assert struct.unpack_from(">ii", answer) == (14, number)
            self.longest_s[host] = max(self.longest_s[host], loop.time() - begun_s)
            await pass_time(self.dice.choice([0, 100, 1_000]))
        writer.close()


@pytest.mark.parametrize("kinds", [("slow",), ("unread",), ("slow", "huge", "unread", "pipelined")])
async def test_a_good_peer_is_served_beside_greedy_ones(kinds: tuple[str, ...]) -> None:
    world = World(drawn_seed())
    await world.server.start([ListenerSpec("L", "", 0)])
    greedy = [
        asyncio.create_task(world.for_ever(getattr(world, kinds[number % len(kinds)])))
        for number in range(GREEDY)
    ]
    await pass_time(5_000)
    small = (20, 2_000, 60_000)
    good = [world.serve_good(FAR, (*small, 200_000, LARGEST - 100))]
    if "unread" not in kinds:
        good.append(world.serve_good(NEAR, small))
    await asyncio.gather(*good)
    print(f"{world.longest_s}, {world.peak_bytes} bytes at most")
    assert world.peak_bytes <= LIMIT + GREEDY * SCRATCH_BYTES
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)
    for writer in world.writers:
        writer.transport.abort()
    await world.server.close(0)
    await pass_time(10_000)
    assert world.server.connections.shares.held_bytes == 0
    assert world.memory.reserved_bytes == 0
