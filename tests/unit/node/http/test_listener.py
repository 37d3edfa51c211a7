"""The listener itself: its start and end, pages of a node without a broker, whose turn it is."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.metadata.image import MetadataImage
from moldau.node.expirations import Expirations
from moldau.node.http import collect, metrics, views
from moldau.node.http import server as http_server
from moldau.node.http.access import Authority, HttpAccess, HttpSecurity
from moldau.node.http.connections import HttpLimits
from moldau.node.http.server import HttpListener
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.authorizer import Authorizer
from tests.kit.manual_clock import ManualClock
from tests.unit.broker.harness import DataPath
from tests.unit.node.http.site import HereThread, Site, config, served
from tests.virtual.machine import HOST, pass_time
from tests.virtual.network import SimulatedNetwork

UNAVAILABLE = b"the broker is starting or stopping\n"


async def test_a_node_that_recovers_is_alive_and_not_ready(monkeypatch: pytest.MonkeyPatch):
    registry = Registry(lambda: 0.0)
    registry.counter("kafka.server:type=Test,name=Things").add(3)
    is_ready = False
    async with served(monkeypatch, is_ready=lambda: is_ready, registry=registry) as site:
        alive = await site.ask("/healthz")
        assert (alive.status, alive.body) == (200, b"ok\n")
        not_ready = await site.ask("/readyz")
        assert (not_ready.status, not_ready.body) == (503, b"not ready\n")
        page = await site.ask("/metrics")
        assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert b"\nkafka_server_test_things_total 3.0\n" in page.body
        assert b"\nkafka_server_dataloop_cpuseconds_total " in page.body
        for path in ("cluster", "metadata", "topics", "topics/x", "log-directories"):
            answer = await site.ask(f"/api/v1/{path}")
            assert (answer.status, answer.body) == (503, UNAVAILABLE)
        is_ready = True
        ready = await site.ask("/readyz")
        assert (ready.status, ready.body) == (200, b"ready\n")


class Server:
    """What a node's server shows."""

    def __init__(self) -> None:
        self.connections = SimpleNamespace()


async def test_the_metrics_of_a_broker(monkeypatch: pytest.MonkeyPatch, broker: DataPath):
    broker.create_topic("a", 3)
    monkeypatch.setattr(collect, "LOGS_PER_VISIT", 2)
    monkeypatch.setattr(http_server.time, "time", lambda: 1_000.0)
    monkeypatch.setattr(collect, "MAX_LOGS_SHOWN", 2)
    connections = collect._gauge("kafka.server:type=Test,name=Connections", 7)
    monkeypatch.setattr(collect, "server_samples", lambda _: [connections])
    async with served(monkeypatch, services=lambda: broker.services, server=Server) as site:
        lines = (await site.ask("/metrics")).body.decode().splitlines()
    found = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines}
    assert found["kafka_server_test_connections"] == "7.0"
    assert found["kafka_controller_kafkacontroller_globalpartitioncount"] == "3.0"
    assert found["kafka_log_logmanager_totallogsize"] == "0.0"
    lag_ms = float(found["kafka_server_broker_metadata_metrics_last_applied_record_lag_ms"])
    assert lag_ms == 1_000_000
    assert "kafka_log_logcleaner_deadthreadcount" in found
    assert f'kafka_log_logmanager_logdirectoryoffline{{logDirectory="{broker.directory}"}}' in found
    shown = [name for name in found if name.startswith("kafka_log_log_size{")]
    assert len(shown) == 2, "only so many logs have series of their own"


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch, broker: DataPath) -> Any:
    broker.create_topic("a", 3)
    broker.create_topic("b")
    async with served(monkeypatch, services=lambda: broker.services) as running:
        yield running


