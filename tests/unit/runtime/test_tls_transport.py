"""TLS over real sockets: what comes through, what a peer may keep waiting, and how it ends."""

from __future__ import annotations

import asyncio
import ctypes
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trustme

from moldau.runtime import tls_transport
from moldau.runtime.tls_transport import RAW_BYTES, TlsTransport
from tests.kit.waiting import until_async

pytestmark = pytest.mark.real

ALERT, APPLICATION_DATA = 21, 23
"""Kinds of records of TLS."""

REQUESTS, REQUEST_BYTES = 300, 4_096


class Reader(asyncio.BaseProtocol):
    """Keeps what comes, and pauses now and then."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.received = bytearray()
        self.is_lost = self.is_writing_paused = False
        self.error: BaseException | None = None
        self.share_of_pauses = 0.1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def take(self, data: bytes | bytearray) -> None:
        assert not self.is_lost
        assert self.transport.is_reading(), "data although reading is paused"
        self.received += data
        if self.dice.random() < self.share_of_pauses:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self.transport.resume_reading)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_lost, self.error = True, exc

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False


class WithBuffers(Reader, asyncio.BufferedProtocol):
    """A buffer of another size every time."""

    def get_buffer(self, sizehint: int) -> memoryview:
        self.buffer = bytearray(self.dice.choice((1, 100, 5_000, 16_384, 100_000, 300_000)))
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.take(self.buffer[:nbytes])


class WithoutBuffers(Reader, asyncio.Protocol):
    """As aiohttp's, which is given its data."""

    def data_received(self, data: bytes) -> None:
        self.take(data)


