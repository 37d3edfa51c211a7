"""What users get wrong: each one clear typed error, whose text says what to do."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from moldau.client import (
    Admin,
    Consumer,
    KafkaError,
    NewTopic,
    NoBrokerAvailable,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from moldau.client.errors import (
    BufferFull,
    ClientClosed,
    ConcurrentUse,
    ConfigurationError,
    InvalidGroupId,
    InvalidState,
    InvalidSubscription,
    InvalidTopic,
    InvalidTransactionState,
    RecordTooLarge,
    RequestTimeout,
    SerializationError,
    UnknownTopicOrPartition,
    WrongEventLoop,
)
from moldau.protocol import ApiKey
from tests.fake_broker import FakeCluster, Stall
from tests.unit.client.faults.harness import CONSUMER, MEMBER, PRODUCER, ends, partition


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(1, topics={"t": 2}) as running:
        yield running


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    async with Producer(cluster.bootstrap_servers, **PRODUCER) as running:
        yield running


@pytest.fixture
async def consumer(cluster: FakeCluster) -> AsyncIterator[Consumer]:
    async with Consumer(cluster.bootstrap_servers, **CONSUMER) as running:
        yield running


# -- settings -----------------------------------------------------------------------------------

MISSPELLED = [
    (Producer, {"linger_m": 5}, "linger_ms"),
    (Producer, {"config": {"compresion.type": "lz4"}}, "compression.type"),
    (Producer, {"config": {"max.inflight.requests.per.connection": 1}}, "max.in.flight"),
    (Consumer, {"groupid": "g"}, "group_id"),
    (Consumer, {"config": {"auto.offset.rest": "latest"}}, "auto.offset.reset"),
    (Admin, {"request_timeout": 5}, "request_timeout_ms"),
]


@pytest.mark.parametrize(("kind", "settings", "nearest"), MISSPELLED)
def test_an_unknown_setting_names_the_nearest(kind: Any, settings: Any, nearest: str):
    with pytest.raises(ConfigurationError, match=re.escape(nearest)):
        kind("localhost:9092", **settings)


WRONG_VALUES = [
    (Producer, {"acks": "some"}, "acks"),
    (Producer, {"compression_type": "rar"}, "zstd"),
    (Producer, {"linger_ms": -1}, "linger.ms"),
    (Producer, {"linger_ms": "soon"}, "linger.ms"),
    (Producer, {"batch_size": 1.5}, "batch.size"),
    (Producer, {"enable_idempotence": True, "acks": 1}, "acks"),
    (Producer, {"transactional_id": "x", "enable_idempotence": False}, "idempotence"),
    (Producer, {"delivery_timeout_ms": 1, "linger_ms": 5}, "delivery.timeout.ms"),
    (Producer, {"config": {"buffer.memory": "much"}}, "buffer.memory"),
    (Consumer, {"auto_offset_reset": "middle"}, "earliest"),
    (Consumer, {"isolation_level": "dirty"}, "read_committed"),
    (Consumer, {"max_poll_records": 0}, "max.poll.records"),
    (Consumer, {"group_id": "g", "group_protocol": "modern"}, "consumer"),
    (Consumer, {"security_protocol": "TLS"}, "SASL_SSL"),
    (Admin, {"retry_backoff_ms": "x"}, "retry.backoff.ms"),
]


@pytest.mark.parametrize(("kind", "settings", "hint"), WRONG_VALUES)
def test_a_value_that_is_not_allowed_says_what_is(kind: Any, settings: Any, hint: str):
    with pytest.raises(ConfigurationError, match=re.escape(hint)):
        kind("localhost:9092", **settings)


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
@pytest.mark.parametrize(
    "servers", ["", "host:notaport", "host:0", "host:70000", ":9092", [], "http://host:9092/", 9092]
)
def test_bootstrap_servers_that_are_none(kind: Any, servers: Any):
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        kind(servers)


# -- unreachable --------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2", "nowhere.invalid:1"])
async def test_unreachable_bootstrap_servers_are_one_error(servers: str):
    quick = {"default_api_timeout_ms": 300, "reconnect_backoff_ms": 10}
    named = servers.split(",")[0].split(":")[0]
    async with Admin(servers, **quick) as admin:
        with pytest.raises((NoBrokerAvailable, RequestTimeout), match=re.escape(named)):
            await ends(admin.list_topics(), "admin")
    producer = Producer(servers, max_block_ms=300)
    with pytest.raises(KafkaError, match=re.escape(named)):
        await ends(_start_and(producer, lambda: producer.send("t", b"v")), "producer")
    consumer = Consumer(servers, **quick)
    with pytest.raises(KafkaError, match=re.escape(named)):
        await ends(_start_and(consumer, lambda: consumer.end_offsets([partition(0)])), "consumer")


async def _start_and(client: Any, call: Callable[[], Awaitable[Any]]) -> None:
    async with client:
        await call()


# -- records ------------------------------------------------------------------------------------

WRONG_RECORDS = [
    ({"value": "text"}, SerializationError, "value_serializer"),
    ({"value": 5}, SerializationError, "value_serializer"),
    ({"value": {"a": 1}}, SerializationError, "value_serializer"),
    ({"value": b"v", "key": "text"}, SerializationError, "key_serializer"),
    ({"value": b"v", "headers": [("h", "text")]}, SerializationError, "header"),
    ({"value": b"v", "headers": [(b"h", b"v")]}, SerializationError, "header"),
    ({"value": b"v", "headers": [("only one",)]}, SerializationError, "header"),
    ({"value": b"v", "headers": 7}, SerializationError, "header"),
    ({"value": b"v", "partition": -1}, ValueError, "partition"),
    ({"value": b"v", "partition": "0"}, (TypeError, ValueError), "partition"),
    ({"value": b"v", "timestamp_ms": -5}, ValueError, "timestamp"),
    ({"value": b"v", "timestamp_ms": "now"}, (TypeError, ValueError), "timestamp"),
]


@pytest.mark.parametrize(("record", "kind", "hint"), WRONG_RECORDS)
async def test_a_record_of_wrong_types_is_refused_and_harms_no_other(
    producer: Producer, cluster: FakeCluster, record: Any, kind: Any, hint: str
):
    with pytest.raises(kind, match=hint):
        await ends(producer.send("t", **record), "send")
    with pytest.raises(kind, match=hint):
        producer.send_nowait("t", **record)
    await ends(producer.send("t", b"good"), "the next")
    assert cluster.values("t") == [b"good"]


@pytest.mark.parametrize("topic", ["", "no spaces", "a/b", ".", "..", "x" * 250, "ümlaut"])
async def test_topic_names_that_are_not_allowed(producer: Producer, topic: str):
    with pytest.raises(InvalidTopic, match="topic"):
        await ends(producer.send(topic, b"v"), "send")


@pytest.mark.parametrize("topic", [None, 5, b"t"])
async def test_topics_that_are_no_text(producer: Producer, topic: Any):
    with pytest.raises((InvalidTopic, TypeError, ValueError), match="topic"):
        await ends(producer.send(topic, b"v"), "send")


async def test_a_partition_that_is_not_there(cluster: FakeCluster):
    async with Producer(cluster.bootstrap_servers, **{**PRODUCER, "max_block_ms": 600}) as producer:
        with pytest.raises(KafkaError, match=r"t-7|partition 7"):
            await ends(producer.send("t", b"v", partition=7), "send")
        with pytest.raises(KafkaError, match="missing"):
            await ends(producer.send("missing", b"v"), "send")


async def test_records_that_are_too_large(cluster: FakeCluster):
    settings = {**PRODUCER, "max_request_size": 1000, "buffer_memory": 5000}
    async with Producer(cluster.bootstrap_servers, **settings) as producer:
        with pytest.raises(RecordTooLarge, match=r"max\.request\.size"):
            await ends(producer.send("t", bytes(1001)), "send")
        with pytest.raises(RecordTooLarge, match=r"max\.request\.size"):
            await ends(producer.send("t", b"v", key=bytes(2000)), "send")
        await ends(producer.send("t", bytes(800)), "what fits")


async def test_a_full_buffer_says_so_and_room_comes_back(cluster: FakeCluster):
    settings = {**PRODUCER, "buffer_memory": 40_000, "batch_size": 10_000, "max_block_ms": 500}
    async with Producer(cluster.bootstrap_servers, **settings) as producer:
        await ends(producer.partitions_for("t"), "metadata")
        await ends(producer.send("t", b"first"), "first")
        stalled = cluster.fault(ApiKey.PRODUCE, Stall(), times=None)
        deliveries = []

        def fill() -> None:
            for _ in range(20):
                deliveries.append(producer.send_nowait("t", bytes(5_000)))

        with pytest.raises(BufferFull, match=r"buffer\.memory"):
            fill()
        with pytest.raises(BufferFull, match=r"max\.block\.ms.*buffer\.memory"):
            await ends(producer.send("t", bytes(5_000)), "the wait for room")
        stalled.release()
        await ends(producer.wait_for_room(), "room")
        await ends(producer.flush(), "flush")
        assert all(delivery.done() for delivery in deliveries)
        assert len(cluster.values("t")) == 1 + len(deliveries)


async def test_a_failing_serializer_is_named(cluster: FakeCluster):
    def broken(value: Any) -> bytes:
        raise ZeroDivisionError("inside")

    async with Producer(cluster.bootstrap_servers, value_serializer=broken, **PRODUCER) as producer:
        with pytest.raises(SerializationError, match="value") as caught:
            await ends(producer.send("t", 1), "send")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


# -- state --------------------------------------------------------------------------------------

CLOSED_PRODUCER: list[Callable[[Producer], Any]] = [
    lambda p: p.send("t", b"v"),
    lambda p: p.send_nowait("t", b"v"),
    lambda p: p.flush(),
    lambda p: p.partitions_for("t"),
    lambda p: p.wait_for_room(),
    lambda p: p.begin_transaction(),
    lambda p: p.init_transactions(),
]
CLOSED_CONSUMER: list[Callable[[Consumer], Any]] = [
    lambda c: c.subscribe(["t"]),
    lambda c: c.assign([partition(0)]),
    lambda c: c.getone(),
    lambda c: c.getmany(),
    lambda c: c.seek(partition(0), 0),
    lambda c: c.position(partition(0)),
    lambda c: c.commit(),
    lambda c: c.committed([partition(0)]),
    lambda c: c.end_offsets([partition(0)]),
    lambda c: c.pause(partition(0)),
    lambda c: anext(aiter(c)),
]


async def _call(function: Callable[[Any], Any], client: Any) -> Any:
    result = function(client)
    return await result if isinstance(result, Awaitable) else result


async def test_every_call_of_a_closed_client_says_so(cluster: FakeCluster):
    producer = Producer(cluster.bootstrap_servers, **PRODUCER)
    async with producer:
        await ends(producer.send("t", b"v"), "send")
    consumer = Consumer(cluster.bootstrap_servers, **MEMBER)
    async with consumer:
        consumer.assign([partition(0)])
    admin = Admin(cluster.bootstrap_servers)
    async with admin:
        await admin.list_topics()
    silent = []
    calls = [(producer, each) for each in CLOSED_PRODUCER]
    calls += [(consumer, each) for each in CLOSED_CONSUMER]
    calls += [(admin, lambda a: a.list_topics())]
    for number, (client, function) in enumerate(calls):
        try:
            await ends(_call(function, client), f"call {number}")
            silent.append(f"{number}: nothing raised")
        except ClientClosed as error:
            if "closed" not in str(error):
                silent.append(f"{number}: {error}")
    assert silent == []
    await ends(producer.close(), "closing again")
    await ends(consumer.close(), "closing again")
    await ends(admin.close(), "closing again")


async def test_closing_ends_calls_that_wait(cluster: FakeCluster):
    consumer = Consumer(cluster.bootstrap_servers, **CONSUMER)
    async with consumer:
        consumer.assign([partition(0)])
        polling = asyncio.ensure_future(consumer.getone())
        await cluster.until(lambda: cluster.recorder.count(ApiKey.FETCH) >= 1)
        await ends(consumer.close(), "close")
        with pytest.raises(ClientClosed):
            await ends(polling, "the poll")


async def test_consumer_calls_that_make_no_sense(consumer: Consumer):
    with pytest.raises(InvalidState, match=r"subscribe|assign"):
        await ends(consumer.getone(), "nothing assigned")
    with pytest.raises(InvalidGroupId, match=r"group\.id"):
        await ends(_subscribe_and_poll(consumer), "no group")
    consumer.unsubscribe()
    with pytest.raises(InvalidGroupId, match=r"group\.id"):
        await ends(consumer.commit(), "no group")
    consumer.assign([partition(0)])
    with pytest.raises(InvalidState, match="t-1"):
        consumer.seek(partition(1), 0)
    with pytest.raises(InvalidState, match="t-1"):
        await ends(consumer.position(partition(1)), "not assigned")
    with pytest.raises(ValueError, match="offset"):
        consumer.seek(partition(0), -1)


async def test_the_kinds_of_subscription_exclude_each_other(cluster: FakeCluster):
    async with Consumer(cluster.bootstrap_servers, **MEMBER) as consumer:
        consumer.assign([partition(0)])
        with pytest.raises(InvalidSubscription, match="unsubscribe"):
            consumer.subscribe(["t"])
        consumer.unsubscribe()
        consumer.subscribe(["t"])
        with pytest.raises(InvalidSubscription, match="unsubscribe"):
            consumer.assign([partition(0)])


async def _subscribe_and_poll(consumer: Consumer) -> None:
    """Either may be where it is reported."""
    consumer.subscribe(["t"])
    await consumer.getone()


BAD_SUBSCRIPTIONS: list[Callable[[Consumer], Any]] = [
    lambda c: c.subscribe("t"),
    lambda c: c.subscribe([5]),
    lambda c: c.subscribe([""]),
    lambda c: c.subscribe(["t"], pattern="t.*"),
    lambda c: c.subscribe(),
    lambda c: c.subscribe(pattern="("),
    lambda c: c.assign(["t"]),
    lambda c: c.assign([TopicPartition("t", -1)]),
]


@pytest.mark.parametrize("call", range(len(BAD_SUBSCRIPTIONS)))
async def test_subscriptions_that_make_no_sense(cluster: FakeCluster, call: int):
    async with Consumer(cluster.bootstrap_servers, **MEMBER) as consumer:
        with pytest.raises((TypeError, ValueError, KafkaError)) as caught:
            BAD_SUBSCRIPTIONS[call](consumer)
        assert str(caught.value)


async def test_offsets_that_make_no_sense(cluster: FakeCluster):
    async with Consumer(cluster.bootstrap_servers, **MEMBER) as consumer:
        consumer.assign([partition(0)])
        wrong: Any
        for wrong in ({partition(0): -1}, {partition(0): "1"}, {"t": OffsetAndMetadata(3)}, [1]):
            with pytest.raises((TypeError, ValueError, KafkaError)):
                await ends(consumer.commit(wrong), "commit")
        with pytest.raises(ValueError, match="-5"):
            OffsetAndMetadata(-5)
        assert cluster.groups.committed("g", "t") is None


async def test_two_polls_at_once_are_refused(cluster: FakeCluster, consumer: Consumer):
    consumer.assign([partition(0)])
    polling = asyncio.ensure_future(consumer.getone())
    await cluster.until(lambda: cluster.recorder.count(ApiKey.FETCH) >= 1)
    with pytest.raises(ConcurrentUse, match="poll"):
        await ends(consumer.getone(), "the second poll")
    cluster.fill("t", [b"a"])
    assert (await ends(polling, "the first poll")).value == b"a"


async def test_transactional_calls_out_of_turn(cluster: FakeCluster, producer: Producer):
    with pytest.raises(InvalidTransactionState, match=r"transactional\.id"):
        producer.begin_transaction()
    settings = {**PRODUCER, "transactional_id": "x"}
    async with Producer(cluster.bootstrap_servers, **settings) as transactional:
        with pytest.raises(InvalidTransactionState, match="transaction"):
            await ends(transactional.send("t", b"outside"), "outside")
        with pytest.raises(InvalidTransactionState):
            await ends(transactional.commit_transaction(), "commit")
        await ends(transactional.init_transactions(), "init")
        transactional.begin_transaction()
        with pytest.raises(InvalidTransactionState):
            transactional.begin_transaction()
        await ends(transactional.abort_transaction(), "abort")
    assert cluster.values("t") == []


# -- event loops --------------------------------------------------------------------------------


def _elsewhere(call: Callable[[], Awaitable[Any]]) -> BaseException | None:
    """Run a call on another thread's loop; what it raised."""
    raised: list[BaseException] = []

    async def run() -> None:
        async with asyncio.timeout(10):
            await call()

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join(15)
    return raised[0] if raised else None


