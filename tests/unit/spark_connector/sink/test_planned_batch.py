"""What travels between the driver and its tasks."""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from dataclasses import replace

import pytest

from moldau.spark_connector.core.commit_protocol import AbortOutcome, LedgerView, Plan
from moldau.spark_connector.core.ledger import SinkRecord, Slot, decided
from moldau.spark_connector.errors import ClusterUnreachable
from moldau.spark_connector.sink import driver
from moldau.spark_connector.sink.driver import PlannedBatch, StepCarrier, abort_batch, planned_for
from moldau.spark_connector.sink.ledger_store import KnownLedger
from moldau.spark_connector.sink.options import SinkOptions


def planned(*queries: str) -> PlannedBatch:
    slot = Slot(0, "s.w.0.0", 1, 1, 1, 1)
    finished = {name: decided(name, 1, [slot], 1, 1) for name in queries}
    record = SinkRecord("s", "token")
    ledger = KnownLedger(LedgerView(record, finished), uuid.uuid4(), 9)
    return PlannedBatch(Plan(record, finished), None, True, ledger)


def test_a_message_has_what_its_own_query_needs() -> None:
    whole = planned("a", "b", "c")
    narrow = whole.narrowed("b")
    assert narrow.plan.batch("b", 1) == whole.plan.batch("b", 1)
    assert narrow.ledger.view.finished.keys() == narrow.plan.finished.keys() == {"b"}
    assert (narrow.ledger.read_to, narrow.two_phase) == (9, True)
    assert whole.narrowed("z").plan.finished == {}
    assert pickle.loads(pickle.dumps(narrow)) == narrow


@pytest.mark.parametrize(
    ("is_whole", "query_id", "asks"),
    [(True, "a", False), (True, "new", False), (False, "a", False), (False, "new", True)],
)
def test_a_task_asks_the_ledger_only_for_a_query_that_its_plan_may_lack(
    is_whole: bool, query_id: str, asks: bool
) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "100"}
    options = SinkOptions.parse(given | {"topic": "t", "sinkId": "s"})
    known = planned("a")
    known = replace(known, plan=replace(known.plan, is_whole=is_whole))
    if asks:
        with pytest.raises(ClusterUnreachable):
            planned_for(options, known, query_id)
    else:
        assert planned_for(options, known, query_id) == known.narrowed(query_id)


@pytest.mark.parametrize("outcome", AbortOutcome)
def test_what_became_of_an_abort_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outcome: AbortOutcome
) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "sinkId": "s"}
    monkeypatch.setattr(StepCarrier, "carry", lambda self, procedure: outcome)
    with caplog.at_level(logging.INFO, driver._log.name):
        abort_batch(SinkOptions.parse(given), "s", None, 7, [], 1)
    (said,) = [each for each in caplog.records if each.name == driver._log.name]
    is_aborted = outcome is AbortOutcome.ABORTED
    assert said.levelname == ("INFO" if is_aborted else "WARNING")
    assert said.getMessage().startswith("batch 7 of sink 's' was")
    assert ("not aborted" in said.getMessage()) is not is_aborted


def test_a_batch_that_cannot_be_given_up_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Spark has its own, and what is left open ends by its time limit or with the next start."""
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "100"}
    options = SinkOptions.parse(given | {"topic": "t", "sinkId": "s"})
    for plan in (None, planned("q")):
        caplog.clear()
        with caplog.at_level(logging.INFO, driver._log.name):
            abort_batch(options, "s", plan, 7, [], 1)
        (said,) = [each for each in caplog.records if each.name == driver._log.name]
        assert said.levelname == "WARNING"
        assert said.getMessage().startswith("batch 7 of sink 's' was not aborted: ")


def test_a_forked_process_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with one token could both think they are in charge."""
    memory = driver._memory()
    assert driver._memory() is memory
    forked = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: forked)
    monkeypatch.setattr(driver, "_process", memory)
    assert driver._memory() is not memory
    assert driver._memory().process_id == forked
