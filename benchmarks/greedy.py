"""A client that takes more than its share: `python -m benchmarks.greedy ATTACK JSON`.

Each attack is a task that goes on until the process is ended. Prints a line when it has begun.
Those that are cut come back at once, a bounded number of times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import struct
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.beside import HARMLESS
from benchmarks.processes import given
from benchmarks.wire import request_frame
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest

GREEDY: Final = "greedy"
PASSWORD: Final = "secret"
OWN_PREFIX: Final = "own-"
SLOW_PATTERN: Final = r"(own-)?[ab-]*a[ab]{200}z"
LARGEST_FRAME_BYTES: Final = 100 * 2**20
UNKNOWN_CLIENT_FRAME_BYTES: Final = 524_288
TRICKLE_PAUSE_S: Final = 4.0
HARMLESS_PAUSE_S: Final = 0.05
COME_BACK_S: Final = 1.0
OFFSET_FETCH_TOPICS: Final = 400_000
_LENGTH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Target:
    """The node that is attacked."""

    host: str
    port: int
    http_port: int


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def open(cls, target: Target, *, has_login: bool = True) -> Peer:
        """A connection of the greedy client, or of one that has not said who it is."""
        peer = cls(*await asyncio.open_connection(target.host, target.port))
        if has_login:
            await peer.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            token = f"\0{GREEDY}\0{PASSWORD}".encode()
            await peer.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
        return peer

    async def ask(self, message: Any, version: int) -> bytes:
        """One request, and the bytes of its answer."""
        self.send(message, version)
        return await self.receive()

    def send(self, message: Any, version: int) -> None:
        """A request whose answer is not waited for."""
        self.writer.write(frame(message, version))

    async def receive(self) -> bytes:
        """The next answer."""
        (size,) = _LENGTH.unpack(await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def trickle(self, announced_bytes: int) -> None:
        """A frame of that size, a byte now and then."""
        self.writer.write(_LENGTH.pack(announced_bytes) + bytes(8))
        while not self._reader.at_eof():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reader.read(1), TRICKLE_PAUSE_S)
            self.writer.write(b"\0")
        raise ConnectionError("cut")


def frame(message: Any, version: int) -> bytes:
    """A request as clients send it."""
    return request_frame(message, version, correlation_id=1, client_id=GREEDY)


async def harmless(target: Target) -> None:
    """Twenty small requests a second: the control."""
    peer = await Peer.open(target)
    while True:
        await peer.ask(ApiVersionsRequest(), 0)
        await asyncio.sleep(HARMLESS_PAUSE_S)


async def slow_frame(target: Target) -> None:
    """An authenticated client that announces 100 MiB and sends a byte in four seconds."""
    await (await Peer.open(target)).trickle(LARGEST_FRAME_BYTES)


async def silent_stranger(target: Target) -> None:
    """A client that does not authenticate, and announces as much as one may."""
    await (await Peer.open(target, has_login=False)).trickle(UNKNOWN_CLIENT_FRAME_BYTES)


async def expensive_list(target: Target) -> None:
    """ListTransactions by an expression that takes seconds."""
    peer = await Peer.open(target)
    while True:
        await peer.ask(ListTransactionsRequest(transactional_id_pattern=SLOW_PATTERN), 2)


async def forwarded(target: Target) -> None:
    """CreateTopics without the right to, for as long as one may wait."""
    peer = await Peer.open(target)
    topics = [CreatableTopic(name="refused", num_partitions=1, replication_factor=1)]
    while True:
        await peer.ask(CreateTopicsRequest(topics=topics, timeout_ms=2**31 - 1), 7)


async def producer_ids(target: Target) -> None:
    """InitProducerId without a transactional id, 64 at a time."""
    peer = await Peer.open(target)
    while True:
        for _ in range(64):
            peer.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        for _ in range(64):
            await peer.receive()


async def half_header(target: Target) -> None:
    """Half of an HTTP request's header."""
    reader, writer = await asyncio.open_connection(target.host, target.http_port)
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Never: ")
    await reader.read()
    raise ConnectionError("cut")


async def large_offset_fetch(target: Target) -> None:
    """OffsetFetch of so many topics that decoding them takes a while."""
    topics = [OffsetFetchRequestTopics(name="topic", partition_indexes=[])] * OFFSET_FETCH_TOPICS
    groups = [OffsetFetchRequestGroup(group_id="refused", topics=topics)]
    request = frame(OffsetFetchRequest(groups=groups), 8)
    peer = await Peer.open(target)
    while True:
        peer.writer.write(request)
        await peer.receive()


@dataclass(frozen=True, slots=True)
class Attack:
    """So many connections that each do this, and come back when they are cut."""

    count: int
    one: Callable[[Target], Awaitable[None]]


ATTACKS: Final = {
    HARMLESS: Attack(1, harmless),
    "12 frames of 100 MiB, a byte in 4 s": Attack(12, slow_frame),
    "2,100 strangers with 512 KiB each": Attack(2_100, silent_stranger),
    "70 lists of transactions by an expensive pattern": Attack(70, expensive_list),
    "100 forwarded requests": Attack(100, forwarded),
    "20 clients that ask for producer ids": Attack(20, producer_ids),
    "1,000 half headers of HTTP": Attack(1_000, half_header),
    "2 clients with an OffsetFetch of 400,000 topics": Attack(2, large_offset_fetch),
}


async def go_on(attack: Attack, target: Target) -> None:
    """Until the process is ended."""
    begun = asyncio.Semaphore(64)

    async def again_and_again() -> None:
        while True:
            with contextlib.suppress(OSError, EOFError, ConnectionError):
                async with begun:
                    task = asyncio.ensure_future(attack.one(target))
                    await asyncio.wait([task], timeout=0.02)
                await task
            await asyncio.sleep(COME_BACK_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(attack.count):
            group.create_task(again_and_again())
        print("attacking", flush=True)


def main() -> None:
    """Carry out the attack named by the first argument."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(go_on(ATTACKS[sys.argv[1]], given(Target, 2)))


if __name__ == "__main__":
    main()
