"""The data path behind the real server: order of responses, closing, zero-copy records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.server.server import ListenerSpec, Server
from tests.kit.waiting import until_async
from tests.unit.broker.harness import DataPath
from tests.unit.broker.messages import batch, fetch, fetched_values, only, produce

pytestmark = pytest.mark.real


class Client:
    """Frames over one TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, message: Any, api_version: int, correlation_id: int) -> None:
        parts = encode_request(
            message, api_version=api_version, correlation_id=correlation_id, client_id="t"
        )
        self.writer.write(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]

    async def receive(self, api_key: int, api_version: int) -> tuple[int, Any]:
        async with asyncio.timeout(20):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = await self.reader.readexactly(size)
        return decode_response(api_key, api_version, frame)

    async def is_closed_by_peer(self) -> bool:
        async with asyncio.timeout(20):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def serving(broker: DataPath) -> AsyncIterator[int]:
    # What reaches the loop's exception handler stops a node: no peer may cause that.
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    server = Server(broker.router, offload=broker.filesystem.offload)
    await server.start([ListenerSpec("PLAINTEXT", "127.0.0.1", 0)])
    try:
        yield server.port("PLAINTEXT")
    finally:
        await broker.manager.close()
        await server.close(100)
    assert faults == []
    assert server.connections.memory.reserved_bytes == 0


@pytest.fixture
async def port(broker: DataPath) -> AsyncIterator[int]:
    async with serving(broker) as number:
        yield number


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def test_responses_keep_the_order_of_requests(broker: DataPath, port: int) -> None:
    broker.create_topic("slow", replicas=(1, 2), isr=(1, 2))
    broker.create_topic("fast")
    async with connected(port) as client:
        client.send(produce({("slow", 0): batch(2)}), 12, 1)
        client.send(produce({("fast", 0): batch(3)}), 12, 2)
        client.send(produce({("fast", 0): batch(1)}, acks=0), 12, 3)
        client.send(fetch({("fast", 0): 0}, max_wait_ms=0), 12, 4)
        await until_async(lambda: broker.log("fast").log_end_offset == 4)
        broker.follower_has("slow", 2, 2)
        first = await client.receive(0, 12)
        second = await client.receive(0, 12)
        fourth = await client.receive(1, 12)
    assert [first[0], second[0], fourth[0]] == [1, 2, 4], "acks=0 gets none"
    assert only(first[1]).error_code == only(second[1]).error_code == 0
    assert len(fetched_values(only(fourth[1]))) == 4


async def test_a_large_fetch_arrives_whole(broker: DataPath, port: int) -> None:
    broker.create_topic("t")
    values = [bytes([n]) * 400_000 for n in range(20)]
    async with connected(port) as client:
        for number, value in enumerate(values):
            client.send(produce({("t", 0): batch(1, value=value)}), 12, number)
            await client.receive(0, 12)
        client.send(fetch({("t", 0): 0}, partition_max_bytes=50_000_000), 12, 99)
        correlation_id, response = await client.receive(1, 12)
    assert correlation_id == 99
    assert fetched_values(only(response)) == values


async def test_a_waiting_fetch_is_answered_over_the_wire(broker: DataPath, port: int) -> None:
    broker.create_topic("t")
    async with connected(port) as consumer, connected(port) as producer:
        consumer.send(fetch({("t", 0): 0}, max_wait_ms=60_000), 12, 5)
        await until_async(lambda: broker.manager.fetch_purgatory.size() == 1)
        producer.send(produce({("t", 0): batch(1, value=b"new")}), 12, 6)
        await producer.receive(0, 12)
        _, response = await consumer.receive(1, 12)
    assert fetched_values(only(response)) == [b"new"]


async def test_a_client_that_leaves_is_forgotten(broker: DataPath, port: int) -> None:
    broker.create_topic("t")
    async with connected(port) as consumer:
        consumer.send(fetch({("t", 0): 0}, max_wait_ms=60_000), 12, 5)
        await until_async(lambda: broker.manager.fetch_purgatory.size() == 1)
    await until_async(lambda: broker.manager.fetch_purgatory.size() == 0)
    assert broker.partition("t").fetch_watchers == {}


async def test_what_closes_one_connection_disturbs_no_other(broker: DataPath, port: int) -> None:
    broker.create_topic("t")
    async with connected(port) as good:
        for bad_frame in (
            b"\0\0\0\x0a" + b"\x03\xe7\0\0\0\0\0\1\xff\xff",
            b"\0\0\0\x0b" + b"\0\0\0\x63\0\0\0\1\xff\xff\0",
            b"\0\0\0\x0d" + b"\0\0\0\x0c\0\0\0\1\xff\xff\0\x7f\x7f",
        ):
            async with connected(port) as bad:
                bad.writer.write(bad_frame)
                assert await bad.is_closed_by_peer()
        async with connected(port) as bad:
            bad.send(produce({("missing", 0): batch()}, acks=0), 12, 1)
            assert await bad.is_closed_by_peer()
        good.send(produce({("t", 0): batch()}), 12, 7)
        assert only((await good.receive(0, 12))[1]).error_code == 0


async def test_an_unknown_api_versions_version(broker: DataPath, port: int) -> None:
    async with connected(port) as client:
        client.writer.write(b"\0\0\0\x0b" + b"\0\x12\0\x63\0\0\0\x2a\xff\xff\0")
        correlation_id, response = await client.receive(18, 0)
        assert (correlation_id, response.error_code) == (42, ErrorCode.UNSUPPORTED_VERSION)
        client.send(ApiVersionsRequest(), 0, 43)
        correlation_id, response = await client.receive(18, 0)
    assert (correlation_id, response.error_code) == (43, 0)
    assert {entry.api_key for entry in response.api_keys} >= {0, 1, 2, 3, 18}
