"""The blocking consumer, interrupted anywhere: each record comes once, in order. Its commits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from moldau.client import (
    ClientClosed,
    ConsumerRecord,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
)
from moldau.client.sync import Consumer
from moldau.client.sync.consumer import _InCaller
from tests.fake_broker import FakeCluster, ThreadedCluster
from tests.unit.client.faults.harness import CONSUMER
from tests.unit.client.sync.interruptions import interrupted_at

pytestmark = pytest.mark.real

FUNCTIONS = ("__next__", "getone", "getmany", "poll_arrow", "_call", "call", "run", "post", "_next")
RECORD_COUNT = 2_000


def _next(consumer: Consumer) -> list[bytes | None]:
    return [consumer.__next__().value]


def _getmany(consumer: Consumer) -> list[bytes | None]:
    polled: dict[Any, Any] = consumer.getmany(7, timeout_ms=10_000)
    return [record.value for records in polled.values() for record in records]


def _poll_arrow(consumer: Consumer) -> list[bytes | None]:
    batch = consumer.poll_arrow(7, timeout_ms=10_000)
    values: list[bytes | None] = batch.column("value").to_pylist()
    return values


@pytest.mark.timeout(120)
@pytest.mark.parametrize("read", [_next, _getmany, _poll_arrow])
def test_an_interruption_at_any_place_of_a_poll_loses_and_doubles_nothing(
    read: Callable[[Consumer], list[bytes | None]],
):
    values = [b"%d" % number for number in range(RECORD_COUNT)]
    got: list[bytes | None] = []
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        threaded.call(lambda cluster: cluster.fill("t", values))
        servers = threaded.cluster.bootstrap_servers
        with Consumer(servers, **CONSUMER, fetch_max_wait_ms=50) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            got += read(consumer)
            place = 0
            while True:
                place += 1
                was_interrupted = False
                # Nothing lies in the calling thread: the background is asked for the next record.
                consumer.seek(TopicPartition("t", 0), len(got))
                with interrupted_at(place, FUNCTIONS) as passed:
                    try:
                        got += read(consumer)
                    except KeyboardInterrupt:
                        was_interrupted = True
                got += read(consumer)
                assert got == values[: len(got)], passed[-1]
                if not was_interrupted:
                    break
    assert place > 20


def test_a_commit_without_waiting_is_reported_in_the_thread_that_polls():
    partition = TopicPartition("t", 0)
    heard: list[tuple[Any, ...]] = []
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Consumer(threaded.cluster.bootstrap_servers, **CONSUMER, group_id="g") as consumer,
    ):
        consumer.assign([partition])
        wanted = {partition: OffsetAndMetadata(2)}
        consumer.commit_nowait(
            wanted, lambda *outcome: heard.append((threading.get_ident(), *outcome))
        )
        for _ in range(200):
            consumer.getmany(timeout_ms=50)
            if heard:
                break
        assert heard == [(threading.get_ident(), wanted, None)]
        consumer.commit_nowait({partition: OffsetAndMetadata(3)})
        consumer.commit({})
        assert consumer.committed([partition]) == {partition: OffsetAndMetadata(3)}


P0 = TopicPartition("t", 0)


@pytest.fixture
def servers() -> Iterator[str]:
    """The address of a broker with five records in a topic."""
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        threaded.call(lambda cluster: cluster.fill("t", [b"%d" % number for number in range(5)]))
        yield threaded.cluster.bootstrap_servers


def offsets_of(polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> list[int]:
    assert set(polled) <= {P0}
    return [record.offset for records in polled.values() for record in records]


def test_records_come_one_by_one_in_lists_and_in_batches(servers: str):
    with Consumer(servers, **CONSUMER) as consumer:
        consumer.assign([P0])
        assert iter(consumer) is consumer
        assert next(consumer).offset == 0
        assert consumer.getone().offset == 1
        assert offsets_of(consumer.getmany(1, timeout_ms=10_000)) == [2]
        batch = consumer.poll_arrow(1, timeout_ms=10_000)
        assert batch.column("offset").to_pylist() == [3]
        assert offsets_of(consumer.getmany(timeout_ms=10_000)) == [4]
        assert consumer.getmany(timeout_ms=1) == {}
        assert consumer.poll_arrow(timeout_ms=1).num_rows == 0
        assert consumer.position(P0) == 5


def test_what_was_taken_is_taken_back_to_its_first_record(servers: str):
    with Consumer(servers, **CONSUMER) as consumer:
        consumer.assign([P0])
        first = consumer.getone()
        polled = consumer.getmany(2, timeout_ms=10_000)
        rows = consumer.poll_arrow(2, timeout_ms=10_000)
        other = TopicPartition("t", 7)  # of another member by now
        for take_back, position in (
            (partial(consumer._take_back_rows, rows), 3),
            (partial(consumer._take_back_all, {P0: polled[P0], other: []}), 1),
            (partial(consumer._take_back_one, first), 0),
            (partial(consumer._seek_back, {other: 5, P0: 2}), 2),
        ):
            consumer._call_now(take_back)
            assert consumer.position(P0) == position


@pytest.mark.parametrize("poll", [_next, _getmany, _poll_arrow])
def test_a_poll_that_is_interrupted_late_gives_back_what_it_took(
    servers: str, poll: Callable[[Consumer], list[bytes | None]], monkeypatch: pytest.MonkeyPatch
):
    """The signal comes when the result has come and the user does not have it."""
    with Consumer(servers, **CONSUMER) as consumer:
        consumer.assign([P0])
        call = consumer._call

        def interrupted(*arguments: Any, **keywords: Any) -> None:
            call(*arguments, **keywords)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(consumer, "_call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                poll(consumer)
        assert consumer.position(P0) == 0
        assert poll(consumer)[0] == b"0"


def test_a_listener_and_a_callback_run_in_the_calling_thread(servers: str):
    heard: list[tuple[str, int, Any]] = []

    class Heard(RebalanceListener):
        def on_partitions_assigned(self, partitions: Any) -> None:
            heard.append(("assigned", threading.get_ident(), set(partitions)))

        def on_partitions_revoked(self, partitions: Any) -> None:
            heard.append(("revoked", threading.get_ident(), set(partitions)))
            consumer.commit()

    me = threading.get_ident()
    with Consumer(servers, **CONSUMER, group_id="g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"], listener=Heard())
        assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
        assert consumer.subscription() == {"t"}
        assert consumer.assignment() == {P0}
        assert consumer.group_metadata().group_id == "g"
    assert heard == [("assigned", me, {P0}), ("revoked", me, {P0})]
    with Consumer(servers, **CONSUMER, group_id="g") as consumer:
        stored = consumer.committed([P0])[P0]
        assert stored is not None
        assert stored.offset == 3


def test_a_lost_assignment_is_heard_of_in_the_polling_thread(servers: str):
    threads: list[tuple[int, Any]] = []

    class Lost(RebalanceListener):
        def on_partitions_lost(self, partitions: Any) -> None:
            threads.append((threading.get_ident(), set(partitions)))

    with Consumer(servers, **CONSUMER) as consumer:
        listener = _InCaller(Lost(), consumer._callers)
        consumer._portal.call(
            listener.on_partitions_lost, frozenset({P0}), callers=consumer._callers
        )
    assert threads == [(threading.get_ident(), {P0})]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("auto_commit", [False, True])
def test_only_a_block_without_an_error_commits_at_its_end(
    servers: str, auto_commit: bool, fails: bool
):
    def read() -> None:
        with Consumer(
            servers, **CONSUMER, group_id="g", enable_auto_commit=auto_commit
        ) as consumer:
            consumer.subscribe(["t"])
            assert next(consumer).offset == 0
            if fails:
                raise LookupError

    if fails:
        with pytest.raises(LookupError):
            read()
    else:
        read()
    with Consumer(servers, **CONSUMER, group_id="g") as consumer:
        stored = consumer.committed([P0])[P0]
        assert (None if stored is None else stored.offset) == (
            1 if auto_commit and not fails else None
        )


def test_a_consumer_that_is_closed_reads_no_more(servers: str):
    consumer = Consumer(servers, **CONSUMER)
    consumer.assign([P0])
    assert next(consumer).offset == 0
    consumer.close(timeout_ms=15_000)
    consumer.close()
    for call in (
        lambda: consumer.getmany(),
        lambda: consumer.poll_arrow(),
        lambda: consumer.subscribe(["t"]),
        lambda: consumer.commit_nowait(),
        lambda: consumer.position(P0),
    ):
        with pytest.raises(ClientClosed):
            call()


def test_a_pattern_may_be_compiled(servers: str):
    with Consumer(servers, **CONSUMER, group_id="g") as consumer:
        consumer.subscribe(pattern=re.compile("t.*"))
        assert next(consumer).offset == 0
        consumer.unsubscribe()
        assert consumer.assignment() == set()
