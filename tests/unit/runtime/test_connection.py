"""The client side of a connection, against our server and against peers that misbehave."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.framing import ReceiveMemory
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from moldau.protocol.messages.p01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.p18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from moldau.protocol.messages.p36_sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.runtime.connection import (
    Connection,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByPeer,
)
from moldau.runtime.network import AsyncioNetwork
from moldau.server.request import Request
from moldau.server.server import Server
from tests.kit.loop_reports import heard_reports
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness
from tests.kit.waiting import until_async

pytestmark = pytest.mark.real

SERVED = [
    ApiVersion(api_key=18, min_version=0, max_version=4),
    ApiVersion(api_key=3, min_version=0, max_version=9),
]


def node(request: Request) -> None:
    """Answers ApiVersions and Metadata (the cluster id repeats the first topic's name)."""
    if request.api_key == 18:
        request.respond(ApiVersionsResponse(api_keys=SERVED))
        return
    message, _ = MetadataRequest.decode(request.body, request.api_version)
    name = message.topics[0].name if message.topics else None
    request.respond(MetadataResponse(cluster_id=name))


async def connect(harness: Harness, server: Server, **options: object) -> Connection:
    connection = await Connection.connect(
        AsyncioNetwork(),
        "127.0.0.1",
        server.port("PLAINTEXT"),
        client_id="test",
        **options,  # type: ignore[arg-type]
    )
    harness.stack.callback(connection.close)
    return connection


def ask(name: str) -> MetadataRequest:
    from moldau.protocol.messages.p03_metadata import MetadataRequestTopic

    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


async def test_negotiation_and_pipelining(harness: Harness) -> None:
    server = await harness.server(node)
    connection = await connect(harness, server, max_in_flight=7)
    assert dict(connection.versions) == {18: (0, 4), 3: (0, 9)}
    assert connection.best_version(3, MetadataRequest) == 9
    assert connection.best_version(3, MetadataRequest, max_version=5) == 5
    with pytest.raises(UnsupportedByPeer, match="PRODUCE"):
        connection.best_version(0, MetadataRequest)
    answers = await asyncio.gather(*(connection.send(ask(f"t{i}")) for i in range(300)))
    assert [answer.cluster_id for answer in answers] == [f"t{i}" for i in range(300)]
    assert connection.in_flight_count == 0


async def test_negotiation_falls_back_to_what_an_old_peer_knows(harness: Harness) -> None:
    asked: list[int] = []

    def old(request: Request) -> None:
        asked.append(request.api_version)
        keys = [ApiVersion(api_key=18, min_version=0, max_version=2)]
        if request.api_version > 2:
            request.respond(
                ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys),
                api_version=0,
            )
        else:
            request.respond(ApiVersionsResponse(api_keys=keys))

    connection = await connect(harness, await harness.server(old))
    assert asked == [4, 2]
    assert connection.versions[18] == (0, 2)


async def test_cancelled_callers_leave_the_others_alone(harness: Harness) -> None:
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        if request.api_key == 3:
            waiting.append(request)
        else:
            node(request)

    connection = await connect(harness, await harness.server(handler))
    tasks = [asyncio.create_task(connection.send(ask(f"t{i}"))) for i in range(3)]
    await until_async(lambda: len(waiting) == 3)
    tasks[1].cancel()
    for request in waiting:
        node(request)
    assert (await tasks[0]).cluster_id == "t0"
    assert (await tasks[2]).cluster_id == "t2"
    assert tasks[1].cancelled()
    assert not connection.is_closed


async def test_a_timeout_closes_the_connection(harness: Harness) -> None:
    clock = ManualClock()
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    connection = await connect(harness, server, negotiate=False, clock=clock)
    ended: list[Connection] = []
    connection.on_close(ended.append)
    slow = connection.submit(ask("slow"), api_version=9, timeout_ms=60_000)
    fast = connection.submit(ask("fast"), api_version=9, timeout_ms=1_000)
    await until_async(lambda: len(waiting) == 2)
    clock.advance(999)
    assert not fast.done()
    clock.advance(2)
    with pytest.raises(RequestTimedOut, match="METADATA"):
        await fast
    with pytest.raises(ConnectionLost):
        await slow
    assert ended == [connection]
    with pytest.raises(ConnectionLost):
        await connection.send(ask("late"), api_version=9)