async def test_a_client_belongs_to_its_event_loop(
    cluster: FakeCluster, producer: Producer, consumer: Consumer
):
    await ends(producer.send("t", b"here", partition=0), "here")
    consumer.assign([partition(0)])
    async with Admin(cluster.bootstrap_servers) as admin:
        await ends(admin.list_topics(), "here")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: producer.send("t", b"elsewhere"),
            producer.flush,
            consumer.getone,
            lambda: consumer.end_offsets([partition(0)]),
            admin.list_topics,
        ]
        for number, call in enumerate(calls):
            error = _elsewhere(call)
            assert isinstance(error, WrongEventLoop), f"call {number}: {error!r}"
            assert "moldau.client.sync" in str(error)
    assert cluster.values("t") == [b"here"]
    assert (await ends(consumer.getone(), "still usable")).value == b"here"


async def test_a_client_made_without_a_loop_is_started_by_its_first_use(cluster: FakeCluster):
    made = await asyncio.to_thread(
        lambda: Producer(cluster.bootstrap_servers, **PRODUCER, ports=cluster.ports)
    )
    async with made:
        await ends(made.send("t", b"v", partition=0), "send")
    assert cluster.values("t") == [b"v"]


# -- admin --------------------------------------------------------------------------------------


async def test_admin_calls_about_what_is_not_there(cluster: FakeCluster):
    async with Admin(cluster.bootstrap_servers) as admin:
        with pytest.raises(UnknownTopicOrPartition, match="missing"):
            await ends(admin.describe_topics(["missing"]), "describe")
        with pytest.raises(InvalidTopic, match="no spaces"):
            await ends(admin.create_topics([NewTopic("no spaces", 1, 1)]), "create")
        with pytest.raises(KafkaError, match="t"):
            await ends(admin.create_topics([NewTopic("t", 1, 1)]), "create")
