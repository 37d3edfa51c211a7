"""What the blocking producer sends, and its transactions, interrupted anywhere."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.client import (
    BufferFull,
    ClientClosed,
    InvalidState,
    KafkaError,
    RecordTooLarge,
    SerializationError,
    TopicPartition,
    TransactionAborted,
)
from moldau.client.sync import Consumer, Producer
from moldau.protocol import ApiKey
from tests.fake_broker import FakeCluster, Stall, ThreadedCluster
from tests.unit.client.faults.harness import CONSUMER, PRODUCER
from tests.unit.client.sync.interruptions import interrupted_at

pytestmark = pytest.mark.real

FUNCTIONS = ("__init__", "__enter__", "__exit__", "_call", "call", "run", "post", "transaction")


@pytest.mark.timeout(120)
def test_an_interruption_at_any_place_of_a_transactions_block_ends_the_transaction():
    """It is committed or aborted as a whole; the next one is begun as if nothing had been."""
    expected = []
    undecided = 0
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Producer(threaded.cluster.bootstrap_servers, transactional_id="id", **PRODUCER) as producer,
    ):
        place = 0
        while True:
            place += 1
            mine = b"interrupted %d" % place
            was_interrupted = False
            with interrupted_at(place, FUNCTIONS) as passed:
                try:
                    with producer.transaction():
                        producer.send_nowait("t", mine)
                except KeyboardInterrupt:
                    was_interrupted = True
            with producer.transaction():
                producer.send_nowait("t", b"after %d" % place)
            committed = threaded.call(lambda cluster: cluster.values("t", committed_only=True))
            if mine in committed:
                expected.append(mine)
                undecided += was_interrupted
            else:
                assert was_interrupted
            expected.append(b"after %d" % place)
            assert committed == expected, passed[-1]
            if not was_interrupted:
                break
    assert place > 40
    assert undecided > 0, "an interruption behind the commit comes too late"


def test_a_block_that_was_left_does_not_end_a_later_transaction():
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Producer(threaded.cluster.bootstrap_servers, transactional_id="id", **PRODUCER) as producer,
    ):
        left = producer.transaction()
        left.__enter__()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_nowait("t", b"kept")
        del left
        producer.commit_transaction()
        assert threaded.call(lambda cluster: cluster.values("t", committed_only=True)) == [b"kept"]


def test_records_have_the_time_of_their_sending():
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer,
    ):
        began_ms = time.time_ns() // 1_000_000
        producer.send_nowait("t", b"plain")
        producer.send_nowait("t", b"with a header", headers=[("h", b"1")])
        producer.flush()
        ended_ms = time.time_ns() // 1_000_000
        records = threaded.call(lambda cluster: cluster.records("t", 0))
        assert [record.value for record in records] == [b"plain", b"with a header"]
        assert all(began_ms <= record.timestamp_ms <= ended_ms for record in records)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, (b"k", b"v")),
        ({"key_serializer": bytes.upper}, (b"K", b"v")),
        ({"value_serializer": bytes.upper}, (b"k", b"V")),
        ({"key_serializer": bytes.upper, "value_serializer": bytes.upper}, (b"K", b"V")),
    ],
)
def test_serializers_get_bytes_too(given: dict[str, Any], stored: tuple[bytes, bytes]):
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Producer(threaded.cluster.bootstrap_servers, **PRODUCER, **given) as producer,
    ):
        producer.send_nowait("t", b"v", key=b"k")
        producer.flush()
        records = threaded.call(lambda cluster: cluster.records("t", 0))
        assert [(record.key, record.value) for record in records] == [stored]


DEADLINE_S = 60.0
BUFFER_MEMORY = 64 * 1024
NARROW = {**PRODUCER, "buffer_memory": BUFFER_MEMORY, "max_block_ms": 500}


def fill(producer: Producer, told: list[Any]) -> int:
    """Send until there is no room for more; how many bytes of values that were."""
    sent_bytes = 0
    while True:
        try:
            producer.send_nowait("t", bytes(1_000), on_delivery=lambda *each: told.append(each))
            sent_bytes += 1_000
        except BufferFull:
            try:
                producer.wait_for_room()
            except BufferFull:
                return sent_bytes


def test_what_waits_in_both_threads_is_no_more_than_buffer_memory():
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
        with Producer(threaded.cluster.bootstrap_servers, **NARROW) as producer:
            told: list[Any] = []
            sent_bytes = fill(producer, told)
            assert BUFFER_MEMORY / 2 < sent_bytes <= BUFFER_MEMORY
            threaded.call(lambda _: fault.release())
            producer.flush()
            assert len(told) == sent_bytes // 1_000


@pytest.mark.parametrize("by_call", [False, True])
def test_records_that_had_no_room_end_with_their_transaction(by_call: bool):
    """The next transaction must not take them in."""
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
        told: list[Any] = []
        settings = {**NARROW, "max_block_ms": 1_000}  # also for the end of the block
        with Producer(
            threaded.cluster.bootstrap_servers, transactional_id="id", **settings
        ) as producer:
            producer.init_transactions()
            leaving = producer.transaction()
            producer.begin_transaction() if by_call else leaving.__enter__()
            sent_bytes = fill(producer, told)
            threading.Timer(0.2, threaded.call, (lambda _: fault.release(),)).start()
            if by_call:
                producer.abort_transaction()
            else:
                leaving.__exit__(ValueError, ValueError("the application's"), None)
            with producer.transaction():
                producer.send_nowait("t", b"next")
            assert len(told) == sent_bytes // 1_000
            assert {type(error) for _, error in told} == {type(None), TransactionAborted}
        committed = threaded.call(lambda cluster: cluster.values("t", committed_only=True))
        assert committed == [b"next"]


def test_what_is_no_bytes_object_is_copied_when_it_is_sent():
    """Its owner may use it again while the record waits."""
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        fault = threaded.call(lambda cluster: cluster.fault(ApiKey.METADATA, Stall()))
        with Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer:
            parts = [bytearray(b"sent") for _ in range(4)]
            producer.send_nowait("t", parts[0])
            producer.send_nowait("t", b"v", key=parts[1])
            producer.send_nowait("t", parts[2], key=b"k", headers={"h": parts[3]})
            for each in parts:
                each[:] = b"used"
            threaded.call(lambda _: fault.release())
            producer.flush()
        assert stored(threaded) == [
            (None, b"sent", ()),
            (b"sent", b"v", ()),
            (b"k", b"sent", (("h", b"sent"),)),
        ]


def test_a_producer_that_is_closed_sends_what_is_left_and_takes_no_more():
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        producer = Producer(threaded.cluster.bootstrap_servers, **PRODUCER)
        producer.send_nowait("t", b"left")
        producer.close(timeout_ms=15_000)
        producer.close()
        assert threaded.call(lambda cluster: cluster.values("t")) == [b"left"]
        with pytest.raises(ClientClosed):
            producer.send_nowait("t", b"late")
        with pytest.raises(ClientClosed):
            producer.flush()


def test_offsets_are_a_consumers_or_given_with_their_group():
    names = [TopicPartition("in", index) for index in range(2)]
    with ThreadedCluster(lambda: FakeCluster(1, topics={"in": 2, "out": 1})) as threaded:
        threaded.call(lambda cluster: cluster.fill("in", [b"a", b"b"]))
        servers = threaded.cluster.bootstrap_servers
        with (
            Consumer(servers, group_id="mine", enable_auto_commit=False, **CONSUMER) as consumer,
            Producer(servers, transactional_id="id", **PRODUCER) as producer,
        ):
            consumer.assign(names[:1])
            assert len(next(iter(consumer.getmany(timeout_ms=15_000).values()))) == 2
            with producer.transaction():
                producer.send_offsets(consumer)
                producer.send_offsets({names[1]: 7}, "others")
            assert consumer.committed(names[:1])[names[0]].offset == 2
            consumer.unsubscribe()
        with Consumer(servers, group_id="others", **CONSUMER) as consumer:
            assert consumer.committed(names[1:])[names[1]].offset == 7


@pytest.fixture
def threaded() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 2})) as running:
        yield running


def stored(threaded: ThreadedCluster, partition: int = 0) -> list[tuple[Any, ...]]:
    """Key, value and headers of a partition's records."""
    return [
        (record.key, record.value, record.headers)
        for record in threaded.call(lambda cluster: cluster.records("t", partition))
    ]


