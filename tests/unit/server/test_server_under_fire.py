"""Whatever peers, handlers and memory do: every accepted request is answered, in order, once."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.framing import CHUNK_BYTES, ReceiveMemory
from moldau.runtime.files import File, FileRegion
from moldau.runtime.filesystem import OsFilesystem
from moldau.server import outgoing
from moldau.server.connection_limits import ServerLimits
from moldau.server.request import Request
from moldau.server.server_connection import (
    MAX_IN_FLIGHT_REQUESTS,
    ServerConnection,
)
from moldau.server.turns import AT_ONCE_MS
from tests.kit.dice import drawn_seed
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness, Peer, response
from tests.kit.waiting import until_async

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]

FILE_BYTES = 2_000_000
MEMORY_LIMIT_BYTES = 300_000
TIGHT = ServerLimits(request_max_bytes=300_000, queued_max_request_bytes=MEMORY_LIMIT_BYTES)
"""Room for two of the largest requests, as it counts."""
REQUESTS_PER_PEER = 50
PEER_COUNT = 4

NOW, SOON, LATER, OFF_THE_LOOP = "now", "soon", "later", "off the loop"
ORDER = struct.Struct(">B")
QUIET, LOUD = 0, 1


@pytest.fixture
def contents() -> bytes:
    return random.Random(1).randbytes(FILE_BYTES)


@pytest.fixture
def filesystem() -> Iterator[OsFilesystem]:
    instance = OsFilesystem()
    yield instance
    instance.close()


@pytest.fixture
def segment(filesystem: OsFilesystem, tmp_path: Path, contents: bytes) -> File:
    file = filesystem.open(str(tmp_path / "0.log"), create=True)
    file.append(contents)
    return file


@pytest.fixture
async def faults() -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the loop's exception handler: in a node, the end of it."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: found.append(context))
    yield found
    assert found == []


class Answerer:
    """A handler with moods: answers now, later, from elsewhere, in any form, out of order."""

    def __init__(
        self, dice: random.Random, filesystem: OsFilesystem, segment: File, contents: bytes
    ) -> None:
        self._dice = dice
        self._filesystem = filesystem
        self._segment = segment
        self._contents = contents
        self._tasks: set[asyncio.Task[None]] = set()
        self.promised: dict[tuple[int, int], bytes] = {}

    def __call__(self, request: Request) -> None:
        dice, loop = self._dice, asyncio.get_running_loop()
        if dice.random() < 0.1:
            request.connection.throttle(dice.uniform(0.5, 4))
        parts = self._parts(request)
        if request.body[0] == QUIET:
            answer = request.respond_nothing
        else:
            self.promised[request.connection.client_port, request.correlation_id] = b"".join(
                part.read() if isinstance(part, FileRegion) else bytes(part) for part in parts
            )

            def answer() -> None:
                request.respond_parts(response(request, *parts))

        when = dice.choices([NOW, SOON, LATER, OFF_THE_LOOP], [6, 2, 2, 1])[0]
        if when is not NOW and dice.random() < 0.5:
            request.release_body()
        if when is NOW:
            answer()
        elif when is SOON:
            loop.call_soon(answer)
        elif when is LATER:
            loop.call_later(dice.uniform(0, 0.02), answer)
        else:
            task = loop.create_task(self._elsewhere(answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _elsewhere(self, answer: Any) -> None:
        await self._filesystem.offload(lambda: None)
        answer()

    def _parts(self, request: Request) -> list[Any]:
        dice = self._dice
        parts: list[Any] = []
        for _ in range(dice.choice([0, 1, 1, 2, 4])):
            kind = dice.randrange(3)
            if kind == 0:
                parts.append(dice.randbytes(dice.choice([0, 1, 100, 5_000, 90_000])))
                continue
            size = dice.choice([0, 1, 1000, 64 * 1024, 150_000, 700_000])
            parts.append(
                FileRegion(
                    self._segment, dice.randrange(FILE_BYTES - size), size, is_cold=kind == 2
                )
            )
        return parts


async def dawdle(dice: random.Random) -> None:
    """Now and then, let the others have many turns."""
    if dice.random() < 0.1:
        for _ in range(dice.randrange(300)):
            await asyncio.sleep(0)


async def talk(peer: Peer, dice: random.Random, answerer: Answerer) -> int:
    """Send and read at once, each by fits and starts; how many answers were right."""
    loud: list[int] = []
    frames: list[bytes] = []
    for number in range(REQUESTS_PER_PEER):
        kind = QUIET if dice.random() < 0.1 else LOUD
        size = dice.choice([0, 10, 10, 200, 20_000, 64 * 1024, 70_000, 250_000])
        frames.append(peer.request(number, ORDER.pack(kind) + bytes(size)))
        if kind == LOUD:
            loud.append(number)

    async def send() -> None:
        waiting = b""
        for frame in frames:
            waiting += frame
            while waiting and dice.random() < 0.7:
                cut = dice.choice([1, 3, 7, len(waiting), len(waiting), len(waiting)])
                peer.send(waiting[:cut])
                waiting = waiting[cut:]
                await peer.writer.drain()
            await dawdle(dice)
        peer.send(waiting)

    sending = asyncio.create_task(send())
    port = peer.writer.get_extra_info("sockname")[1]
    for number in loud:
        await dawdle(dice)
        correlation_id, body = await peer.receive()
        assert correlation_id == number
        assert body == answerer.promised.pop((port, number))
    await sending
    return len(loud)


@pytest.mark.parametrize("sends", ["sendfile", "copy"])
@pytest.mark.parametrize("memory_limit_bytes", [MEMORY_LIMIT_BYTES, 2**30])
async def test_every_request_is_answered_in_order(
    harness: Harness,
    filesystem: OsFilesystem,
    segment: File,
    contents: bytes,
    faults: list[dict[str, Any]],
    sends: str,
    memory_limit_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = drawn_seed()
    dice = random.Random(seed)
    if sends == "copy":
        monkeypatch.setattr(outgoing, "_HAS_SENDFILE", False)
    monkeypatch.setattr(outgoing, "is_in_page_cache", lambda *_: dice.random() < 0.3)
    answerer = Answerer(dice, filesystem, segment, contents)
    memory = ReceiveMemory(poison=True)
    server = await harness.server(
        answerer,
        memory=memory,
        limits=ServerLimits(
            request_max_bytes=300_000,
            queued_max_request_bytes=memory_limit_bytes,
            send_buffer_bytes=dice.choice([8_192, 1 << 20]),
            receive_buffer_bytes=dice.choice([8_192, 1 << 20]),
        ),
        offload=filesystem.offload,
    )
    peers = [await harness.peer(server) for _ in range(PEER_COUNT)]
    talks = [talk(peer, random.Random(dice.random()), answerer) for peer in peers]
    counts = await asyncio.gather(*talks)
    assert sum(counts) > PEER_COUNT * REQUESTS_PER_PEER / 2
    await until_async(lambda: all(each.in_flight_count == 0 for each in server.connections))
    # The last requests may ask for no answer, and still be on their way.
    await until_async(lambda: memory.reserved_bytes == 0)
    # What was paused goes on a turn of the loop after its last bytes have gone out.
    await until_async(lambda: all(each._pause_reasons == 0 for each in server.connections))
    assert len(server.connections) == PEER_COUNT


async def test_peers_that_vanish_leave_nothing_and_do_not_delay_others(
    harness: Harness,
    filesystem: OsFilesystem,
    segment: File,
    contents: bytes,
    faults: list[dict[str, Any]],
) -> None:
    seed = drawn_seed()
    dice = random.Random(seed)
    answerer = Answerer(dice, filesystem, segment, contents)
    memory = ReceiveMemory(poison=True)
    server = await harness.server(answerer, memory=memory, limits=TIGHT, offload=filesystem.offload)
    steady = asyncio.create_task(
        talk(await harness.peer(server), random.Random(dice.random()), answerer)
    )
    for _ in range(30):
        peer = await harness.peer(server)
        frame = peer.request(1, ORDER.pack(LOUD) + bytes(dice.choice([10, 70_000, 200_000])))
        stream = frame * dice.randrange(1, 90)
        peer.send(stream[: dice.randrange(len(stream))])
        await dawdle(dice)
        peer.close()
    assert await steady > 0
    await until_async(lambda: len(server.connections) == 1)
    await until_async(lambda: memory.reserved_bytes == 0)


def echo(request: Request) -> None:
    request.respond_parts(response(request, request.body))


def receive_at_once(connection: ServerConnection, data: bytes) -> None:
    """What the transport does when all of it has come in one piece."""
    with memoryview(connection.get_buffer(-1)) as buffer:
        assert len(buffer) >= len(data)
        buffer[: len(data)] = data
    connection.buffer_updated(len(data))


async def test_connections_take_turns_however_much_of_one_has_been_read(harness: Harness) -> None:
    clock = ManualClock()
    order: list[ServerConnection] = []

    def handler(request: Request) -> None:
        order.append(request.connection)
        clock.stand_still(AT_ONCE_MS / 2)
        echo(request)

    server = await harness.server(handler, clock=clock)
    flooding, other = await harness.peer(server), await harness.peer(server)
    await until_async(lambda: len(server.connections) == 2)
    by_port = {connection.client_port: connection for connection in server.connections}
    first, second = (
        by_port[peer.writer.get_extra_info("sockname")[1]] for peer in (flooding, other)
    )
    count = 200
    receive_at_once(first, b"".join(flooding.request(number) for number in range(count)))
    receive_at_once(second, other.request(0))
    for number in range(count):
        assert (await flooding.receive())[0] == number
    assert (await other.receive())[0] == 0
    assert order.index(second) == 2
    assert server.connections.memory.reserved_bytes == 0


@pytest.mark.virtual_too(False)
async def test_what_comes_in_waits_for_one_request_however_many_connections_flood(
    harness: Harness,
) -> None:
    clock = ManualClock()
    order: list[ServerConnection] = []
    sent_at: list[int] = []

    def handler(request: Request) -> None:
        order.append(request.connection)
        clock.stand_still(AT_ONCE_MS / 4)
        echo(request)
        if len(order) % 100 == 0 and len(sent_at) < question_count:
            sent_at.append(len(order))
            other.send(other.request(len(sent_at)))

    question_count, flooder_count, count = 5, 4, 200
    server = await harness.server(handler, clock=clock)
    other = await harness.peer(server)
    await until_async(lambda: len(server.connections) == 1)
    (calm,) = server.connections
    flooders = [await harness.peer(server) for _ in range(flooder_count)]
    await until_async(lambda: len(server.connections) == 1 + flooder_count)
    by_port = {connection.client_port: connection for connection in server.connections}
    for peer in flooders:
        connection = by_port[peer.writer.get_extra_info("sockname")[1]]
        receive_at_once(connection, b"".join(peer.request(number) for number in range(count)))
    for peer in flooders:
        for number in range(count):
            assert (await peer.receive())[0] == number
    for number in range(question_count):
        assert (await other.receive())[0] == number + 1
    handled_at = [index for index, connection in enumerate(order) if connection is calm]
    # asyncio's own loop has one more callback due when it looks at the sockets.
    assert all(at - sent <= 1 for at, sent in zip(handled_at, sent_at, strict=True)), order
    assert server.connections.memory.reserved_bytes == 0


async def test_answers_of_turns_are_sent_before_the_connection_leaves_the_line(
    harness: Harness,
) -> None:
    """Turns so short that their answers would go out together with those of later turns."""
    clock = ManualClock()

    def handler(request: Request) -> None:
        if request.correlation_id == 0:
            clock.stand_still(AT_ONCE_MS)
        echo(request)
        if request.correlation_id == last:
            request.connection.throttle(1_000)

    last = 7
    server = await harness.server(handler, clock=clock)
    peer = await harness.peer(server)
    await until_async(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    receive_at_once(connection, b"".join(peer.request(number) for number in range(2 * last)))
    for number in range(last + 1):
        assert (await peer.receive())[0] == number
    assert connection.in_flight_count == 0


async def test_nothing_is_read_while_requests_wait_for_their_turn(harness: Harness) -> None:
    clock = ManualClock()

    def handler(request: Request) -> None:
        clock.stand_still(AT_ONCE_MS)
        echo(request)

    server = await harness.server(handler, clock=clock)
    peer = await harness.peer(server)
    count = 5_000
    peer.send(*(peer.request(number, bytes(1_000)) for number in range(count)))
    most_bytes = 0
    for number in range(count):
        most_bytes = max(most_bytes, server.connections.memory.reserved_bytes)
        assert (await peer.receive())[0] == number
    assert most_bytes <= 2 * CHUNK_BYTES
    assert server.connections.memory.reserved_bytes == 0


async def test_tiny_requests_are_cut_as_they_are_handled(harness: Harness) -> None:
    """A read brings thousands: as many objects for each connection would take much memory."""
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    peer = await harness.peer(server)
    await until_async(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    count = 10 * MAX_IN_FLIGHT_REQUESTS
    receive_at_once(connection, b"".join(peer.request(number) for number in range(count)))
    for number in range(count):
        assert len(connection._backlog) <= MAX_IN_FLIGHT_REQUESTS
        await until_async(lambda: bool(waiting))
        assert len(waiting) <= MAX_IN_FLIGHT_REQUESTS
        request = waiting.pop(0)
        assert request.correlation_id == number
        echo(request)
        assert (await peer.receive())[0] == number
    assert server.connections.memory.reserved_bytes == 0


async def test_memory_that_is_free_again_before_anything_waits_for_it(harness: Harness) -> None:
    """1. frames fill the memory, 2. the next one in the same bytes is too large for what is left,
    3. the handler answers them and nothing else is on its way that could wake the next one.
    """
    server = await harness.server(echo, limits=TIGHT)
    peer = await harness.peer(server)
    await until_async(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    (budget,) = server.connections.shares
    held = budget.limit_bytes - 3 * CHUNK_BYTES
    connection.share.charge(held)
    small = [peer.request(number, bytes(60_000)) for number in (1, 2)]
    large = peer.request(3, bytes(290_000))
    receive_at_once(connection, b"".join(small) + large[:1_000])
    await until_async(lambda: server.connections.shares.waiting_count == 1)
    connection.share.refund(held)
    peer.send(large[1_000:])
    assert [(await peer.receive())[0] for _ in range(3)] == [1, 2, 3]
    assert server.connections.memory.reserved_bytes == 0


@pytest.mark.virtual_too(False)
async def test_memory_of_requests_that_will_not_be_handled_is_for_others(harness: Harness) -> None:
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        if request.correlation_id == 9:
            echo(request)
            return
        waiting.append(request)
        request.connection.throttle(60_000)

    server = await harness.server(handler, limits=TIGHT)
    closing = await harness.peer(server)
    closing.send(*(closing.request(number, bytes(60_000)) for number in range(3)))
    await until_async(lambda: bool(waiting))
    (connection,) = server.connections
    (budget,) = server.connections.shares
    connection.share.charge(budget.limit_bytes - 2 * CHUNK_BYTES)
    other = await harness.peer(server)
    other.send(other.request(9, bytes(250_000)))
    await until_async(lambda: server.connections.shares.waiting_count == 1)
    connection.share.refund(budget.limit_bytes - 2 * CHUNK_BYTES)
    connection.begin_closing()
    assert (await other.receive())[0] == 9
    assert len(waiting) == 1


async def test_an_empty_region_holds_no_bytes_back(harness: Harness, segment: File) -> None:
    def handler(request: Request) -> None:
        request.respond_parts(response(request, FileRegion(segment, 5, 0, is_cold=True)))

    peer = await harness.peer(await harness.server(handler))
    peer.send(peer.request(1))
    assert await peer.receive() == (1, b"")


async def test_a_peer_that_only_ends_its_own_side_does_not_hold_up_the_end(
    harness: Harness,
) -> None:
    """Its answers are in the transport's buffer, and it reads none of them."""
    answer = bytes(3_000_000)

    def handler(request: Request) -> None:
        request.respond_parts(response(request, answer))

    server = await harness.server(handler, limits=ServerLimits(send_buffer_bytes=8_192))
    peer = await harness.peer(server)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    peer.send(peer.request(1), peer.request(2))
    await until_async(lambda: server.connections.bytes_sent > 0)
    peer.writer.write_eof()
    # The server sees the end and closes, unless it has stopped reading since its answers pile up.
    await until_async(
        lambda: len(server.connections) == 0 or server.connections.bytes_sent > 2 * len(answer)
    )
    async with asyncio.timeout(20):
        await server.close(0)
    assert len(server.connections) == 0
