"""What a driver remembers from one planning to the next, and what it asks for again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from moldau.spark_connector import errors
from moldau.spark_connector.core.ledger import BatchState, decode
from moldau.spark_connector.sink import driver
from moldau.spark_connector.sink.ledger_store import LedgerStore
from tests.fake_broker import LATEST, FakeCluster, ThreadedCluster
from tests.spark.sink.plain_sink import Sink, everything

pytestmark = pytest.mark.real


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    """A cluster with the sinks' topic."""
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 2}, versions=LATEST)) as threaded:
        yield threaded


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered from the test before."""
    monkeypatch.setattr(driver, "_process", driver._Process())


def test_whether_transactions_are_prepared_is_asked_until_something_was_written(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the answer is kept; a time limit of the user's own needs none."""
    answers: list[bool] = []

    def serves(*_: Any) -> bool:
        answers.append(len(answers) % 2 == 1)
        return answers[-1]

    monkeypatch.setattr(driver, "serves_two_phase", serves)
    sink = Sink(cluster, "t")
    assert [sink.plan().two_phase for _ in range(3)] == answers == [False, True, False]
    sink.batch(0)
    assert answers == [False, True, False, True]
    assert sink.plan().two_phase, "as with the batch before"
    assert len(answers) == 4
    assert not sink.plan().two_phase, "nothing has been written since"
    assert len(answers) == 5
    Sink(cluster, "t", transactions="standard").plan()
    Sink(cluster, "t", **{"kafka.transaction.timeout.ms": "60000"}).plan()
    assert len(answers) == 5


def test_a_ledger_that_is_too_large_is_not_kept_in_memory(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(cluster, "t")
    sink.plan()
    assert driver._process.readings
    monkeypatch.setattr(driver, "MAX_KEPT_BYTES", 10)
    for _ in range(2):
        sink.plan()
        assert not driver._process.readings
    sink.batch(0)
    assert sink.visible() == everything(0)


def test_a_ledger_topic_is_looked_at_once_per_process(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = LedgerStore.prepare_topic

    def prepare(store: LedgerStore) -> None:
        looks.append(store._sink_id)
        real(store)

    monkeypatch.setattr(LedgerStore, "prepare_topic", prepare)
    one, other = Sink(cluster, "t"), Sink(cluster, "t")
    for each in (one, other, one):
        each.plan()
    assert looks == [one.id]
    Sink(cluster, "t", ledgerTopic=f"ledger-{uuid.uuid4().hex[:8]}").plan()
    assert len(looks) == 2


def test_what_a_batch_is_compared_with_when_it_comes_again(cluster: ThreadedCluster) -> None:
    for given, is_refused in (("fail", True), ("skip", False)):
        sink = Sink(cluster, "t", onReplayMismatch=given)
        sink.batch(0)
        planned = sink.plan()
        reports = sink.write(planned, 0)
        fewer = [replace(reports[0], rows=1), *reports[1:]]
        if is_refused:
            with pytest.raises(errors.ReplayDiffers):
                sink.commit(planned, 0, fewer)
        else:
            sink.commit(planned, 0, fewer)
    assert sink.visible() == sorted(everything(0) * 2)


def test_a_process_that_goes_on_with_its_checkpoint_writes_its_token_once(
    cluster: ThreadedCluster,
) -> None:
    """Each batch is decided, and then done: nothing else comes into the ledger."""
    sink = Sink(cluster, "t", checkpointLocation="/checkpoint")
    for batch_id in range(3):
        sink.batch(batch_id)
    assert sink.visible() == everything(0, 1, 2)
    ledger = sink.options.ledger_topic
    found = cluster.call(lambda fake: [decode(each.value or b"") for each in fake.records(ledger)])
    states = [each.batch.state if each.batch else None for each in found]
    assert states == [None, *[BatchState.DECIDED, BatchState.DONE] * 3]
    assert len({each.driver for each in found}) == 1
