"""Sinks that are moved and forgotten, beside others and beside queries that run."""

from __future__ import annotations

import pytest

from moldau.spark_connector import move_sink
from moldau.spark_connector.core.ledger import SinkRecord, Slot, decided, decode, encode
from moldau.spark_connector.errors import InvalidOption, LedgerBusy, LedgerUnusable
from moldau.spark_connector.sink import settle
from moldau.spark_connector.sink.settle import forget_sink, list_sinks

from .ledger_cluster import ledger_of, newest, properties_of

pytestmark = pytest.mark.real

DECIDED = decided("q", 1, [Slot(0, "old.w.0.0", 1, 1, 1, 1)], 1, 1)
OTHER = {"other": b'{"version": 9}'}
"""A record of a newer release, which shares the ledger."""


def test_a_sink_is_moved_and_forgotten_beside_one_that_cannot_be_understood() -> None:
    record = SinkRecord("old", "token", decided("q", 1, [], 0, 1).done())
    with ledger_of(OTHER | {"old": encode(record)}) as threaded:
        given = properties_of(threaded.cluster, "old")
        move_sink(given, "new")
        left = newest(threaded)
        assert left.keys() == {"other", "new"}
        assert decode(left["new"]).batch == record.batch
        forget_sink(given | {"sinkId": "new"})
        assert newest(threaded) == OTHER
        with pytest.raises(InvalidOption, match="knows no sink 'new'"):
            forget_sink(given | {"sinkId": "new"})
        with pytest.raises(LedgerUnusable, match="version 9"):
            list_sinks(given)


def test_a_sink_that_has_decided_since_it_was_settled_is_not_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    record = encode(SinkRecord("old", "token", DECIDED))
    with ledger_of({"old": record}) as threaded:
        with pytest.raises(LedgerBusy, match="a query writes with the sink id 'old' now"):
            move_sink(properties_of(threaded.cluster, "old"), "new")
        assert newest(threaded) == {"old": record}
