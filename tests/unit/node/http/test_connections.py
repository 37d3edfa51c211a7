"""What clients of the HTTP listener may take: places, time, bytes that they do not read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiohttp import web

from moldau.node.http import metrics
from moldau.node.http.connections import (
    MAX_AHEAD_BYTES,
    ClientLines,
    HttpConnection,
    HttpConnections,
    HttpLimits,
    Phase,
    _Handler,
)
from tests.kit.counting import Newcomers, collector_at_rest
from tests.kit.manual_clock import ManualClock
from tests.unit.node.http.site import Client, Site, config, served
from tests.virtual.machine import pass_time

OTHER = "10.0.0.2"
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LONG_HEADERS = [HALF + b"y" * 5_000, b"y" * 1_000, b"\r\n\r\n"]
LIMITS = {
    "header_timeout_ms": "5000",
    "idle_timeout_ms": "75000",
    "response_timeout_ms": "30000",
}
CROWDED = "cut, as its address takes too many connections"
LATE = "no whole header block in time"
CROWDED_BYTES = "cut, as its address leaves too many bytes of answers unread"
UNREAD = "the answer is not taken in time"


def problems(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Address and problem of each line about clients."""
    lines = [each.msg for each in caplog.records if each.name == "moldau.node.http.connections"]
    return [
        (line.fields["host"], line.fields["problem"])
        for line in lines
        if not isinstance(line, str) and "problem" in line.fields
    ]


async def lives_ms(client: Client) -> float:
    """How long until it is cut."""
    begun_s = asyncio.get_running_loop().time()
    await client.closed()
    return (asyncio.get_running_loop().time() - begun_s) * 1000


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"", None),
        (b"GET", LATE),
        (HALF, LATE),
        (b"\r\n", LATE),
    ],
)
async def test_headers_that_do_not_end_are_waited_for_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    problem: str | None,
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.send(sent)
        assert await lives_ms(client) == pytest.approx(5_000, abs=2)
        assert client.received == b""
    assert problems(caplog) == ([("10.0.0.1", problem)] if problem else [])


async def test_a_byte_now_and_then_does_not_make_the_time_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.send(HALF)
        for _ in range(5):
            await pass_time(990)
            client.send(b"x")
        assert not client.is_closed
        assert await lives_ms(client) == pytest.approx(50, abs=5)
    assert problems(caplog) == [("10.0.0.1", LATE)]


