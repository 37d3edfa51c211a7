"""What clients say, and when they give up, where no broker answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from moldau.client import (
    Admin,
    BufferFull,
    ClientClosed,
    Consumer,
    DeliveryTimeout,
    KafkaError,
    NoBrokerAvailable,
    Producer,
    RequestTimeout,
    TopicPartition,
    UnknownTopicOrPartition,
    sync,
)
from moldau.client.cluster import cluster_client, metadata_updates
from moldau.client.cluster.faults import describe_fault
from moldau.client.cluster.reachability import RecurringWarning
from moldau.client.consumer import positions
from moldau.protocol import ApiKey, ErrorCode
from moldau.runtime.connection import ConnectionLost, NothingHeard
from tests.fake_broker import Change, FakeCluster, Settings
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until, until_async
from tests.unit.client.faults.harness import CONSUMER, MEMBER, PRODUCER, ends, port_saying

NOBODY = "127.0.0.1:1"
WHY = "127.0.0.1:1: connection refused"
LOGGER = "moldau.client.cluster.reachability"
PARTITION = TopicPartition("t", 0)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == LOGGER and each.levelno == logging.WARNING
    ]


async def warned(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async def holds() -> bool:
        return any(text in each for each in warnings_of(caplog))

    await until_async(holds, what=f"a warning about {text}", deadline_s=20)


# -- warnings that recur ------------------------------------------------------------------------


def test_what_lasts_is_said_at_growing_intervals(caplog: pytest.LogCaptureFixture):
    clock = ManualClock(monotonic_ms=0)
    warning = RecurringWarning(clock)
    said_at_s: list[float] = []
    for _ in range(20 * 60 * 2):
        warning.note("it lasts")
        if warnings_of(caplog):
            said_at_s.append(clock.monotonic_ms() / 1000)
            caplog.clear()
        clock.advance(500)
    assert said_at_s == [0, 10, 30, 70, 150, 310, 610, 910]


def test_the_end_is_said_once_and_the_next_time_keeps_the_first_pause(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, LOGGER)
    clock = ManualClock(monotonic_ms=0)
    warning = RecurringWarning(clock)
    warning.end("never began")
    warning.note("one")
    for _ in range(3):
        warning.end("over")
        assert warning.text == ""
        clock.advance(3_000)
        warning.note("too early")
        assert warning.text == "too early"
    warning.end("not told, so no end either")
    clock.advance(1_000)
    warning.note("two")
    assert [each.getMessage() for each in caplog.records] == ["one", "over", "two"]


def test_flapping_is_not_said_more_often_than_every_ten_seconds(caplog: pytest.LogCaptureFixture):
    seed = 20_251
    random = Random(seed)
    clock = ManualClock(monotonic_ms=0)
    warning = RecurringWarning(clock)
    for _ in range(2_000):
        warning.note("down")
        clock.advance(random.randrange(2_000))
        warning.end("up")
        clock.advance(random.randrange(2_000))
    most = clock.monotonic_ms() / 10_000 + 1
    assert most / 2 < len(warnings_of(caplog)) <= most, seed


def test_what_may_pass_is_said_when_it_has_not(caplog: pytest.LogCaptureFixture):
    clock = ManualClock(monotonic_ms=0)
    warning = RecurringWarning(clock, after_ms=2_000)
    warning.note("begins")
    clock.advance(1_999)
    warning.note("still")
    clock.advance(60_000)
    warning.note("something new")
    assert warnings_of(caplog) == []
    clock.advance(2_000)
    warning.note("it lasts")
    assert warnings_of(caplog) == ["it lasts"]


# -- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 1)"
            ),
            "connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "the host name does not resolve"),
        (TimeoutError(), "no answer in time"),
        (None, "no answer"),
        (ConnectionLost("the connection to a:1 was lost"), "the connection to a:1 was lost"),
        (
            NothingHeard("the connection to a:1 was lost"),
            "the connection to a:1 was lost: it has said nothing (is it TLS, or no broker?)",
        ),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_faults_in_words(fault: BaseException | None, words: str):
    assert describe_fault(fault) == words


# -- every client says it once ------------------------------------------------------------------


async def test_a_consumer(caplog: pytest.LogCaptureFixture):
    async with Consumer(NOBODY) as consumer:
        consumer.assign([PARTITION])
        assert await ends(consumer.getmany(timeout_ms=300), "getmany") == {}
        await warned(caplog, WHY)
    assert warnings_of(caplog) == [f"no broker can be reached: {WHY}"]


async def test_a_member_of_a_group(caplog: pytest.LogCaptureFixture):
    async with Consumer(NOBODY, group_id="g") as consumer:
        consumer.subscribe(["t"])
        assert await ends(consumer.getmany(timeout_ms=300), "getmany") == {}
        await warned(caplog, WHY)
    assert warnings_of(caplog) == [f"no broker can be reached: {WHY}"]


async def test_a_producer(caplog: pytest.LogCaptureFixture):
    async with Producer(NOBODY, max_block_ms=600) as producer:
        with pytest.raises(RequestTimeout, match=WHY):
            await ends(producer.send("t", b"v"), "send")
    assert warnings_of(caplog) == [f"no broker can be reached: {WHY}"]


async def test_an_admin(caplog: pytest.LogCaptureFixture):
    async with Admin(NOBODY) as admin:
        with pytest.raises(NoBrokerAvailable, match=f"list topics: .*{WHY}"):
            await ends(admin.list_topics(), "list_topics")
    assert warnings_of(caplog) == [f"no broker can be reached: {WHY}"]


@pytest.mark.real
def test_blocking_clients(caplog: pytest.LogCaptureFixture):
    with sync.Consumer(NOBODY) as consumer:
        consumer.assign([PARTITION])
        assert consumer.getmany(timeout_ms=300) == {}
        until(lambda: warnings_of(caplog), what="the consumer's warning")
    with sync.Admin(NOBODY) as admin, pytest.raises(NoBrokerAvailable, match=WHY):
        admin.list_topics()
    with sync.Producer(NOBODY) as producer:
        delivery = producer.send_nowait("t", b"v")
    with pytest.raises(ClientClosed, match=WHY):
        delivery.result()
    assert warnings_of(caplog) == [f"no broker can be reached: {WHY}"] * 3


async def test_the_end_of_an_outage_is_said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, LOGGER)
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            await ends(producer.send("t", b"before"), "before")
            await cluster.stop_node(0)
            sending = asyncio.ensure_future(producer.send("t", b"during"))
            await warned(caplog, f"no broker can be reached: {cluster.bootstrap_servers}: ")
            await cluster.start_node(0)
            await ends(sending, "during")
        assert cluster.values("t") == [b"before", b"during"]
    assert caplog.messages[-1] == f"the cluster is reached, at {cluster.bootstrap_servers}"


async def test_one_broker_that_cannot_be_reached_among_others(caplog: pytest.LogCaptureFixture):
    """As when it advertises a name that means nothing here."""

    def advertise_nonsense(response: Any) -> None:
        for broker in response.brokers:
            if broker.node_id == 1:
                broker.port = 1

    async with FakeCluster(2, topics={"t": 2}) as cluster:
        cluster.move_leader("t", 0, 1)
        cluster.fault(ApiKey.METADATA, Change(advertise_nonsense), times=None)
        servers = cluster.bootstrap_servers.split(",")[0]
        settings = {**PRODUCER, "request_timeout_ms": 600, "delivery_timeout_ms": 700}
        async with Producer(servers, **settings) as producer:
            with pytest.raises(DeliveryTimeout, match=WHY):
                await ends(producer.send("t", b"v", partition=0), "send")
    assert warnings_of(caplog) == [f"a broker cannot be reached: {WHY}"]


# -- when admin calls give up -------------------------------------------------------------------


async def test_a_name_that_does_not_resolve():
    async with Admin(f"nowhere.invalid:9092,{NOBODY}") as admin:
        with pytest.raises(NoBrokerAvailable) as raised:
            await ends(admin.list_topics(), "list_topics")
    assert "nowhere.invalid:9092: the host name does not resolve; " in str(raised.value)
    assert not raised.value.retriable


@pytest.mark.parametrize("call", ["list_topics", "describe_cluster", "list_groups"])
async def test_a_silent_port_takes_the_time_of_a_request(call: str):
    async with port_saying(None) as address:
        async with Admin(address, request_timeout_ms=250) as admin:
            with pytest.raises(RequestTimeout, match=f"not within 250 ms: .*{address}: no answer"):
                await ends(getattr(admin, call)(), call)
            with pytest.raises(RequestTimeout, match="not within 100 ms"):
                await ends(getattr(admin, call)(timeout_ms=100), call)
        async with Admin(address, default_api_timeout_ms=150) as admin:
            with pytest.raises(RequestTimeout, match="not within 150 ms"):
                await ends(getattr(admin, call)(), call)


async def test_a_silent_port_does_not_hide_the_next_one():
    async with port_saying(None) as address, FakeCluster(1, topics={"t": 1}) as cluster:
        servers = f"{address},{cluster.bootstrap_servers}"
        async with Admin(servers, request_timeout_ms=1_500) as admin:
            assert await ends(admin.list_topics(), "list_topics") == ["t"]


async def admin_outlasts(caplog: pytest.LogCaptureFixture, admin: Admin, cluster: Any) -> None:
    """A call that begins while no broker listens, and a broker that then starts."""
    async with admin:
        calling = asyncio.ensure_future(admin.list_topics())
        await warned(caplog, "connection refused")
        [address] = admin._client._connections._failures

        async def has_tried_again() -> bool:
            return calling.done() or admin._client._connections._failures[address][0] > 2

        await until_async(has_tried_again, what="another try", deadline_s=20)
        assert not calling.done()
        await cluster.start_node(0)
        assert await ends(calling, "list_topics") == ["t"]


async def test_a_broker_that_starts_is_waited_for(caplog: pytest.LogCaptureFixture):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        await cluster.stop_node(0)
        await admin_outlasts(caplog, Admin(cluster.bootstrap_servers), cluster)


async def test_with_retries_an_admin_does_not_give_up_early(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster_client, "GIVE_UP_MS", 0)
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        await cluster.stop_node(0)
        async with Admin(cluster.bootstrap_servers) as admin:
            with pytest.raises(NoBrokerAvailable):
                await admin.list_topics()
        caplog.clear()
        await admin_outlasts(caplog, Admin(cluster.bootstrap_servers, retries=9), cluster)


async def test_an_admin_that_has_reached_its_cluster_lives_through_a_restart(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster_client, "GIVE_UP_MS", 0)
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        admin = Admin(cluster.bootstrap_servers)
        assert await ends(admin.list_topics(), "list_topics") == ["t"]
        await cluster.stop_node(0)
        await admin_outlasts(caplog, admin, cluster)


def test_a_call_has_at_least_the_time_of_a_request():
    assert Admin(NOBODY, request_timeout_ms=90_000)._client.config.default_api_timeout_ms == 90_000
    assert Admin(NOBODY, request_timeout_ms=9)._client.config.default_api_timeout_ms == 60_000
    given = Admin(NOBODY, default_api_timeout_ms=7)._client.config
    assert given.default_api_timeout_ms == 7


# -- closing ------------------------------------------------------------------------------------


async def test_closing_after_a_cancelled_send(caplog: pytest.LogCaptureFixture):
    told: list[Exception | None] = []
    async with Producer(NOBODY) as producer:
        sending = asyncio.ensure_future(producer.send("t", b"v"))
        producer.send_nowait("t", b"w", on_delivery=lambda _, error: told.append(error))
        await warned(caplog, WHY)
        sending.cancel()
        await ends(producer.close(), "close")
    assert [type(error) for error in told] == [ClientClosed]
    assert WHY in str(told[0])
    assert any("records are lost" in each and WHY in each for each in caplog.messages)


@pytest.mark.parametrize("settings", [{}, {"transactional_id": "id"}, {"acks": "1"}])
async def test_closing_without_records(settings: dict[str, Any], caplog: pytest.LogCaptureFixture):
    async with Producer(NOBODY, **settings) as producer:
        if "transactional_id" in settings:
            beginning = asyncio.ensure_future(producer.init_transactions())
            await warned(caplog, WHY)
            await ends(producer.close(), "close")
            with pytest.raises(KafkaError):
                await ends(beginning, "init_transactions")
        await ends(producer.close(), "close")


async def test_closing_where_a_port_is_silent():
    async with port_saying(None) as address:
        settings = {"socket_connection_setup_timeout_ms": 200}
        async with Producer(address, **settings) as producer:
            delivery = producer.send_nowait("t", b"v")
            await ends(producer.close(), "close")
    assert f"{address}: no answer" in str(delivery.exception())


async def test_closing_delivers_when_the_cluster_comes_up(caplog: pytest.LogCaptureFixture):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        await cluster.stop_node(0)
        producer = Producer(cluster.bootstrap_servers, **PRODUCER)
        async with producer:
            delivery = producer.send_nowait("t", b"v")
            closing = asyncio.ensure_future(producer.close())
            await warned(caplog, "connection refused")
            await cluster.start_node(0)
            await ends(closing, "close")
        assert delivery.result().offset == 0
        assert cluster.values("t") == [b"v"]


async def test_closing_delivers_after_an_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Who has been reached may come back: the records' own time limits count."""
    monkeypatch.setattr(cluster_client, "GIVE_UP_MS", 0)
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            await ends(producer.send("t", b"before"), "before")
            await cluster.stop_node(0)
            delivery = producer.send_nowait("t", b"during")
            closing = asyncio.ensure_future(producer.close())
            await warned(caplog, "connection refused")
            await cluster.start_node(0)
            await ends(closing, "close")
        assert delivery.result().offset == 1