async def test_the_pages_of_a_broker(site: Site, broker: DataPath):
    services = broker.services
    assert (await site.ask("/api/v1/cluster")).document == views.cluster(services)
    image = broker.metadata.image
    assert (await site.ask("/api/v1/metadata")).document == views.metadata(image)
    [directory] = (await site.ask("/api/v1/log-directories")).document["log_directories"]
    assert directory["directory"] == broker.directory
    listed = (await site.ask("/api/v1/topics")).document
    assert listed == views.topics(services, ["a", "b"], None)
    after = (await site.ask("/api/v1/topics?after=a")).document
    assert [each["name"] for each in after["topics"]] == ["b"]
    assert (await site.ask("/api/v1/topics/a")).document == views.topic(services, "a")
    rest = await site.ask("/api/v1/topics/a?first_partition=2")
    assert rest.document == views.topic(services, "a", 2)
    assert rest.body.endswith(b"}\n")


@pytest.mark.parametrize("number", ["x", "-1", "1e3", "1234567890", "%D9%A3", "", "%201"])
async def test_what_is_no_partition_number(site: Site, number: str):
    answer = await site.ask(f"/api/v1/topics/a?first_partition={number}")
    assert answer.status == 400
    assert answer.document["error"].endswith("is not a partition number")
    assert (await site.ask("/api/v1/topics/a?first_partition=123456789")).status == 200


async def test_a_topic_that_is_none(site: Site):
    answer = await site.ask("/api/v1/topics/none")
    assert (answer.status, answer.document) == (404, {"error": "there is no topic 'none'"})