@pytest.mark.parametrize("call", ["send", "send_nowait"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value": b"v"}, (None, b"v", ())),
        ({"value": b"v", "key": b"k"}, (b"k", b"v", ())),
        ({"value": bytearray(b"v"), "key": b"k"}, (b"k", b"v", ())),
        ({"value": b"v", "key": bytearray(b"k")}, (b"k", b"v", ())),
        ({"key": b"k"}, (b"k", None, ())),
        ({}, (None, None, ())),
        ({"key": memoryview(b"k"), "headers": {"h": None}}, (b"k", None, (("h", None),))),
        (
            {"value": b"v", "headers": [("h", b"1"), ("h", b"2")]},
            (None, b"v", (("h", b"1"), ("h", b"2"))),
        ),
    ],
)
def test_every_part_of_a_record_arrives(
    threaded: ThreadedCluster, call: str, given: dict[str, Any], expected: tuple[Any, ...]
):
    with Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer:
        for partition in (0, 1):
            getattr(producer, call)("t", **given, partition=partition, timestamp_ms=partition)
            getattr(producer, call)("t", **given, partition=partition)
        producer.flush()
        began_ms = time.time_ns() // 1_000_000
        getattr(producer, call)("t", **given)
        getattr(producer, call)("t", **given, timestamp_ms=9)
        producer.flush()
        ended_ms = time.time_ns() // 1_000_000
    records = [threaded.call(lambda cluster, at=at: cluster.records("t", at)) for at in (0, 1)]
    assert [each[0].timestamp_ms for each in records] == [0, 1]
    assert [len(each) >= 2 for each in records] == [True, True]
    times = [record.timestamp_ms for each in records for record in each[2:]]
    assert len(times) == 2
    assert 9 in times
    assert any(began_ms <= each <= ended_ms for each in times)
    assert {each for at in (0, 1) for each in stored(threaded, at)} == {expected}


