"""File regions on their way to the socket: order, integrity, and what happens when things break."""

import asyncio
import errno
import os
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from moldau.runtime.files import File, FileRegion
from moldau.runtime.filesystem import OsFilesystem
from moldau.server import outgoing
from moldau.server.connection_limits import ServerLimits
from moldau.server.request import Request
from tests.kit.dice import drawn_seed
from tests.kit.server_harness import Harness, response
from tests.kit.waiting import until_async

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]

FILE_BYTES = 3_000_000


@pytest.fixture
def contents() -> bytes:
    return random.Random(1).randbytes(FILE_BYTES)


@pytest.fixture
def filesystem():
    instance = OsFilesystem()
    yield instance
    instance.close()


@pytest.fixture
def segment(filesystem: OsFilesystem, tmp_path: Path, contents: bytes) -> File:
    file = filesystem.open(str(tmp_path / "0.log"), create=True)
    file.append(contents)
    return file


@pytest.mark.parametrize("way", ["sendfile", "copy", "cold", "cold copy"])
async def test_regions_and_bytes_interleaved(
    harness: Harness,
    filesystem: OsFilesystem,
    segment: File,
    contents: bytes,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = drawn_seed()
    source = random.Random(seed)
    if "copy" in way:
        monkeypatch.setattr(outgoing, "_HAS_SENDFILE", False)
    monkeypatch.setattr(outgoing, "is_in_page_cache", lambda *_: source.random() < 0.3)
    expected: list[bytes] = []

    def handler(request: Request) -> None:
        parts: list[object] = []
        body = b""
        for _ in range(source.randrange(4)):
            if source.random() < 0.4:
                piece = source.randbytes(source.choice([source.randrange(1, 2000), 150_000]))
                parts.append(memoryview(piece))
            else:
                position = source.randrange(FILE_BYTES)
                length = min(FILE_BYTES - position, source.choice([0, 10, 40_000, 900_000]))
                piece = contents[position : position + length]
                parts.append(FileRegion(segment, position, length, is_cold="cold" in way))
            body += piece
        expected.append(body)
        request.respond_parts(response(request, *parts))

    server = await harness.server(
        handler, offload=filesystem.offload, limits=ServerLimits(send_buffer_bytes=150_000)
    )
    peer = await harness.peer(server)
    count = 60
    for start in range(0, count, 15):
        peer.send(*(peer.request(number) for number in range(start, start + 15)))
        for number in range(start, start + 15):
            correlation_id, body = await peer.receive()
            assert correlation_id == number
            assert body == expected[number]
    segment.close()
    await until_async(lambda: segment.fileno() == -1)


class TlsTransport:
    """Takes what it is given, and says pause after each piece."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.stream: outgoing.OutgoingStream | None = None

    def get_extra_info(self, name: str) -> object:
        return object() if name in ("sslcontext", "socket") else None

    def write(self, data: bytes) -> None:
        self.written.append(data)
        assert self.stream is not None
        self.stream.pause_writing()


class Owner:
    def on_drained(self) -> None: ...

    def on_progress(self) -> None: ...

    def on_send_failed(self, error: OSError) -> None:
        raise error


class NoLoop:
    def call_soon(self, *_: object) -> None: ...


def test_tls_is_given_pieces_that_its_buffer_grows_no_larger_than(
    segment: File, contents: bytes
) -> None:
    transport = TlsTransport()
    stream = outgoing.OutgoingStream(transport, Owner(), NoLoop())  # type: ignore[arg-type]
    transport.stream = stream
    stream.write(contents[:900_001])
    stream.write_region(FileRegion(segment, 900_001, FILE_BYTES - 900_002))
    stream.write(contents[-1:])
    while stream.pending_bytes:
        before = len(transport.written)
        stream.resume_writing()
        assert len(transport.written) == before + 1, "given more than was asked for"
    assert b"".join(transport.written) == contents
    assert max(map(len, transport.written)) == outgoing.PIECE_BYTES
    assert len(transport.written) < FILE_BYTES / outgoing.PIECE_BYTES + 4


async def test_the_switch_waits_for_bytes_already_in_the_transport(
    harness: Harness, segment: File, contents: bytes
) -> None:
    """A big response in memory fills the transport; the region behind it must not overtake."""
    big = random.Random(2).randbytes(4_000_000)

    def handler(request: Request) -> None:
        if request.correlation_id == 1:
            request.respond_parts(response(request, big))
        else:
            request.respond_parts(response(request, FileRegion(segment, 0, FILE_BYTES), b"end"))

    server = await harness.server(handler, limits=ServerLimits(send_buffer_bytes=150_000))
    peer = await harness.peer(server)
    peer.send(peer.request(1), peer.request(2), peer.request(3))
    assert await peer.receive() == (1, big)
    assert await peer.receive() == (2, contents + b"end")
    assert await peer.receive() == (3, contents + b"end")


async def test_a_peer_that_leaves_in_the_middle_frees_the_descriptor(
    harness: Harness, segment: File
) -> None:
    def handler(request: Request) -> None:
        request.respond_parts(response(request, FileRegion(segment, 0, FILE_BYTES)))

    server = await harness.server(handler, limits=ServerLimits(send_buffer_bytes=150_000))
    peer = await harness.peer(server)
    peer.send(*(peer.request(number) for number in range(20)))
    await peer.reader.readexactly(100_000)
    segment.close()
    assert segment.fileno() >= 0
    peer.close()
    await until_async(lambda: len(server.connections) == 0)
    await until_async(lambda: segment.fileno() == -1)


@pytest.mark.parametrize("length", [FILE_BYTES + 1, 1000])
async def test_a_short_file_closes_the_connection(
    harness: Harness, segment: File, length: int
) -> None:
    def handler(request: Request) -> None:
        if request.correlation_id == 1:
            position = 0 if length > FILE_BYTES else FILE_BYTES - 500
            request.respond_parts(response(request, FileRegion(segment, position, length)))
        else:
            request.respond_parts(response(request, b"fine"))

    server = await harness.server(handler)
    peer, other = await harness.peer(server), await harness.peer(server)
    peer.send(peer.request(1))
    async with asyncio.timeout(20):
        received = b""
        with suppress(ConnectionError):
            while data := await peer.reader.read(1 << 20):
                received += data
    assert len(received) < 8 + length
    other.send(other.request(2))
    assert await other.receive() == (2, b"fine")
    segment.close()
    await until_async(lambda: segment.fileno() == -1)


async def test_a_cold_region_in_the_page_cache_needs_no_thread(
    harness: Harness, segment: File, contents: bytes
) -> None:
    if not outgoing.is_in_page_cache(segment, 0, FILE_BYTES):
        pytest.skip("this system cannot say what is in the page cache")
    offloaded: list[object] = []

    async def no_offload(function, *args):
        offloaded.append(function)

    def handler(request: Request) -> None:
        region = FileRegion(segment, 0, FILE_BYTES, is_cold=True)
        request.respond_parts(response(request, region))

    server = await harness.server(handler, offload=no_offload)
    peer = await harness.peer(server)
    peer.send(peer.request(1))
    assert await peer.receive() == (1, contents)
    assert not offloaded


@pytest.mark.parametrize("failure", [errno.EAGAIN, errno.EOPNOTSUPP])
async def test_a_page_that_is_missing_or_unknown_counts_as_cold(
    segment: File, failure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(failure, os.strerror(failure))

    monkeypatch.setattr(outgoing.os, "preadv", refuse)
    assert not outgoing.is_in_page_cache(segment, 0, FILE_BYTES)


async def test_a_cold_region_of_a_lost_connection(
    harness: Harness,
    filesystem: OsFilesystem,
    segment: File,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outgoing, "is_in_page_cache", lambda *_: False)
    gate = asyncio.Event()
    entered = asyncio.Event()

    async def slow_offload(function, *args):
        entered.set()
        await gate.wait()
        return await filesystem.offload(function, *args)

    def handler(request: Request) -> None:
        region = FileRegion(segment, 0, 500_000, is_cold=True)
        request.respond_parts(response(request, region))

    server = await harness.server(handler, offload=slow_offload)
    peer = await harness.peer(server)
    peer.send(peer.request(1))
    await entered.wait()
    peer.close()
    await until_async(lambda: len(server.connections) == 0)
    segment.close()
    assert segment.fileno() >= 0
    gate.set()
    await until_async(lambda: segment.fileno() == -1)


async def test_graceful_close_sends_queued_regions(
    harness: Harness, segment: File, contents: bytes
) -> None:
    answered = asyncio.Event()

    def handler(request: Request) -> None:
        request.respond_parts(response(request, FileRegion(segment, 0, FILE_BYTES)))
        answered.set()

    server = await harness.server(handler, limits=ServerLimits(send_buffer_bytes=150_000))
    peer = await harness.peer(server)
    peer.send(peer.request(1))
    await answered.wait()
    closing = asyncio.create_task(server.close(20_000))
    size = struct.pack(">ii", 4 + FILE_BYTES, 1)
    async with asyncio.timeout(20):
        assert await peer.reader.read(-1) == size + contents
    await closing