@pytest.mark.real
def test_a_blocking_producer_whose_memory_is_full_closes(monkeypatch: pytest.MonkeyPatch):
    """What lies between the threads cannot be delivered either."""
    monkeypatch.setattr(cluster_client, "GIVE_UP_MS", 0)
    told: list[Exception | None] = []
    # Room for four records in the producer, and for one on the way there.
    with sync.Producer(NOBODY, buffer_memory=3_000) as producer:
        while producer._handover.has_room or not producer._handover._stalled:
            with contextlib.suppress(BufferFull):
                producer.send_nowait("t", bytes(512), on_delivery=lambda _, e: told.append(e))
        closing = threading.Thread(target=producer.close)
        closing.start()
        closing.join(20)
        assert not closing.is_alive(), "close hangs"
    assert len(told) > 2
    assert all(isinstance(error, ClientClosed) for error in told)


# -- coordinators -------------------------------------------------------------------------------

REASON = "__consumer_offsets cannot be created: 1 broker"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCluster], None]:
    """Have a cluster answer that there is no coordinator."""
    monkeypatch.setattr(cluster_client, "MISSING_MS", 0)

    def change(response: Any) -> None:
        for each in response.coordinators:
            each.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            each.error_message = REASON
            each.node_id = -1

    def install(cluster: FakeCluster) -> None:
        cluster.fault(ApiKey.FIND_COORDINATOR, Change(change), times=None)

    return install


