"""The server on real sockets: order, limits, and that one bad peer hurts no other."""

import asyncio
import logging
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from moldau.protocol.errors import LocalProtocolError, RemoteProtocolError
from moldau.protocol.framing import POISON_BYTE
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p03_metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.runtime.telemetry.logs import BRAKE_INTERVAL_MS, MAX_LINES
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.connection_limits import ServerLimits
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.request import (
    LARGE_BODY_BYTES,
    LARGE_ELEMENT_COUNT,
    LARGE_PART_COUNT,
    Request,
    RequestMetrics,
)
from moldau.server.server import ListenerSpec, Server
from moldau.server.server_connection import (
    MAX_HELD_BYTES,
    MAX_HELD_REQUESTS,
    MAX_IN_FLIGHT_REQUESTS,
    MAX_PENDING_RESPONSE_BYTES,
)
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness, Peer, Written, response
from tests.kit.waiting import until_async

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]


def echo(request: Request) -> None:
    request.respond_parts(response(request, request.body))


async def test_responses_leave_in_request_order(harness: Harness) -> None:
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    peer = await harness.peer(server)
    peer.send(*(peer.request(number, b"%d" % number) for number in range(40)))
    await until_async(lambda: len(waiting) == 40)
    for request in reversed(waiting[1:]):
        echo(request)
    await asyncio.sleep(0)
    assert server.connections.bytes_sent == 0
    echo(waiting[0])
    for number in range(40):
        assert await peer.receive() == (number, b"%d" % number)
    await until_async(lambda: server.connections.memory.reserved_bytes == 0)


async def test_requests_without_response_do_not_delay_others(harness: Harness) -> None:
    def handler(request: Request) -> None:
        if request.body == b"quiet":
            request.respond_nothing()
        else:
            echo(request)

    peer = await harness.peer(await harness.server(handler))
    peer.send(peer.request(1, b"a"), peer.request(2, b"quiet"), peer.request(3, b"c"))
    assert [await peer.receive(), await peer.receive()] == [(1, b"a"), (3, b"c")]


async def test_header_and_connection_are_visible(harness: Harness) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> None:
        seen.append(request)
        request.connection.state["count"] = request.connection.state.get("count", 0) + 1
        echo(request)

    server = await harness.server(handler)
    peer = await harness.peer(server)
    peer.send(peer.request(9, b"x"), peer.request(10, b"y"))
    await peer.receive()
    await peer.receive()
    request = seen[0]
    assert (request.api_key, request.api_version, request.correlation_id) == (3, 0, 9)
    assert (request.client_id, request.connection.client_host) == ("test", "127.0.0.1")
    assert request.connection.listener_name == "PLAINTEXT"
    assert request.connection.principal == "User:ANONYMOUS"
    assert request.connection.state == {"count": 2}


async def test_large_and_small_frames_mixed(harness: Harness) -> None:
    peer = await harness.peer(await harness.server(echo))
    sizes = [0, 5_000_001, 3, 70_000, 262_144, 1, 1_048_576, 16_384]
    bodies = [bytes([index]) * size for index, size in enumerate(sizes)]
    peer.send(*(peer.request(index, body) for index, body in enumerate(bodies)))
    for index, body in enumerate(bodies):
        assert await peer.receive() == (index, body)


async def test_in_flight_is_limited_and_goes_on(harness: Harness) -> None:
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    peer = await harness.peer(server)
    count = 5 * MAX_IN_FLIGHT_REQUESTS
    peer.send(*(peer.request(number) for number in range(count)))
    answered = 0
    while answered < count:
        await until_async(lambda: bool(waiting))
        (connection,) = server.connections
        assert connection.in_flight_count <= MAX_IN_FLIGHT_REQUESTS
        batch = waiting[:]
        waiting.clear()
        for request in batch:
            echo(request)
        for _ in batch:
            assert (await peer.receive())[0] == answered
            answered += 1