def test_a_record_that_was_sent_says_where_it_is(threaded: ThreadedCluster):
    with Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer:
        for offset in (0, 1):
            metadata = producer.send("t", b"value", key=b"k", partition=1, timestamp_ms=70 + offset)
            assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 1, offset)
            assert metadata.timestamp_ms == 70 + offset
        assert len(producer.partitions_for("t")) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": -1},
        {"partition": True},
        {"timestamp_ms": -1},
        {"timestamp_ms": 1.5},
        {"value": "text"},
        {"key": 5},
        {"headers": 7},
    ],
)
def test_what_is_no_record_is_refused_in_the_calling_thread(
    threaded: ThreadedCluster, wrong: dict[str, Any]
):
    with Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer:
        for call in (producer.send, producer.send_nowait):
            with pytest.raises(SerializationError):
                call("t", **{"value": b"v", **wrong})
        producer.send("t", b"good", partition=0)
    assert stored(threaded) == [(None, b"good", ())]


def test_an_error_of_the_background_is_the_senders(threaded: ThreadedCluster):
    told: list[tuple[Any, ...]] = []
    with Producer(threaded.cluster.bootstrap_servers, **PRODUCER, max_request_size=500) as producer:
        with pytest.raises(RecordTooLarge):
            producer.send("t", bytes(1_000))
        delivery = producer.send_nowait(
            "t", bytes(1_000), on_delivery=lambda *each: told.append((threading.get_ident(), *each))
        )
        with pytest.raises(RecordTooLarge):
            delivery.result()
        ((thread, metadata, error),) = told
        assert thread != threading.get_ident()
        assert (metadata, error) == (None, delivery.exception())
        good = producer.send_nowait("t", b"good", on_delivery=lambda *each: told.append(each))
        assert good.result().topic == "t"
        producer.flush()
        assert told[1:] == [(good.result(), None)]


def released_soon(threaded: ThreadedCluster, fault: Any) -> threading.Timer:
    """The brokers go on while a call waits."""
    timer = threading.Timer(0.05, threaded.call, (lambda _: fault.release(),))
    timer.start()
    return timer


def test_a_call_waits_for_room_where_there_is_none(threaded: ThreadedCluster):
    fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
    with Producer(threaded.cluster.bootstrap_servers, **NARROW) as producer:
        count = fill(producer, []) // 1_000
        timer = released_soon(threaded, fault)
        assert producer.send("t", b"last").topic == "t"
        timer.join()
        producer.wait_for_room()
        producer.send_nowait("t", b"behind it")
    assert len(stored(threaded)) + len(stored(threaded, 1)) == count + 2