async def test_requests_that_time_out_together_are_no_reports_of_the_loop(
    harness: Harness,
) -> None:
    """As a follower waits for them: the failure of the first one is the end for both."""
    clock = ManualClock()
    waiting: list[Request] = []
    server = await harness.server(waiting.append)

    async def wait_for_the_first() -> None:
        connection = await connect(harness, server, negotiate=False, clock=clock)
        first, _second = (
            connection.submit(ask(name), api_version=9, timeout_ms=1_000) for name in "ab"
        )
        await until_async(lambda: len(waiting) == 2)
        clock.advance(1_001)
        with pytest.raises(RequestTimedOut):
            await first

    with heard_reports() as reports:
        await wait_for_the_first()
    assert reports == []


async def test_in_flight_limits(harness: Harness) -> None:
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    connection = await connect(harness, server, negotiate=False, max_in_flight=2)
    tasks = [asyncio.create_task(connection.send(ask(f"{i}"), api_version=9)) for i in range(5)]
    await until_async(lambda: len(waiting) == 2)
    assert connection.in_flight_count == 2
    extra = [connection.submit(ask("x"), api_version=9) for _ in range(2)]
    with pytest.raises(LocalProtocolError, match="in flight"):
        connection.submit(ask("x"), api_version=9)
    while not all(task.done() for task in [*tasks, *extra]):
        await until_async(lambda: bool(waiting) or all(task.done() for task in [*tasks, *extra]))
        while waiting:
            node(waiting.pop(0))
        await asyncio.sleep(0)
    assert [(await task).cluster_id for task in tasks] == list("01234")


async def test_close_fails_what_is_pending(harness: Harness) -> None:
    server = await harness.server(lambda request: None)
    connection = await connect(harness, server, negotiate=False)
    pending = connection.submit(ask("x"), api_version=9)
    connection.close()
    connection.close()
    with pytest.raises(ConnectionLost):
        await pending


async def test_connecting_to_a_closed_port_raises(harness: Harness) -> None:
    server = await harness.server(node)
    port = server.port("PLAINTEXT")
    await server.close(0)
    with pytest.raises(OSError, match=r".+"):
        await Connection.connect(AsyncioNetwork(), "127.0.0.1", port)