@pytest.mark.parametrize("pieces", [[WHOLE[i : i + 1] for i in range(len(WHOLE))], LONG_HEADERS])
async def test_headers_may_come_in_pieces(monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        for piece in pieces:
            assert client.received == b""
            client.send(piece)
            await pass_time(1)
        assert (await client.answer()).status == 200
        client.close()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01", b"/ HTTP", b"GET / HTTP/9.9\r\n"])
async def test_what_begins_no_header_block_is_refused_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.send(sent)
        assert (await client.answer()).status == 400
        await client.closed()


async def test_a_connection_that_has_asked_for_nothing_ends_with_the_listener(
    monkeypatch: pytest.MonkeyPatch,
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.send(HALF)
        await pass_time(10)
        assert not client.is_closed
    await client.closed()


@pytest.mark.parametrize("is_in_one_piece", [True, False])
async def test_half_a_header_behind_a_request_has_five_seconds_too(
    monkeypatch: pytest.MonkeyPatch, is_in_one_piece: bool
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.send(WHOLE + HALF if is_in_one_piece else WHOLE)
        assert (await client.answer()).status == 200
        if not is_in_one_piece:
            await pass_time(60_000)
            client.send(HALF)
        assert await lives_ms(client) == pytest.approx(5_000, abs=5)


async def test_a_connection_that_is_kept_may_be_idle_for_75_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        for _ in range(3):
            client.send(WHOLE)
            assert (await client.answer()).status == 200
            await pass_time(74_000)
        assert not client.is_closed
        client.send(WHOLE * 3)
        for _ in range(3):
            assert (await client.answer()).status == 200
        assert await lives_ms(client) == pytest.approx(75_000, abs=5)
    assert problems(caplog) == []


def open_ones(site: Site) -> list[HttpConnection]:
    """The listener's connections, in the order of their beginnings."""
    connections = site.listener._connections
    assert connections is not None
    return sorted(connections.places, key=lambda each: each.since_s)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives `/metrics` so many bytes."""

    def have(size_bytes: int) -> None:
        monkeypatch.setattr(metrics, "render", lambda _: b"x" * size_bytes)

    return have


def stop_reading(client: Client) -> None:
    client.transport.pause_reading()


async def test_an_answer_that_is_not_read_is_cut(
    monkeypatch: pytest.MonkeyPatch, pages: Callable[[int], None], caplog: pytest.LogCaptureFixture
):
    pages(1_000_000)
    async with served(monkeypatch, settings=LIMITS) as site:
        client, reader = await site.client(), await site.client(OTHER)
        for each in (client, reader):
            each.get("/metrics")
        stop_reading(client)
        assert len((await reader.answer()).body) > 900_000
        await pass_time(29_000)
        stop_reading(reader)
        assert [each.host for each in open_ones(site)] == ["10.0.0.1", OTHER]
        await pass_time(2_000)
        assert [each.host for each in open_ones(site)] == [OTHER]
        assert (client.is_closed, reader.is_closed) == (True, False)
        reader.close()
    assert problems(caplog) == [("10.0.0.1", UNREAD)]


async def test_the_rest_of_a_last_answer_has_five_seconds(
    monkeypatch: pytest.MonkeyPatch, pages: Callable[[int], None]
):
    pages(100_000)
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.get("/metrics", "Connection: close")
        stop_reading(client)
        await pass_time(4_900)
        assert len(open_ones(site)) == 1
        await pass_time(200)
        assert not open_ones(site)
        client.close()


async def test_room_for_an_answer_is_made_where_an_answer_waits_unread(
    monkeypatch: pytest.MonkeyPatch, pages: Callable[[int], None], caplog: pytest.LogCaptureFixture
):
    pages(1_000_000)
    async with served(monkeypatch, settings={**LIMITS, "max_unsent_bytes": "1000000"}) as site:
        client, idle = await site.client(), await site.client(OTHER)
        client.get("/metrics")
        stop_reading(client)
        await pass_time(10)
        assert (await site.ask("/healthz")).status == 200
        assert (await site.ask("/metrics", host=OTHER)).status == 200
        await pass_time(10)
        assert [each.host for each in open_ones(site)] == [OTHER]
        for each in (client, idle):
            each.close()
    assert problems(caplog) == [("10.0.0.1", CROWDED_BYTES)]


def test_limits_are_those_of_the_configuration():
    assert HttpLimits.from_config(config()) == HttpLimits(1_000, 100, 5.0, 75.0, 30.0, 67_108_864)
    changed = config(
        max_connections="7",
        max_connections_per_ip="6",
        header_timeout_ms="5100",
        idle_timeout_ms="4100",
        response_timeout_ms="3100",
        max_unsent_bytes="2",
    )
    assert HttpLimits.from_config(changed) == HttpLimits(7, 6, 5.1, 4.1, 3.1, 2)
    assert MAX_AHEAD_BYTES == 131_072


async def test_a_body_that_does_not_come_is_waited_for_one_second(monkeypatch: pytest.MonkeyPatch):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        assert (await client.answer()).status == 413
        assert await lives_ms(client) == pytest.approx(1_000, abs=5)


class Reader:
    """A connection with an answer that waits, as HttpConnections sees it."""

    is_busy = False

    def __init__(self, host: str, unsent_bytes: int, since_s: float) -> None:
        self.host, self.unsent_bytes, self.since_s = host, unsent_bytes, since_s
        self.problems: list[str] = []

    def cut(self, problem: str) -> None:
        self.problems.append(problem)


class Transport(asyncio.Transport):
    """Takes everything, and counts how often it is cut."""

    aborted = 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (OTHER, 5_000) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted += 1


async def test_a_connection_that_is_lost_is_not_cut_when_its_time_is_over(
    caplog: pytest.LogCaptureFixture,
):
    limits, transport = HttpLimits.from_config(config(**LIMITS)), Transport()
    connections = HttpConnections(limits, ClientLines(ManualClock(), 10))
    connection = HttpConnection(connections, None)  # type: ignore[arg-type]
    assert connection.unsent_bytes == 0, "there is no transport yet"
    loop = asyncio.get_running_loop()
    await pass_time(10)
    connection.connection_made(transport)
    assert (connection.host, connection.since_s) == (OTHER, loop.time())
    connection.data_received(b"GET")
    await pass_time(10)
    connection.begin_request()
    assert (connection.is_busy, connection.since_s) == (True, loop.time())
    connection.connection_lost(None)
    await pass_time(60_000)
    assert (transport.aborted, problems(caplog), list(connections.places)) == (0, [], [])


def test_the_address_that_leaves_most_bytes_unread_loses_its_oldest_connections():
    limits = HttpLimits.from_config(config(max_unsent_bytes="1000"))
    connections = HttpConnections(limits, ClientLines(ManualClock(), 10))
    young, old, large, none = (
        Reader("many", 200, 3),
        Reader("many", 200, 2),
        Reader("one", 300, 1),
        Reader("many", 0, 0),
    )
    readers = [young, old, large, none]
    for each in readers:
        connections.places.take(each)  # type: ignore[arg-type]

    def cut_for(size_bytes: int) -> list[Reader]:
        for each in readers:
            each.problems.clear()
        connections.make_room(size_bytes)
        assert {text for each in readers for text in each.problems} <= {CROWDED_BYTES}
        return [each for each in readers if each.problems]

    assert cut_for(300) == []
    assert cut_for(301) == [old]
    assert cut_for(500) == [old]
    assert cut_for(501) == [old, large]
    assert cut_for(5_000) == [young, old, large]


async def test_an_address_with_all_its_places_loses_its_own_oldest_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    settings = {**LIMITS, "max_connections_per_ip": "3"}
    async with served(monkeypatch, settings=settings) as site:
        other = await site.client(OTHER)
        silent, half = await site.client(), await site.client()
        half.send(HALF)
        idle = await site.client()
        idle.send(WHOLE)
        await idle.answer()
        await pass_time(10)
        assert (await site.ask("/healthz")).status == 200
        assert [each.is_closed for each in (other, silent, half, idle)] == [0, 1, 0, 0]
        for each in (other, half, idle):
            each.close()
    assert problems(caplog) == [("10.0.0.1", CROWDED)]


async def test_without_a_free_place_the_address_with_most_loses_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    settings = {**LIMITS, "max_connections": "4", "max_connections_per_ip": "4"}
    async with served(monkeypatch, settings=settings) as site:
        hosts = (OTHER, "10.0.0.3", "10.0.0.1", "10.0.0.1")
        clients = [await site.client(host) for host in hosts]
        await pass_time(10)
        for _ in range(5):
            assert (await site.ask("/healthz", host="10.0.0.9")).status == 200
            await pass_time(10)
        assert [each.is_closed for each in clients] == [0, 0, 1, 0]
        for each in clients:
            each.close()
    assert problems(caplog) == [("10.0.0.1", CROWDED)]


async def test_requests_under_way_keep_their_places_longest(
    monkeypatch: pytest.MonkeyPatch, pages: Callable[[int], None]
):
    pages(300_000)
    settings = {**LIMITS, "max_connections_per_ip": "2"}
    async with served(monkeypatch, settings=settings) as site:
        busy = await site.client()
        busy.get("/metrics")
        stop_reading(busy)
        await pass_time(10)
        for _ in range(3):
            await site.client()
            await pass_time(10)
        assert len(open_ones(site)) == 2
        busy.transport.resume_reading()
        assert len((await busy.answer()).body) > 250_000
        for each in open_ones(site):
            each.cut()
            assert each._phase is Phase.GONE
        await pass_time(10)


async def test_places_come_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    settings = {**LIMITS, "max_connections": "2", "max_connections_per_ip": "2"}
    async with served(monkeypatch, settings=settings) as site:
        for _ in range(20):
            assert (await site.ask("/healthz")).status == 200
            await pass_time(10)
        assert not open_ones(site)
        connections = site.listener._connections
        assert connections is not None
        assert not connections.places._by_host, "nothing is kept of addresses that have gone"
    assert problems(caplog) == []


@pytest.mark.parametrize("is_behind_a_request", [True, False])
async def test_bytes_without_a_request_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_behind_a_request: bool
):
    release = asyncio.Event()
    async with served(monkeypatch, settings=LIMITS) as site:
        if is_behind_a_request:
            monkeypatch.setattr(site.listener, "_on_data_loop", lambda _: release.wait())
        client = await site.client()
        if is_behind_a_request:
            client.send(WHOLE)
            await pass_time(10)
        sent = 0
        while not client.is_closed and sent < 4 * MAX_AHEAD_BYTES:
            piece = b"\r\n" * 500
            client.send(piece)
            sent += len(piece)
            await pass_time(1)
        assert MAX_AHEAD_BYTES < sent < 2 * MAX_AHEAD_BYTES
        release.set()
    assert problems(caplog) == [("10.0.0.1", "too many bytes of headers, or behind a request")]


async def test_bytes_of_requests_that_are_answered_do_not_add_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        for _ in range(3 * MAX_AHEAD_BYTES // 8_000):
            client.get("/healthz", "X: " + "y" * 8_000)
            assert (await client.answer()).status == 200
        client.close()
    assert problems(caplog) == []


async def test_what_was_counted_is_written_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch, settings=LIMITS) as site:
        for _ in range(3):
            client = await site.client()
            client.send(b"BREW\r\n\r\n")
            await client.closed()
    assert caplog.records[-1].getMessage().endswith("no HTTP: 2 more times within 10 s")


async def test_what_clients_get_wrong_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch, settings=LIMITS) as site:
        for _ in range(30):
            client = await site.client()
            client.send(b"BREW\r\n\r\n")
            await client.closed()
        assert len(problems(caplog)) == 1
        await pass_time(20_000)
        lines = [each for each in caplog.records if each.name == "moldau.node.http.connections"]
        [first, count] = lines[-2:]
        text = "HTTP client at 10.0.0.1: what it sends is no HTTP"
        assert first.getMessage() == text
        assert first.levelno == count.levelno == logging.WARNING
        assert count.getMessage() == f"{text}: 29 more times within 10 s"
        assert all(each.msg.is_counted for each in (first, count)), "the handler writes each"  # type: ignore[attr-defined]


async def test_a_connection_that_is_cut_while_its_body_is_thrown_away_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with served(monkeypatch, settings=LIMITS) as site:
        client = await site.client()
        client.get("/healthz", "Content-Length: 100")
        assert (await client.answer()).status == 413
        await pass_time(10)
        assert site.listener._connections is not None
        [connection] = site.listener._connections.places
        connection.data_received(b"a part of the body")
        connection.cut("cut, as it is late")
        await pass_time(10)
    assert [each.exc_info for each in caplog.records] == [None]
    assert problems(caplog) == [("10.0.0.1", "cut, as it is late")]


@pytest.mark.parametrize(
    "sent",
    [
        WHOLE,
        WHOLE * 3,
        HALF,
        b"\x16\x03\x01",
        b"\xff\xfe\xfd\r\n\r\n",
        WHOLE + b"\x00 noise behind a request\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"y" * 70,
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_connections_that_are_gone_leave_no_cycles(sent: bytes):
    """The collector of a node comes seldom, and a connection of TLS holds much memory."""

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text="yes")

    limits = HttpLimits.from_config(config(**LIMITS))
    connections = HttpConnections(limits, ClientLines(ManualClock(), 10))
    server = web.Server(answer)
    new = Newcomers(HttpConnection, _Handler)
    with collector_at_rest():
        for end_ms in (0, 10, 10_000):
            connection = HttpConnection(connections, server)
            connection.connection_made(Transport())
            connection.data_received(sent)
            await asyncio.sleep(0)
            await pass_time(end_ms)
            connection.connection_lost(None)
            del connection
            await pass_time(20_000)
        assert new.objects() == []