async def test_a_data_loop_that_is_stuck_is_unavailable_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
):
    async def stuck(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(http_server, "call_on", stuck)
    async with served(monkeypatch) as site:
        for path in ("/healthz", "/readyz", "/metrics"):
            begun_s = asyncio.get_running_loop().time()
            answer = await site.ask(path)
            assert (answer.status, answer.body) == (503, b"the broker is busy\n")
            assert asyncio.get_running_loop().time() - begun_s == pytest.approx(5, abs=0.01)


class Handed:
    """Takes what is handed over to the data loop, and gives it back when asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        real = http_server.call_on

        async def call(loop: Any, function: Any, *arguments: Any) -> Any:
            turn = loop.create_future()
            self.waiting.append(turn)
            try:
                await turn
            finally:
                self.waiting.remove(turn)
            return await real(loop, function, *arguments)

        monkeypatch.setattr(http_server, "call_on", call)

    async def go_on(self) -> None:
        while self.waiting:
            for each in list(self.waiting):
                if not each.done():
                    each.set_result(None)
            await pass_time(1)


@pytest.mark.parametrize(("path", "most"), [("/metrics", 4), ("/healthz", 16)])
async def test_addresses_take_turns(monkeypatch: pytest.MonkeyPatch, path: str, most: int):
    handed = Handed(monkeypatch)
    async with served(monkeypatch) as site:
        greedy = [await site.client("10.0.0.1") for _ in range(10)]
        for each in greedy:
            each.get(path)
        await pass_time(10)
        assert len(handed.waiting) == 1, "one of each address"
        others = [await site.client(f"10.0.1.{number}") for number in range(18)]
        for each in others:
            each.get(path)
            await pass_time(1)
        assert len(handed.waiting) == most
        [turn, *_] = handed.waiting
        if path == "/healthz":
            turn.set_result(None)
            await pass_time(10)
            assert sum(bool(each.received) for each in greedy) == 1
        await handed.go_on()
        for each in (*greedy, *others):
            assert (await each.answer()).status == 200
        for each in (*greedy, *others):
            each.close()


async def test_probes_wait_for_no_page_and_pages_for_no_probe(monkeypatch: pytest.MonkeyPatch):
    handed = Handed(monkeypatch)
    async with served(monkeypatch) as site:
        scrapers = [await site.client(f"10.0.1.{number}") for number in range(6)]
        for each in scrapers:
            each.get("/metrics")
        await pass_time(10)
        assert len(handed.waiting) == 4
        probe = await site.client("10.0.1.0")
        probe.get("/healthz")
        await pass_time(10)
        assert len(handed.waiting) == 5
        handed.waiting[-1].set_result(None)
        assert (await probe.answer()).status == 200
        await handed.go_on()
        for each in (*scrapers, probe):
            each.close()


async def test_what_a_client_that_has_gone_asked_for_ends(monkeypatch: pytest.MonkeyPatch):
    handed = Handed(monkeypatch)
    async with served(monkeypatch) as site:
        clients = [await site.client() for _ in range(5)]
        for each in clients:
            each.get("/metrics")
        await pass_time(10)
        for each in clients:
            each.close()
        await pass_time(10)
        assert not handed.waiting
        again = await site.client()
        again.get("/healthz")
        await pass_time(10)
        assert len(handed.waiting) == 1
        await handed.go_on()
        assert (await again.answer()).status == 200
        again.close()


# -- start and end ---------------------------------------------------------------------------------


def listener() -> HttpListener:
    loop = asyncio.get_running_loop()
    made = config()
    authority = Authority(Authorizer, lambda: loop, MetadataImage)
    return HttpListener(
        lambda: None,
        server=lambda: None,
        registry=Registry(lambda: 0.0),
        is_ready=lambda: False,
        data_loop=loop,
        access=HttpAccess(HttpSecurity.of(made), authority),
        limits=HttpLimits.from_config(made),
        expirations=Expirations(ManualClock(), tuple, tuple, 30),
    )


async def test_it_ends_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    monkeypatch.setattr(http_server, "LoopThread", HereThread)
    made = listener()
    assert made.port == 0
    await made.start(HOST, 0)
    assert made.port > 1
    assert [
        each.getMessage() for each in caplog.records if each.name == "moldau.node.http.server"
    ] == [f"HTTP listener on {HOST}:{made.port}"]
    client = await Site(made).client()
    ended = []

    async def close() -> None:
        ended.append("access")

    monkeypatch.setattr(made.access, "close", close)
    await made.close()
    await client.closed()
    made._thread.is_running = True  # type: ignore[misc]
    await made.close()
    assert ended == ["access"]
    with pytest.raises(ConnectionRefusedError):
        await Site(made).client()


async def test_its_end_waits_for_pages_and_then_for_their_ends(
    monkeypatch: pytest.MonkeyPatch,
):
    handed = Handed(monkeypatch)
    async with served(monkeypatch) as site:
        client = await site.client()
        client.get("/healthz")
        await pass_time(10)
        begun_s = asyncio.get_running_loop().time()
        await site.listener.close()
        assert asyncio.get_running_loop().time() - begun_s == pytest.approx(4, abs=0.1)
        await client.closed()
    await pass_time(10)
    assert not handed.waiting


async def test_many_may_wait_to_be_accepted(monkeypatch: pytest.MonkeyPatch):
    asked = []

    async def listen(*_: object, **options: Any) -> Any:
        asked.append(options)
        raise OSError("not here")

    monkeypatch.setattr(SimulatedNetwork, "listen", listen)
    with pytest.raises(OSError, match="not here"):
        await listener()._serve(HOST, 0)
    assert asked == [{"backlog": 256, "handshakes": None}]


async def test_a_listener_that_is_not_up_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "LoopThread", HereThread)
    made = listener()

    async def serve(host: str, port: int) -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    monkeypatch.setattr(made, "_serve", serve)
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(OSError, match="the HTTP listener was not up within 60 s") as late:
        await made.start(HOST, 1234)
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(60)
    assert (late.value.errno, late.value.filename) == (errno.ETIMEDOUT, f"{HOST}:1234")
    assert not made._thread.is_running


async def test_an_address_that_is_taken_ends_the_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "LoopThread", HereThread)
    made = listener()

    async def serve(host: str, port: int) -> int:
        raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr(made, "_serve", serve)
    with pytest.raises(OSError, match="in use"):
        await made.start(HOST, 1234)
    assert not made._thread.is_running


async def test_a_start_that_is_called_off_serves_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "LoopThread", HereThread)
    made = listener()
    made._is_closing = True
    made.port = await made._serve(HOST, 0)
    with pytest.raises(ConnectionRefusedError):
        await Site(made).client()


async def test_a_page_that_is_made_takes_no_time_of_the_listener_s_loop(
    monkeypatch: pytest.MonkeyPatch,
):
    """It is made on a thread: probes are answered beside it."""
    loops = []

    def render(_: object) -> bytes:
        loops.append(asyncio._get_running_loop())
        return b""

    monkeypatch.setattr(metrics, "render", render)
    async with served(monkeypatch) as site:
        assert (await site.ask("/metrics")).status == 200
    assert loops == [None]