async def rude(
    harness: Harness,
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> Connection:
    """A connection to a peer that answers its first bytes with whatever `answer` writes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        await answer(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    harness.stack.callback(server.close)
    port = server.sockets[0].getsockname()[1]
    connection = await Connection.connect(AsyncioNetwork(), "127.0.0.1", port, negotiate=False)
    harness.stack.callback(connection.close)
    return connection


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (struct.pack(">ii", 4, 77), RemoteProtocolError),
        (struct.pack(">ih", 2, 1), RemoteProtocolError),
        (struct.pack(">ii", 4, 0), RemoteProtocolError),
        (struct.pack(">iibi", 9, 0, 0, 5), RemoteProtocolError),
        (struct.pack(">i", -1), RemoteProtocolError),
        (struct.pack(">i", 2**31 - 1), RemoteProtocolError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteProtocolError),
        (struct.pack(">ii", 400, 0), ConnectionLost),
        (b"", ConnectionLost),
    ],
)
async def test_nonsense_from_the_peer_fails_everything_pending(
    harness: Harness, reply: bytes, error: type[Exception]
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()

    connection = await rude(harness, answer)
    futures = [connection.submit(ask(name), api_version=9) for name in "ab"]
    for future in futures:
        with pytest.raises(error):
            await future
    assert connection.is_closed


async def test_an_answer_without_a_request_ends_the_connection(harness: Harness) -> None:
    server = await harness.server(node)
    connection = await connect(harness, server)
    (served,) = server.connections
    served.transport.write(struct.pack(">ii", 4, 12345))
    await until_async(lambda: connection.is_closed)
    with pytest.raises(ConnectionLost):
        await connection.send(ApiVersionsRequest())


def echo(request: Request) -> None:
    message, _ = SaslAuthenticateRequest.decode(request.body, request.api_version)
    request.respond(SaslAuthenticateResponse(auth_bytes=bytes(message.auth_bytes)))


PAYLOADS = [bytes([i]) * size for i, size in enumerate([10, 2_000_000, 70_000, 30, 300_000])]


async def echoed(connection: Connection, payload: bytes) -> memoryview:
    answer = await connection.send(SaslAuthenticateRequest(auth_bytes=payload), api_version=2)
    found: memoryview = answer.auth_bytes
    return found


async def test_large_responses_stay_valid_after_later_ones(harness: Harness) -> None:
    """What a response refers to is its own, not a reused receive buffer."""
    connection = await connect(harness, await harness.server(echo), negotiate=False)
    answers = [await echoed(connection, payload) for payload in PAYLOADS]
    assert [bytes(answer) for answer in answers] == PAYLOADS


@pytest.mark.parametrize("keeps_records", [False, True])
async def test_records_arrive_whole_and_in_order_however_they_are_written(
    harness: Harness, keeps_records: bool
) -> None:
    seen: list[bytes] = []

    def handler(request: Request) -> None:
        message, _ = ProduceRequest.decode(request.body, request.api_version)
        seen.extend(
            bytes(partition.records)
            for topic in message.topic_data
            for partition in topic.partition_data
        )
        request.respond(ProduceResponse())

    connection = await connect(harness, await harness.server(handler), negotiate=False)
    sizes = [8_192, 20_000, 10, 300_000, 8_192, 70_000, 1, 65_536, 65_537, 1_000_000, 5]
    batches = [bytearray([number]) * size for number, size in enumerate(sizes)]
    answers = [
        connection.submit(
            ProduceRequest(
                topic_data=[
                    TopicProduceData(
                        name="t",
                        partition_data=[
                            PartitionProduceData(index=0, records=batch),
                            PartitionProduceData(index=1, records=b"end"),
                        ],
                    )
                ]
            ),
            api_version=9,
            keeps_records=keeps_records,
        )
        for batch in batches
    ]
    expected = [bytes(batch) for batch in batches]
    if not keeps_records:
        # They were copied: what the caller does with its buffers now changes nothing.
        for batch in batches:
            batch[:] = bytes(len(batch))
    await asyncio.gather(*answers)
    assert seen == [part for batch in expected for part in (batch, b"end")]


async def test_large_records_are_written_at_once_and_small_ones_together(harness: Harness) -> None:
    """The peer has something to do while its next request is made."""
    written: list[int] = []

    class Spy:
        def __init__(self, transport: Any) -> None:
            self.transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self.transport, name)

        def write(self, data: Any) -> None:
            written.append(len(data))
            self.transport.write(data)

        def writelines(self, pieces: Any) -> None:
            written.append(sum(map(len, pieces)))
            self.transport.writelines(pieces)

    def answer(request: Request) -> None:
        request.respond(ProduceResponse())

    connection = await connect(harness, await harness.server(answer), negotiate=False)
    connection._transport = cast(Any, Spy(connection._transport))

    def submit(size: int) -> Any:
        data = PartitionProduceData(index=0, records=bytes(size))
        request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[data])])
        return connection.submit(request, api_version=9, keeps_records=True)

    answers = [submit(16_384), submit(16_384)]
    assert len(written) == 2
    answers += [submit(100), submit(100), submit(16_384)]
    assert len(written) == 2, "what is behind small ones waits with them"
    await asyncio.gather(*answers)
    assert len(written) == 3


async def test_buffers_are_used_again_when_the_receiver_says_so(harness: Harness) -> None:
    def handler(request: Request) -> None:
        message, _ = FetchRequest.decode(request.body, request.api_version)
        data = PartitionData(records=bytes([message.min_bytes]) * message.max_bytes)
        request.respond(FetchResponse(responses=[FetchableTopicResponse(partitions=[data])]))

    connection = await connect(
        harness,
        await harness.server(handler),
        negotiate=False,
        memory=ReceiveMemory(pool_limit_bytes=2**20),
        holds_responses=True,
    )

    async def fetched(content: int, size_bytes: int) -> memoryview:
        request = FetchRequest(min_bytes=content, max_bytes=size_bytes)
        answer = await connection.send(request, api_version=13)
        found: memoryview = answer.responses[0].partitions[0].records
        assert bytes(found) == bytes([content]) * size_bytes
        return found

    sizes = [10, 2_000_000, 70_000, 30, 300_000]
    found = [await fetched(number, size_bytes) for number, size_bytes in enumerate(sizes)]
    for number, size_bytes in enumerate(sizes):
        assert bytes(found[number]) == bytes([number]) * size_bytes, "valid until released"
    del found
    connection.release_responses()
    buffers = []
    for content in range(3):
        buffers.append((await fetched(content, 300_000)).obj)
        connection.release_responses()
    assert all(buffer is buffers[0] for buffer in buffers)


async def test_the_messages_know_the_client(harness: Harness) -> None:
    names: list[str] = []

    def handler(request: Request) -> None:
        if request.api_key == 18:
            message, _ = ApiVersionsRequest.decode(request.body, request.api_version)
            names.append(message.client_software_name)
        node(request)

    await connect(harness, await harness.server(handler))
    assert names == ["moldau"]