class Side:
    """A listening socket that speaks TLS, and raw clients of it."""

    def __init__(self, seed: int = 0) -> None:
        self.authority = trustme.CA()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(self.context)
        self.transports: list[TlsTransport] = []
        self.protocols: list[Reader] = []
        self.protocol_class: type[Reader] = WithBuffers
        self.dice = random.Random(seed)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        raw = memoryview(bytearray(RAW_BYTES))

        def protocol() -> Reader:
            self.protocols.append(self.protocol_class(self.dice))
            return self.protocols[-1]

        def transport() -> TlsTransport:
            self.transports.append(TlsTransport(protocol, self.context, raw, loop))
            return self.transports[-1]

        self.server = await loop.create_server(transport, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def client_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    async def close(self) -> None:
        self.server.close()
        for transport in self.transports:
            transport.abort()
        await until_async(lambda: all(each.is_lost for each in self.protocols))


@pytest.fixture
async def side(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Side]:
    monkeypatch.setattr(tls_transport, "SHUTDOWN_TIMEOUT_S", 0.1)
    made = Side()
    await made.start()
    yield made
    await made.close()


class Raw:
    """A client that sees records: what of them it sends, and when it reads, is the test's."""

    def __init__(self, side: Side) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = side.client_context().wrap_bio(
            self.incoming, self.outgoing, server_hostname="127.0.0.1"
        )
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.port = side.port

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, ("127.0.0.1", self.port))
        await self.until_done(self.tls.do_handshake)

    async def until_done(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self.send()
                data = await self.receive()
                assert data, "the server closed the connection"
                self.incoming.write(data)
            else:
                await self.send()
                return result

    async def send(self, data: bytes = b"") -> None:
        content = self.outgoing.read() + data
        if content:
            await asyncio.get_running_loop().sock_sendall(self.socket, content)

    async def receive(self) -> bytes:
        async with asyncio.timeout(20):
            return await asyncio.get_running_loop().sock_recv(self.socket, 65_536)

    async def rest(self) -> bytes:
        """All until the server closes the connection."""
        found = bytearray()
        while data := await self.receive():
            found += data
        return bytes(found)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.mark.parametrize("protocol_class", [WithBuffers, WithoutBuffers])
@pytest.mark.parametrize("seed", range(3))
async def test_all_comes_through_whatever_the_pieces_and_pauses(
    side: Side, seed: int, protocol_class: type[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(tls_transport, "SHUTDOWN_TIMEOUT_S", 60.0)  # 2 MB take their time
    side.protocol_class = protocol_class
    side.dice.seed(seed)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", side.port, ssl=side.client_context()
    )
    sent = side.dice.randbytes(3_000_000)
    answer = side.dice.randbytes(2_000_000)
    at = 0
    while at < len(sent):
        size = side.dice.choice((1, 700, 16_384, 16_385, 400_000))
        writer.write(sent[at : at + size])
        at += size
        await writer.drain()
    await until_async(lambda: bool(side.protocols))
    protocol = side.protocols[0]
    await until_async(lambda: len(protocol.received) >= len(sent))
    assert protocol.received == sent
    protocol.transport.write(answer[:10])
    protocol.transport.writelines([answer[10:1_000_000], answer[1_000_000:]])
    protocol.transport.close()
    assert await reader.readexactly(len(answer)) == answer
    assert await reader.read() == b"", "the end of TLS follows what was written"
    writer.close()
    await until_async(lambda: protocol.is_lost)
    assert protocol.error is None


async def test_nothing_is_read_while_reading_is_paused(side: Side) -> None:
    with Raw(side) as client:
        await client.connect()
        await until_async(lambda: bool(side.protocols))
        protocol = side.protocols[0]
        protocol.transport.pause_reading()
        protocol.transport.pause_reading()
        block = bytes(1_000_000)
        flood = asyncio.ensure_future(_flood(client, block, 20))
        # What the sockets hold; then the client waits.
        done, _ = await asyncio.wait({flood}, timeout=0.5)
        assert not done
        assert not protocol.received
        protocol.share_of_pauses = 0.0
        protocol.transport.resume_reading()
        await flood
        await until_async(lambda: len(protocol.received) == 20 * len(block))
        assert not any(protocol.received)


async def _flood(client: Raw, block: bytes, count: int) -> None:
    for _ in range(count):
        client.tls.write(block)
        await client.send()


async def test_nonsense_after_the_handshake_gets_an_alert(side: Side) -> None:
    with Raw(side) as client:
        await client.connect()
        client.tls.write(b"said before")
        await client.send(bytes([APPLICATION_DATA, 3, 3, 0, 40]) + bytes(40))
        client.incoming.write(await client.rest())
        with pytest.raises(ssl.SSLError, match=r"(?i)alert bad record mac"):
            client.tls.read(100)
        [protocol] = side.protocols
        await until_async(lambda: protocol.is_lost)
        assert protocol.received == b"said before"
        assert isinstance(protocol.error, ssl.SSLError)


async def test_nonsense_instead_of_a_handshake_gets_an_alert(side: Side) -> None:
    with Raw(side) as client:
        await asyncio.get_running_loop().sock_connect(client.socket, ("127.0.0.1", side.port))
        await client.send(b"GET / HTTP/1.1\r\n\r\n" * 20_000)
        await until_async(lambda: bool(side.transports))
        with pytest.raises(ssl.SSLError):
            await side.transports[0].handshake()
        assert not side.protocols
        client.socket.shutdown(socket.SHUT_WR)
        assert (await client.rest())[:1] in (b"", bytes([ALERT]))
        await side.transports[0].wait_closed()


@pytest.mark.parametrize("is_cut", [False, True], ids=["end of TLS", "end of TCP"])
async def test_the_peers_end(side: Side, is_cut: bool) -> None:
    with Raw(side) as client:
        await client.connect()
        client.tls.write(b"last words")
        if not is_cut:
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.unwrap()
        await client.send()
        if is_cut:
            client.socket.shutdown(socket.SHUT_WR)
        await client.rest()
        [protocol] = side.protocols
        await until_async(lambda: protocol.is_lost)
        assert protocol.received == b"last words"
        assert protocol.error is None


async def test_a_peer_that_reads_nothing_does_not_keep_what_is_closed(side: Side) -> None:
    with Raw(side) as client:
        await client.connect()
        await until_async(lambda: bool(side.protocols))
        [protocol] = side.protocols
        protocol.transport.set_write_buffer_limits(high=1, low=0)
        protocol.transport.write(bytes(15_000_000))
        assert protocol.is_writing_paused
        protocol.transport.close()
        assert protocol.transport.is_closing()
        protocol.transport.write(b"too late")
        protocol.transport.close()
        await until_async(lambda: protocol.is_lost)


async def test_a_handshake_that_is_given_up(side: Side) -> None:
    with Raw(side) as client:
        await asyncio.get_running_loop().sock_connect(client.socket, ("127.0.0.1", side.port))
        await until_async(lambda: bool(side.transports))
        [transport] = side.transports
        waiting = asyncio.ensure_future(transport.handshake())
        await asyncio.sleep(0)
        waiting.cancel()
        await transport.wait_closed()
        assert not await client.rest()
        assert not side.protocols


async def test_who_asks_for_new_keys_and_reads_nothing_is_not_read_from(side: Side) -> None:
    """Each such request is answered by TLS itself: the answers may not pile up."""
    with Raw(side) as client:
        await client.connect()
        request = _key_updates(client)
        await until_async(lambda: bool(side.protocols))
        transport = (protocol := side.protocols[0]).transport
        transport.set_write_buffer_limits(high=1, low=0)
        transport.write(bytes(15_000_000))
        assert protocol.is_writing_paused
        for _ in range(REQUESTS):
            request()
        await client.send()
        for _ in range(10):  # turns enough of the loop to read all
            with Raw(side) as other:
                await other.connect()
        assert len(protocol.received) <= 2 * RAW_BYTES
        reading = asyncio.ensure_future(client.rest())
        await until_async(lambda: len(protocol.received) == REQUESTS * REQUEST_BYTES)
        reading.cancel()


def _key_updates(client: Raw) -> Callable[[], None]:
    """What makes the client ask for new keys, which Python's `ssl` cannot."""
    inner: Any = client.tls._sslobj  # type: ignore[attr-defined]
    try:
        library = ctypes.CDLL("libssl.so.3")
    except OSError:
        pytest.skip("needs libssl.so.3")
    # Behind the object's own head, and a pointer to its socket.
    place = id(inner) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
    pointer = ctypes.c_void_p.from_address(place)
    library.SSL_version.argtypes = [ctypes.c_void_p]
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    assert library.SSL_version(pointer) == ssl.TLSVersion.TLSv1_3

    def request() -> None:
        assert library.SSL_key_update(pointer, 1) == 1
        client.tls.write(bytes(REQUEST_BYTES))

    return request