@pytest.mark.parametrize(
    ("size_bytes", "limit"), [(10, MAX_HELD_REQUESTS), (MAX_HELD_BYTES // 2, 2)]
)
async def test_one_connection_has_only_so_many_held_requests(
    harness: Harness, size_bytes: int, limit: int
) -> None:
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        request.release_body()
        request.connection.hold(request)
        waiting.append(request)

    server = await harness.server(handler)
    flooding, other = await harness.peer(server), await harness.peer(server)
    count = 5 * limit
    flooding.send(*(flooding.request(number, bytes(size_bytes)) for number in range(count)))
    await until_async(lambda: len(waiting) == limit)
    other.send(other.request(0))
    await until_async(lambda: len(waiting) == limit + 1)
    assert len({request.connection for request in waiting}) == 2
    for number in range(count):
        request = next(each for each in waiting if each.correlation_id == number)
        assert request.connection.in_flight_count <= limit
        request.respond_parts(response(request, b""))
        assert (await flooding.receive())[0] == number
        handled_count = min(number + limit + 2, count + 1)
        await until_async(lambda count=handled_count: len(waiting) == count)  # type: ignore[misc]
    waiting[limit].respond_parts(response(waiting[limit], b""))
    assert (await other.receive())[0] == 0


async def test_a_peer_that_does_not_read_holds_bounded_memory(harness: Harness) -> None:
    handled = 0
    piece = bytes(100_000)

    def handler(request: Request) -> None:
        nonlocal handled
        handled += 1
        request.respond_parts(response(request, piece))

    server = await harness.server(handler, limits=ServerLimits(send_buffer_bytes=65536))
    peer = await harness.peer(server)
    count = 3000
    peer.send(*(peer.request(number) for number in range(count)))
    (connection,) = server.connections
    await until_async(lambda: connection.share.unread_bytes > MAX_PENDING_RESPONSE_BYTES)
    stuck_at = handled
    assert stuck_at < count
    assert connection.share.unread_bytes < (MAX_IN_FLIGHT_REQUESTS + 12) * len(piece)
    other = await harness.peer(server)
    other.send(other.request(1))
    assert (await other.receive())[0] == 1
    for number in range(count):
        assert (await peer.receive())[0] == number
    await until_async(lambda: connection.share.unread_bytes == 0)


async def test_released_frames_are_poisoned_after_the_answer(harness: Harness) -> None:
    stolen: list[memoryview] = []

    def handler(request: Request) -> None:
        stolen.append(request.body[1:4])
        echo(request)

    peer = await harness.peer(await harness.server(handler))
    peer.send(peer.request(1, b"abcdef"))
    assert await peer.receive() == (1, b"abcdef")
    assert bytes(stolen[0]) == bytes([POISON_BYTE]) * 3


async def test_a_waiting_request_can_give_its_bytes_back(harness: Harness) -> None:
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        request.release_body()
        request.release_body()
        waiting.append(request)

    server = await harness.server(handler)
    peer = await harness.peer(server)
    peer.send(peer.request(1, bytes(100_000)))
    await until_async(lambda: len(waiting) == 1)
    assert server.connections.memory.reserved_bytes == 0
    waiting[0].respond_parts(response(waiting[0], b"ok"))
    assert await peer.receive() == (1, b"ok")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 100 * 1024 * 1024 + 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 3, 0, 1, 500),
        struct.pack(">ihhih", 14, 3, 0, 1, 4) + b"\xff\xfe\xfd\xfc",
    ],
)
async def test_garbage_closes_only_its_connection(
    harness: Harness, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = await harness.server(echo)
    good, bad = await harness.peer(server), await harness.peer(server)
    with caplog.at_level(logging.WARNING, "moldau.server"):
        bad.send(bad.request(1, b"before"), garbage)
        assert await bad.receive() == (1, b"before")
        assert await bad.at_eof()
    assert len(caplog.records) == 1
    assert "closing connection" in caplog.text
    good.send(good.request(2, b"fine"))
    assert await good.receive() == (2, b"fine")
    await until_async(lambda: len(server.connections) == 1)
    assert server.connections.memory.reserved_bytes == 0


async def test_garbage_from_many_peers_is_logged_a_few_times(
    harness: Harness, written: Written
) -> None:
    server = await harness.server(echo)
    for _ in range(40):
        peer = await harness.peer(server)
        peer.send(b"\xff" * 8)
        assert await peer.at_eof()
    assert len(written.take()) == MAX_LINES
    written.clock.advance(BRAKE_INTERVAL_MS)
    assert [each["left_out"] for each in written.take_entries()] == [40 - MAX_LINES]


async def test_a_body_the_handler_cannot_decode_closes_the_connection(harness: Harness) -> None:
    def handler(request: Request) -> None:
        if request.body == b"bad":
            raise RemoteProtocolError("nonsense")
        echo(request)

    server = await harness.server(handler)
    peer, other = await harness.peer(server), await harness.peer(server)
    peer.send(peer.request(1, b"bad"), peer.request(2, b"never"))
    assert await peer.at_eof()
    other.send(other.request(3, b"x"))
    assert await other.receive() == (3, b"x")
    assert server.connections.memory.reserved_bytes == 0


async def test_connection_limits(harness: Harness) -> None:
    server = await harness.server(echo, limits=ServerLimits(max_connections=2))
    first, second = await harness.peer(server), await harness.peer(server)
    await until_async(lambda: len(server.connections) == 2)
    assert await (await harness.peer(server)).at_eof()
    first.close()
    await until_async(lambda: len(server.connections) == 1)
    server.connections.update_limits(
        ServerLimits(max_connections_per_ip=9, max_connections_per_ip_overrides={"127.0.0.1": 1})
    )
    assert await (await harness.peer(server)).at_eof()
    second.send(second.request(1, b"still here"))
    assert await second.receive() == (1, b"still here")
    assert server.connections.rejected_count == 2


@pytest.mark.virtual_too(False)
@pytest.mark.usefixtures("dual_stack")
async def test_the_address_of_a_client_is_in_one_form(harness: Harness) -> None:
    hosts: list[str] = []

    def handler(request: Request) -> None:
        hosts.append(request.connection.client_host)
        echo(request)

    limits = ServerLimits(max_connections_per_ip_overrides={"127.0.0.1": 1})
    server = await harness.server(handler, limits=limits)
    peer = await harness.peer(server)
    peer.send(peer.request(1, b"x"))
    assert await peer.receive() == (1, b"x")
    assert hosts == ["127.0.0.1"]
    assert await (await harness.peer(server)).at_eof()


async def test_connections_wait_above_the_rate_of_the_node(harness: Harness) -> None:
    """With one per second, ten come at once; each further one is read from later, in order."""
    clock = ManualClock()
    limits = ServerLimits(max_connection_creation_rate=1, listen_backlog=2)
    server = await harness.server(echo, limits=limits, clock=clock)
    peers = []
    for count in range(1, 13):
        peers.append(await harness.peer(server))
        await until_async(lambda count=count: len(server.connections) == count)
    for number, peer in enumerate(peers):
        peer.send(peer.request(number, b"x"))
    for number, peer in enumerate(peers[:10]):
        assert await peer.receive() == (number, b"x")
    assert await (await harness.peer(server)).at_eof(), "two wait already"
    assert server.connections.rejected_count == 1
    requests = server.connections.bytes_received
    clock.advance(1000.0)
    assert await peers[10].receive() == (10, b"x")
    assert server.connections.bytes_received == requests + len(peers[0].request(0, b"x"))
    clock.advance(1000.0)
    assert await peers[11].receive() == (11, b"x")


async def test_connections_above_the_rate_of_their_address_are_closed_later(
    harness: Harness,
) -> None:
    clock = ManualClock()
    rates = ConnectionRates()
    rates.change({(("ip", "127.0.0.1"),): {"connection_creation_rate": 1.0}})
    server = await harness.server(echo, rates=rates, clock=clock)
    peers = [await harness.peer(server) for _ in range(10)]
    await until_async(lambda: len(server.connections) == 10)
    refused = await harness.peer(server)
    refused.send(refused.request(1, b"never read"))
    await until_async(lambda: server.connections.rejected_count == 1)
    assert len(server.connections) == 10
    clock.advance(999.0)
    assert not refused.reader.at_eof()
    clock.advance(1.0)
    assert await refused.at_eof(), "without an answer"
    assert server.connections.bytes_received == 0
    peers[0].send(peers[0].request(2, b"still here"))
    assert await peers[0].receive() == (2, b"still here")
    # One that waits for its end does not hold up the server's.
    last = await harness.peer(server)
    await until_async(lambda: server.connections.rejected_count == 2)
    await server.close(0)
    assert await last.at_eof()


async def test_idle_connections_are_closed_and_waiting_ones_are_not(harness: Harness) -> None:
    clock = ManualClock()
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        if request.body == b"wait":
            waiting.append(request)
        else:
            echo(request)

    server = await harness.server(
        handler, clock=clock, limits=ServerLimits(connections_max_idle_ms=5000)
    )
    idle, busy, polling = [await harness.peer(server) for _ in range(3)]
    polling.send(polling.request(1, b"wait"))
    await until_async(lambda: len(waiting) == 1 and len(server.connections) == 3)
    clock.advance(4000)
    busy.send(busy.request(2))
    await busy.receive()
    clock.advance(3000)
    assert await idle.at_eof()
    assert len(server.connections) == 2
    echo(waiting[0])
    assert await polling.receive() == (1, b"wait")


async def test_a_throttled_connection_waits(harness: Harness) -> None:
    clock = ManualClock()
    handled: list[int] = []

    def handler(request: Request) -> None:
        handled.append(request.correlation_id)
        if request.body == b"much":
            request.connection.throttle(1000)
            request.connection.throttle(500)
        echo(request)

    server = await harness.server(handler, clock=clock)
    peer, other = await harness.peer(server), await harness.peer(server)
    peer.send(peer.request(1, b"much"), peer.request(2), peer.request(3))
    assert (await peer.receive())[0] == 1
    peer.send(peer.request(4))
    other.send(other.request(50))
    await other.receive()
    clock.advance(900)
    assert handled == [1, 50]
    clock.advance(200)
    assert [(await peer.receive())[0] for _ in range(3)] == [2, 3, 4]


async def test_graceful_close_answers_what_was_accepted(harness: Harness) -> None:
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    peer, idle = await harness.peer(server), await harness.peer(server)
    peer.send(peer.request(1, bytes(3_000_000)))
    await until_async(lambda: len(waiting) == 1)
    closing = asyncio.create_task(server.close(20_000))
    assert await idle.at_eof()
    with pytest.raises(OSError, match=r".+"):
        await Server(echo).start([ListenerSpec("A", "256.0.0.1", 0)])
    echo(waiting[0])
    assert await peer.receive() == (1, bytes(3_000_000))
    assert await peer.at_eof()
    await closing
    assert len(server.connections) == 0


async def test_a_connection_that_is_to_end_ends_behind_its_large_answer(harness: Harness) -> None:
    """What its transport had not taken when the end was asked for is sent first, then it closes."""

    def handler(request: Request) -> None:
        request.respond_parts(response(request, bytes(3_000_000)))

    peer = await harness.peer(await harness.server(handler))
    peer.send(peer.request(1), struct.pack(">i", -1))
    assert await peer.receive() == (1, bytes(3_000_000))
    assert await peer.at_eof()


async def test_close_cuts_what_does_not_end(harness: Harness) -> None:
    waiting: list[Request] = []
    server = await harness.server(waiting.append)
    peer = await harness.peer(server)
    ended: list[object] = []
    peer.send(peer.request(1, b"forever"))
    await until_async(lambda: len(waiting) == 1)
    waiting[0].connection.on_close(ended.append)
    await server.close(0)
    assert await peer.at_eof()
    assert ended == [waiting[0].connection]
    assert waiting[0].is_connection_lost
    echo(waiting[0])
    assert server.connections.memory.reserved_bytes == 0


@pytest.mark.virtual_too(False)
async def test_a_port_in_use_is_one_clear_line(harness: Harness) -> None:
    server = await harness.server(echo)
    port = server.port("PLAINTEXT")
    with pytest.raises(OSError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use"):
        await Server(echo).start([ListenerSpec("OTHER", "127.0.0.1", port)])


async def test_every_request_is_counted(harness: Harness) -> None:
    heard: list[tuple[int, int]] = []

    class Heard(RequestMetrics):
        def request_completed(
            self, request: Request, response_bytes: int, local_ms: float, total_ms: float
        ) -> None:
            assert 0 <= local_ms <= total_ms
            heard.append((request.correlation_id, response_bytes))

    metrics = Heard(Registry(lambda: 0.0))
    peer: Peer = await harness.peer(await harness.server(echo, metrics=metrics))
    peer.send(peer.request(1, b"abc"), peer.request(2, b""))
    await peer.receive()
    await peer.receive()
    assert heard == [(1, 11), (2, 8)]


@pytest.mark.parametrize("how", ["at once", "from the backlog"])
async def test_a_handler_that_fails_costs_its_connection_and_no_memory(
    harness: Harness, how: str
) -> None:
    faults: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: faults.append(context.get("exception"))
    )
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        if request.body == b"broken":
            raise KeyError("a fault of ours")
        waiting.append(request)

    server = await harness.server(handler)
    peer, other = await harness.peer(server), await harness.peer(server)
    count = 1 if how == "at once" else MAX_IN_FLIGHT_REQUESTS
    peer.send(*(peer.request(n, b"good") for n in range(count)), peer.request(99, b"broken"))
    await until_async(lambda: len(waiting) == count)
    for request in list(waiting):
        echo(request)
    await until_async(lambda: len(faults) == 1)
    assert isinstance(faults[0], KeyError)
    with suppress(ConnectionError):
        while await peer.reader.read(65536):
            pass
    await until_async(lambda: server.connections.memory.reserved_bytes == 0)
    waiting.clear()
    other.send(other.request(1, b"still served"))
    await until_async(lambda: len(waiting) == 1)
    echo(waiting[0])
    assert await other.receive() == (1, b"still served")


async def test_requests_behind_a_suspended_one_wait_until_it_proceeds(harness: Harness) -> None:
    handled: list[Request] = []

    def handler(request: Request) -> None:
        handled.append(request)
        if request.correlation_id == 0:
            request.connection.suspend()
        echo(request)

    peer = await harness.peer(await harness.server(handler))
    peer.send(peer.request(0, b"a"), peer.request(1, b"b"))
    assert await peer.receive() == (0, b"a")
    peer.send(peer.request(2, b"c"))
    assert [request.correlation_id for request in handled] == [0]
    handled[0].connection.proceed()
    assert await peer.receive() == (1, b"b")
    assert await peer.receive() == (2, b"c")


class Beside:
    """An `offload` that remembers what it ran."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        self.names.append(function.__name__)
        return await asyncio.to_thread(function, *args)


@pytest.mark.parametrize("count", [1, LARGE_ELEMENT_COUNT + 1])
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_large_response_is_encoded_beside_the_loop(
    harness: Harness, count: int, depth: int
) -> None:
    topics = [MetadataResponseTopic(name=f"t-{number}") for number in range(count)]
    if depth > 1:
        partitions = [MetadataResponsePartition() for _ in range(count)]
        if depth > 2:
            partitions = [MetadataResponsePartition(replica_nodes=list(range(count)))]
        topics = [MetadataResponseTopic(name="t", partitions=partitions)]
    answer = MetadataResponse(topics=topics)
    beside = Beside()
    server = await harness.server(lambda request: request.respond(answer), offload=beside)
    peer = await harness.peer(server)
    peer.send(peer.request(1))
    _, body = await peer.receive()
    assert MetadataResponse.decode(body, 0)[0].topics == topics
    assert beside.names == ["_encoded_and_freed"] * (count > 1)


@pytest.mark.virtual_too(False)
@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_large_response_is_taken_apart_beside_the_loop_unless_others_hold_it(
    harness: Harness, is_kept: bool
) -> None:
    kept: list[Any] = []
    ended_in: list[int] = []

    class Watched(MetadataResponseTopic):
        def __del__(self) -> None:
            ended_in.append(threading.get_ident())

    def handler(request: Any) -> None:
        topics: list[Any] = [Watched(name=f"t-{n}") for n in range(LARGE_ELEMENT_COUNT + 1)]
        if is_kept:
            kept.append(topics)
        request.respond(MetadataResponse(topics=topics))

    peer = await harness.peer(await harness.server(handler, offload=Beside()))
    peer.send(peer.request(1))
    await peer.receive()
    if is_kept:
        assert not ended_in
        assert [topic.name for topic in kept[0][:2]] == ["t-0", "t-1"]
    else:
        assert len(ended_in) == LARGE_ELEMENT_COUNT + 1
        assert threading.get_ident() not in ended_in


async def test_the_answer_to_a_large_request_is_encoded_beside_the_loop(harness: Harness) -> None:
    beside = Beside()
    server = await harness.server(
        lambda request: request.respond(MetadataResponse()), offload=beside
    )
    peer = await harness.peer(server)
    peer.send(peer.request(1, b"x" * (LARGE_BODY_BYTES + 1)))
    await peer.receive()
    assert beside.names == ["_encoded_and_freed"]


async def test_a_large_response_that_cannot_be_encoded_closes_its_connection(
    harness: Harness,
) -> None:
    topics = [MetadataResponseTopic(name="x" * 40_000) for _ in range(LARGE_ELEMENT_COUNT + 1)]
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    server = await harness.server(lambda request: request.respond(MetadataResponse(topics=topics)))
    peer = await harness.peer(server)
    peer.send(peer.request(1))
    assert await peer.at_eof()
    await until_async(lambda: bool(faults))
    assert isinstance(faults[0]["exception"], LocalProtocolError)


@pytest.mark.parametrize("count", [LARGE_PART_COUNT - 1, LARGE_PART_COUNT])
async def test_a_produce_request_is_large_by_its_parts(harness: Harness, count: int) -> None:
    is_large = []

    def handler(request: Request) -> None:
        is_large.append(request.is_large)
        echo(request)

    records = b"x" * (1 + LARGE_BODY_BYTES // (LARGE_PART_COUNT - 1))
    partitions = [PartitionProduceData(index=n, records=records) for n in range(count)]
    message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=partitions)])
    peer = await harness.peer(await harness.server(handler))
    peer.send(peer.request(1, message.to_bytes(3), api_key=0))
    await peer.receive()
    assert is_large == [count == LARGE_PART_COUNT]
