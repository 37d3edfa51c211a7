"""What the blocking producer sends, and its transactions, interrupted anywhere."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from moldau.client import BufferFull, ClientClosed, TopicPartition, TransactionAborted
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


def test_records_that_had_no_room_end_with_their_block():
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
            leaving.__enter__()
            sent_bytes = fill(producer, told)
            threading.Timer(0.2, threaded.call, (lambda _: fault.release(),)).start()
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
            value = bytearray(b"sent")
            producer.send_nowait("t", value)
            value[:] = b"used"
            threaded.call(lambda _: fault.release())
            producer.flush()
        assert threaded.call(lambda cluster: cluster.values("t")) == [b"sent"]


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