def test_a_call_waits_for_an_acknowledgement_however_often_it_looks_for_signals(
    threaded: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("moldau.client.sync.producer.LOOK_S", 0.001)
    fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
    with Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer:
        timer = released_soon(threaded, fault)
        assert producer.send("t", b"late", partition=1).partition == 1
        timer.join()


def test_an_interrupted_call_takes_back_what_has_not_been_sent(threaded: ThreadedCluster):
    fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
    with Producer(threaded.cluster.bootstrap_servers, **NARROW) as producer:
        fill(producer, [])
        producer._handover.grant()
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"interrupted")
        timer.join()
        released_soon(threaded, fault).join()
        producer.send("t", b"next")
    values = [value for at in (0, 1) for _, value, _ in stored(threaded, at)]
    assert b"next" in values
    assert b"interrupted" not in values


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_producer_that_is_of_no_use_says_so_at_once(threaded: ThreadedCluster, is_forked: bool):
    producer = Producer(threaded.cluster.bootstrap_servers, **PRODUCER)
    portal = producer._portal
    if is_forked:
        portal.forked = True
    else:
        producer.close()
    try:
        for call in (
            lambda: producer.send("t", b"v"),
            lambda: producer.send_nowait("t", b"v"),
            lambda: producer.send_nowait("t", b"v", key=b"k", partition=0),
            producer.wait_for_room,
            producer.flush,
            producer.init_transactions,
            producer.abort_transaction,
        ):
            with pytest.raises(InvalidState if is_forked else ClientClosed):
                call()
    finally:
        portal.forked = False
    producer.close()
    assert stored(threaded) == stored(threaded, 1) == []


def test_a_close_with_a_time_limit_fails_what_could_not_be_sent(threaded: ThreadedCluster):
    threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
    producer = Producer(threaded.cluster.bootstrap_servers, **NARROW)
    told: list[Any] = []
    count = fill(producer, told) // 1_000
    producer.close(timeout_ms=50)
    assert len(told) == count
    assert all(isinstance(error, KafkaError) for _, error in told)
    assert {type(error) for _, error in told} >= {ClientClosed}
    assert stored(threaded) == []


def committed(threaded: ThreadedCluster) -> list[Any]:
    return threaded.call(lambda cluster: cluster.values("t", committed_only=True))


def test_a_close_without_a_time_limit_sends_what_waits_for_room(threaded: ThreadedCluster):
    fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
    producer = Producer(threaded.cluster.bootstrap_servers, **NARROW)
    told: list[Any] = []
    count = fill(producer, told) // 1_000
    timer = released_soon(threaded, fault)
    producer.close()
    timer.join()
    assert len(told) == len(stored(threaded)) + len(stored(threaded, 1)) == count
    assert {error for _, error in told} == {None}


def test_without_room_a_call_raises_when_it_has_blocked_long_enough(threaded: ThreadedCluster):
    fault = threaded.call(lambda cluster: cluster.fault(ApiKey.PRODUCE, Stall()))
    with Producer(threaded.cluster.bootstrap_servers, **{**NARROW, "max_block_ms": 50}) as producer:
        fill(producer, [])
        with pytest.raises(BufferFull, match=r"max\.block\.ms"):
            producer.send("t", b"late")
        threaded.call(lambda _: fault.release())


def test_a_callback_must_not_block_its_own_thread(threaded: ThreadedCluster):
    errors: list[type[Exception]] = []

    def call_back(*_: object) -> None:
        try:
            producer.send("t", b"never")
        except KafkaError as error:
            errors.append(type(error))

    with Producer(threaded.cluster.bootstrap_servers, **PRODUCER) as producer:
        producer.send_nowait("t", b"first", partition=0, on_delivery=call_back)
        producer.flush()
    assert errors == [InvalidState]
    assert stored(threaded) == [(None, b"first", ())]