async def test_a_missing_coordinator_is_said_with_the_brokers_reason(
    missing: Callable[[FakeCluster], None], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, LOGGER)
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        missing(cluster)
        async with Consumer(cluster.bootstrap_servers, **MEMBER) as consumer:
            consumer.subscribe(["t"])
            assert await ends(consumer.getmany(timeout_ms=200), "getmany") == {}
            await warned(caplog, REASON)
            assert len(warnings_of(caplog)) == 1
            assert f"coordinator of g: COORDINATOR_NOT_AVAILABLE: {REASON}" in caplog.text
            cluster.faults.clear()
            cluster.fill("t", [b"v"])
            while not await ends(consumer.getmany(timeout_ms=1_000), "getmany"):
                pass
    assert caplog.messages[-1] == "the coordinator is found"


async def test_a_transaction_without_a_coordinator(missing: Callable[[FakeCluster], None]):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        missing(cluster)
        settings = {**PRODUCER, "max_block_ms": 800, "transactional_id": "id"}
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            with pytest.raises(RequestTimeout, match=REASON):
                await ends(producer.init_transactions(), "init_transactions")


async def test_offsets_without_a_coordinator(missing: Callable[[FakeCluster], None]):
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        missing(cluster)
        settings = {**CONSUMER, "default_api_timeout_ms": 800}
        async with Consumer(cluster.bootstrap_servers, group_id="g", **settings) as consumer:
            with pytest.raises(KafkaError, match=REASON):
                await ends(consumer.committed([PARTITION]), "committed")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing topic or partition is said without a pause."""
    monkeypatch.setattr(metadata_updates, "MISSING_MS", 0)
    monkeypatch.setattr(positions, "MISSING_MS", 0)


@pytest.mark.usefixtures("at_once")
async def test_a_send_to_a_topic_that_does_not_exist_says_so(caplog: pytest.LogCaptureFixture):
    async with (
        FakeCluster(
            1, topics={"flights": 1}, settings=Settings(auto_create_topics=False)
        ) as cluster,
        Producer(cluster.bootstrap_servers, **{**PRODUCER, "max_block_ms": 600}) as producer,
    ):
        await producer.send("flights", b"v")
        with pytest.raises(UnknownTopicOrPartition, match=r"the topic does not exist.*flights"):
            await ends(producer.send("flihgts", b"v"), "send")
        assert warnings_of(caplog) == [
            "topic flihgts does not exist (there is flights); the client asks again"
        ]
        with pytest.raises(UnknownTopicOrPartition, match="1 partitions"):
            await ends(producer.send("flights", b"v", partition=7), "send")


@pytest.mark.usefixtures("at_once")
async def test_a_send_without_a_leader_says_so(caplog: pytest.LogCaptureFixture):
    def lose_leader(response: Any) -> None:
        for topic in response.topics:
            for each in topic.partitions:
                each.leader_id, each.error_code = -1, ErrorCode.LEADER_NOT_AVAILABLE

    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fault(ApiKey.METADATA, Change(lose_leader), times=None)
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            sent = asyncio.ensure_future(producer.send("t", b"v"))
            await warned(caplog, "topic t has no leader for partition 0: LEADER_NOT_AVAILABLE")
            cluster.faults.clear()
            assert (await ends(sent, "send")).offset == 0


@pytest.mark.usefixtures("at_once")
async def test_a_cluster_without_brokers_says_so(caplog: pytest.LogCaptureFixture):
    """The only one that answers is not registered any more."""
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        lost = Change(lambda response: response.brokers.clear())
        cluster.fault(ApiKey.METADATA, lost, times=None)
        async with Producer(cluster.bootstrap_servers, **PRODUCER) as producer:
            sent = asyncio.ensure_future(producer.send("t", b"v"))
            await warned(caplog, "the broker that was asked knows of no brokers in the cluster")
            cluster.faults.clear()
            assert (await ends(sent, "send")).offset == 0


@pytest.mark.usefixtures("at_once")
async def test_a_consumer_of_what_does_not_exist_says_so(caplog: pytest.LogCaptureFixture):
    async with FakeCluster(1, topics={"t": 2}) as cluster:
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([TopicPartition("nothing", 0)])
            await ends(consumer.getmany(timeout_ms=200), "getmany")
            await warned(caplog, "topic nothing does not exist")
            consumer.assign([TopicPartition("t", 5)])
            await ends(consumer.getmany(timeout_ms=200), "getmany")
            await warned(caplog, "partition t-5 does not exist: the topic has 2 partitions")
        async with Consumer(cluster.bootstrap_servers, **MEMBER) as member:
            member.subscribe(["absent"])
            await ends(member.getmany(timeout_ms=200), "getmany")
            await warned(caplog, "topic absent does not exist")
    assert not [each for each in warnings_of(caplog) if "does not exist" not in each]
