"""The blocking face against one node: threads, Ctrl-C, listeners, transactions."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest

from moldau.client import BufferFull, ClientClosed, NewTopic, RebalanceListener, TopicPartition
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster

DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def topic(node: Cluster, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.removeprefix("test_")
    with Admin(node.bootstrap_server) as admin:
        admin.create_topics([NewTopic(name, partition_count=1)])
    return name


def read(node: Cluster, topic: str, count: int, **settings: object) -> list[bytes]:
    """The first so many values."""
    values: list[bytes] = []
    with Consumer(node.bootstrap_server, auto_offset_reset="earliest", **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([TopicPartition(topic, 0)])
        while len(values) < count:
            polled = consumer.getmany(timeout_ms=DEADLINE_S * 1000)
            assert polled, f"{len(values)} of {count}"
            values += [record.value for records in polled.values() for record in records]
    return values


def test_many_threads_keep_their_order_behind_a_small_buffer(node: Cluster, topic: str):
    def send(name: int) -> None:
        for number in range(2_000):
            producer.wait_for_room()
            producer.send_nowait(topic, b"%d %d" % (name, number))
        closed.wait(DEADLINE_S)
        with pytest.raises(ClientClosed):
            producer.send_nowait(topic, b"late")
        ended.append(name)

    ended: list[int] = []
    closed = threading.Event()
    producer = Producer(node.bootstrap_server, buffer_memory=65_536, partitioner="murmur2")
    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    values = read(node, topic, 8_000)
    producer.close()
    closed.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(ended) == [0, 1, 2, 3]
    numbers = defaultdict(list)
    for name, number in (value.split() for value in values):
        numbers[name].append(int(number))
    assert all(each == list(range(2_000)) for each in numbers.values())
    assert len(numbers) == 4


def test_interrupted_polls_lose_no_record(node: Cluster, topic: str):
    """Ctrl-C comes again and again, wherever it hits."""
    total = 3_000
    with Producer(node.bootstrap_server) as producer:
        for number in range(total):
            producer.send_nowait(topic, b"%d" % number)
    seen: list[int] = []
    interruptions = 0
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.03):
            os.kill(os.getpid(), signal.SIGINT)

    with Consumer(node.bootstrap_server, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert next(consumer).value == b"0"
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            while interruptions < 5 or len(seen) < total - 1:
                try:
                    polled = consumer.getmany(max_records=100, timeout_ms=200)
                    seen += [int(each.value) for records in polled.values() for each in records]
                except KeyboardInterrupt:
                    interruptions += 1
        except KeyboardInterrupt:  # between two lines of this test
            interruptions += 1
        finally:
            stop.set()
            _without_interruption(thread)
        seen_until = seen[-1] if seen else 0
        assert seen == list(range(1, seen_until + 1))
        assert interruptions


def _without_interruption(thread: threading.Thread) -> None:
    while thread.is_alive():
        try:
            thread.join(DEADLINE_S)
        except KeyboardInterrupt:
            continue


def test_listeners_run_in_the_polling_thread_and_may_seek(node: Cluster, topic: str):
    class Seek(RebalanceListener):
        def on_partitions_assigned(self, partitions: object) -> None:
            threads.append(threading.get_ident())
            consumer.seek(TopicPartition(topic, 0), 3)

        def on_partitions_revoked(self, partitions: object) -> None:
            threads.append(threading.get_ident())

    threads: list[int] = []
    with Producer(node.bootstrap_server) as producer:
        for number in range(5):
            producer.send_nowait(topic, b"%d" % number)
    told: list[int] = []
    with Consumer(node.bootstrap_server, group_id=topic, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic], listener=Seek())
        assert [next(consumer).value for _ in range(2)] == [b"3", b"4"]
        consumer.commit_nowait(callback=lambda *_: told.append(threading.get_ident()))
        consumer.commit()
        committed = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == 5
    assert threads == [threading.get_ident()] * 2
    assert told == [threading.get_ident()]


def _interrupted(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"interrupted")
        raise KeyboardInterrupt


def test_transactions_commit_and_abort(node: Cluster, topic: str):
    with Producer(node.bootstrap_server, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send_nowait(topic, b"committed")
        with pytest.raises(KeyboardInterrupt):
            _interrupted(producer, topic)
        with producer.transaction():
            producer.send_nowait(topic, b"last")
    assert read(node, topic, 2, isolation_level="read_committed") == [b"committed", b"last"]


def _fill(producer: Producer, topic: str) -> None:
    for _ in range(1_000):
        producer.send_nowait(topic, b"x" * 1_000)


def test_a_full_buffer_says_so_and_a_closed_producer_too(node: Cluster, topic: str):
    producer = Producer(node.bootstrap_server, buffer_memory=40_000, linger_ms=60_000)
    with pytest.raises(BufferFull):
        _fill(producer, topic)
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send_nowait(topic, b"late")