@pytest.mark.parametrize("has_waited", [False, True])
@pytest.mark.parametrize("is_plain", [False, True])
def test_what_lies_in_the_handover_is_counted_in_bytes(
    threaded: ThreadedCluster, has_waited: bool, is_plain: bool
):
    """An eighth of `buffer.memory`, and one record of a thread that has waited for room."""
    busy, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go_on.wait(DEADLINE_S)

    given: dict[str, Any] = {"key": bytes(1_000)} if is_plain else {"headers": {"h": bytes(935)}}
    with Producer(threaded.cluster.bootstrap_servers, **NARROW) as producer:
        if has_waited:
            producer.wait_for_room()
        producer._portal.post(hold)
        assert busy.wait(DEADLINE_S)
        count = 0
        try:
            while count < 100:
                producer.send_nowait("t", bytes(1_000), **given)
                count += 1
        except BufferFull:
            pass
        finally:
            go_on.set()
        producer.flush()
    assert count == -(-BUFFER_MEMORY // 8 // 2_064) + has_waited


@pytest.fixture
def transactional(threaded: ThreadedCluster) -> Iterator[Producer]:
    servers = threaded.cluster.bootstrap_servers
    with Producer(servers, transactional_id="id", **PRODUCER) as producer:
        yield producer


def test_a_transaction_by_hand_takes_what_was_sent_in_it(
    threaded: ThreadedCluster, transactional: Producer
):
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.send_nowait("t", b"first", partition=0)
    transactional.commit_transaction()
    assert committed(threaded) == [b"first"]
    transactional.begin_transaction()
    aborted = transactional.send_nowait("t", b"aborted", partition=0)
    transactional.abort_transaction()
    assert aborted.done()
    transactional.begin_transaction()
    transactional.send_nowait("t", b"second", partition=0)
    transactional.commit_transaction()
    assert committed(threaded) == [b"first", b"second"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_is_left_by_an_error_is_aborted(
    threaded: ThreadedCluster, transactional: Producer, kind: type[BaseException]
):
    def leave() -> None:
        with transactional.transaction():
            transactional.send_nowait("t", b"aborted", partition=0)
            raise kind

    with pytest.raises(kind):
        leave()
    with transactional.transaction():
        transactional.send_nowait("t", b"next", partition=0)
    assert committed(threaded) == [b"next"]


def test_a_block_that_is_open_at_the_end_is_aborted(threaded: ThreadedCluster):
    producer = Producer(threaded.cluster.bootstrap_servers, transactional_id="id", **PRODUCER)
    left = producer.transaction()
    left.__enter__()
    producer.send_nowait("t", b"left", partition=0)
    producer.flush()
    producer.close()
    with pytest.raises(ClientClosed):
        left.__exit__(None, None, None)
    assert committed(threaded) == []


def test_a_block_ends_once(threaded: ThreadedCluster, transactional: Producer):
    ended = transactional.transaction()
    ended.__enter__()
    transactional.send_nowait("t", b"first", partition=0)
    for _ in range(2):
        ended.__exit__(None, None, None)
    with transactional.transaction():
        ended.__exit__(ValueError, ValueError("late"), None)
        transactional.send_nowait("t", b"second", partition=0)
    assert committed(threaded) == [b"first", b"second"]


def test_an_error_that_leaves_a_block_behind_the_end_is_the_applications(
    threaded: ThreadedCluster, transactional: Producer
):
    """At the interpreter's end the producer has been closed, and that has aborted the block."""
    portal = transactional._portal
    left = transactional.transaction()
    left.__enter__()
    portal.ended = True
    try:
        left.__exit__(ValueError, ValueError("its own"), None)
        with pytest.raises(ClientClosed):
            left.__exit__(None, None, None)
    finally:
        portal.ended = False
    transactional.abort_transaction()


def test_a_block_in_a_block_is_refused_and_ends_nothing(
    threaded: ThreadedCluster, transactional: Producer
):
    with transactional.transaction():
        with pytest.raises(KafkaError), transactional.transaction():
            pass
        transactional.send_nowait("t", b"outer", partition=0)
    assert committed(threaded) == [b"outer"]


def test_a_block_that_was_let_go_of_is_aborted_before_the_next_call(
    threaded: ThreadedCluster, transactional: Producer
):
    left = transactional.transaction()
    left.__enter__()
    transactional.send_nowait("t", b"left", partition=0)
    del left
    with transactional.transaction():
        transactional.send_nowait("t", b"next", partition=0)
    assert committed(threaded) == [b"next"]


def test_a_transaction_is_prepared_and_completed_elsewhere(
    threaded: ThreadedCluster, transactional: Producer
):
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.send_nowait("t", b"handed over", partition=0)
    transactional.hand_over_transaction()
    with pytest.raises(KafkaError):
        transactional.send("t", b"late")
    transactional.commit_transaction()
    assert committed(threaded) == [b"handed over"]
