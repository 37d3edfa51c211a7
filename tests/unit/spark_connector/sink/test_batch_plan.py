"""What travels between the driver and its tasks."""

from __future__ import annotations

import os
import pickle
import uuid
from dataclasses import replace

import pytest

from moldau.spark_connector.core.commit_protocol import LedgerView, Plan
from moldau.spark_connector.core.ledger import SinkRecord, Slot, decided
from moldau.spark_connector.errors import ClusterUnreachable
from moldau.spark_connector.options.sink_options import SinkOptions
from moldau.spark_connector.sink import batch_plan
from moldau.spark_connector.sink.batch_plan import PlannedBatch, planned_for
from moldau.spark_connector.sink.ledger_store import KnownLedger


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


def test_a_forked_process_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with one token could both think they are in charge."""
    memory = batch_plan._memory()
    assert batch_plan._memory() is memory
    forked = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: forked)
    monkeypatch.setattr(batch_plan, "_process", memory)
    assert batch_plan._memory() is not memory
    assert batch_plan._memory().process_id == forked
