"""What a reader of the load makes of librdkafka's errors."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.system.replication import load
from tests.system.replication.load import LoadReader


def here(_work: Any) -> None:
    """Runs nothing: the test plays the consumer."""


def thrown_back(partition: int) -> Any:
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "out of range (broker 2)")
    return SimpleNamespace(error=lambda: error, partition=lambda: partition)


@pytest.mark.parametrize("rack", ["rack-2", None])
def test_who_reads_from_replicas_may_be_thrown_back_by_a_follower(rack: str | None) -> None:
    reader = LoadReader(here, "127.0.0.1:1", "t", 2, rack)
    reader.positions.update({0: 5, 1: 9})
    assigned: list[TopicPartition] = []
    consumer: Any = SimpleNamespace(assign=assigned.extend)
    went_back = reader._goes_back(consumer, thrown_back(1))
    assert went_back is (rack is not None), "from a leader it is a broken promise"
    assert [(each.partition, each.offset) for each in assigned] == (
        [(0, 5), (1, 9)] if rack else []
    )
    if not went_back:
        reader._take(thrown_back(1))
    assert bool(reader.complaints) is (rack is None)


def record(partition: int, offset: int) -> Any:
    return SimpleNamespace(
        error=lambda: None,
        partition=lambda: partition,
        offset=lambda: offset,
        key=lambda: b"key",
        value=lambda: b"value",
    )


def test_what_came_behind_the_error_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = LoadReader(here, "127.0.0.1:1", "t", 2, "rack-2")
    assigned: list[list[tuple[int, int]]] = []
    given = [record(1, 0), thrown_back(1), record(1, 1), record(0, 0)]

    def consume(_count: int, _seconds: float) -> list[Any]:
        reader._stop.set()
        return given

    consumer = SimpleNamespace(
        assign=lambda to: assigned.append([(each.partition, each.offset) for each in to]),
        consume=consume,
        close=lambda: None,
    )
    monkeypatch.setattr(load, "Consumer", lambda _config: consumer)
    reader._work()
    assert [(each.partition, each.offset) for each in reader.records] == [(1, 0)]
    assert assigned == [[(0, 0), (1, 0)], [(0, 0), (1, 1)]]


def test_a_consumer_that_does_not_close_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = LoadReader(here, "127.0.0.1:1", "t", 1)
    reader._stop.set()
    never = threading.Event()
    consumer = SimpleNamespace(assign=lambda to: None, close=never.wait)
    monkeypatch.setattr(load, "Consumer", lambda _config: consumer)
    monkeypatch.setattr(load, "CLOSE_S", 0.0)
    reader._work()
    assert reader.errors == {"librdkafka does not close": 1}
    never.set()
