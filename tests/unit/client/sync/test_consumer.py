"""The blocking consumer, interrupted anywhere: each record comes once, in order. Its commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client import OffsetAndMetadata, TopicPartition
from moldau.client.sync import Consumer
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
