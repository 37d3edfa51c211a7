"""Sinks that are moved and forgotten, beside others and beside queries that run."""

from __future__ import annotations

import pytest

from moldau.protocol import ApiKey
from moldau.spark_connector import move_sink
from moldau.spark_connector.core.ledger import (
    Batch,
    SinkRecord,
    Slot,
    decided,
    decode,
    encode,
    finished_key,
)
from moldau.spark_connector.errors import InvalidOption, LedgerBusy, LedgerUnusable
from moldau.spark_connector.sink import settle
from moldau.spark_connector.sink.settle import KnownSink, forget_sink, list_sinks
from tests.fake_broker import FakeCluster, Run, ThreadedCluster

from .ledger_cluster import LEDGER, ledger_of, newest, properties_of

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


# -- listing and forgetting ---------------------------------------------------------------------

DONE = decided("q", 2, [], 1, 1).done()
FORMER, NAMED = decided("former", 7, [], 1, 1).done(), decided("txn:a", 0, [], 1, 1).done()
SINKS = {
    "idle": encode(SinkRecord("idle", "token")),
    "s": encode(SinkRecord("s", "token", DONE)),
    finished_key("s", "former"): encode(SinkRecord("s", "token", FORMER)),
    finished_key("s", "txn:a"): encode(SinkRecord("s", "token", NAMED)),
}


def test_sinks_are_listed_with_their_newest_batch_and_how_many_queries_they_remember() -> None:
    with ledger_of(SINKS) as threaded:
        found = list_sinks(properties_of(threaded.cluster, "any"))
        assert found == [KnownSink("idle", None, 0), KnownSink("s", DONE, 2)]
        assert newest(threaded) == SINKS


def test_without_a_ledger_there_are_no_sinks() -> None:
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded:
        assert list_sinks(properties_of(threaded.cluster, "any")) == []
        assert threaded.call(lambda fake: LEDGER not in fake.topics)


@pytest.mark.parametrize(
    ("query_id", "left"),
    [
        (None, {"idle"}),
        ("former", {"idle", "s", finished_key("s", "txn:a")}),
        ("txn:a", {"idle", "s", finished_key("s", "former")}),
    ],
)
def test_what_is_forgotten_of_a_sink(
    monkeypatch: pytest.MonkeyPatch, query_id: str | None, left: set[str]
) -> None:
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    with ledger_of(SINKS) as threaded:
        forget_sink(properties_of(threaded.cluster, "s"), query_id)
        assert newest(threaded) == {key: SINKS[key] for key in left}


def test_a_sink_whose_newest_query_is_forgotten_has_no_batch_and_no_driver_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver of it that still runs is not in charge any more."""
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    with ledger_of(SINKS) as threaded:
        given = properties_of(threaded.cluster, "s")
        forget_sink(given, "q")
        found = newest(threaded)
        record = decode(found.pop("s"))
        assert (record.sink_id, record.batch) == ("s", None)
        assert record.driver != "token"
        assert found == {key: value for key, value in SINKS.items() if key != "s"}
        for unknown in ("q", "elsewhere"):
            with pytest.raises(InvalidOption, match=f"sink 's' knows no query {unknown}"):
                forget_sink(given, unknown)


@pytest.mark.parametrize("taken", ["s", "s2"])
def test_a_sink_that_a_query_takes_just_then_is_neither_forgotten_nor_moved(
    monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """It fences just before the commit."""
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    with ledger_of(SINKS) as threaded:
        given = properties_of(threaded.cluster, "s")

        def take() -> None:
            threaded.cluster.transactions.fence(f"{taken}.ledger")

        threaded.call(lambda fake: fake.fault(ApiKey.END_TXN, Run(take)))
        with pytest.raises(LedgerBusy, match=f"a query writes with the sink id '{taken}' now"):
            forget_sink(given) if taken == "s" else move_sink(given, "s2")
        assert newest(threaded) == SINKS


def test_what_was_moved_is_taken_back_when_a_query_takes_the_old_id_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    with ledger_of(SINKS) as threaded:

        def take() -> None:
            threaded.cluster.transactions.fence("s.ledger")

        threaded.call(lambda fake: fake.fault(ApiKey.END_TXN, Run(take), nth=2))
        with pytest.raises(LedgerBusy, match="a query writes with the sink id 's' now"):
            move_sink(properties_of(threaded.cluster, "s"), "s2")
        assert newest(threaded) == SINKS


def test_a_sink_is_moved_with_all_that_it_remembers_and_a_driver_that_none_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    with ledger_of(SINKS) as threaded:
        move_sink(properties_of(threaded.cluster, "s"), "s2")
        found = {key: decode(value) for key, value in newest(threaded).items()}
        moved = {
            "s2": DONE,
            finished_key("s2", "former"): FORMER,
            finished_key("s2", "txn:a"): NAMED,
        }
        assert {key: each.batch for key, each in found.items() if key != "idle"} == moved
        assert {each.sink_id for key, each in found.items() if key != "idle"} == {"s2"}
        assert "token" not in {found[key].driver for key in moved}


@pytest.mark.parametrize(
    ("batches", "is_free"),
    [
        ({"s2": None}, True),
        (
            {"s2": DONE, finished_key("s2", "former"): FORMER, finished_key("s2", "txn:a"): NAMED},
            True,
        ),
        ({"s2": DONE}, False),
        ({"s2": None, finished_key("s2", "former"): FORMER}, False),
    ],
    ids=["a start that was refused", "a move that was cut off", "another's", "one that was"],
)
def test_a_sink_is_moved_only_where_nothing_else_was_written(
    monkeypatch: pytest.MonkeyPatch, batches: dict[str, Batch | None], is_free: bool
) -> None:
    monkeypatch.setattr(settle, "settle_sink", lambda _: None)
    there = {key: encode(SinkRecord("s2", "x", batch)) for key, batch in batches.items()}
    with ledger_of(SINKS | there) as threaded:
        given = properties_of(threaded.cluster, "s")
        if is_free:
            move_sink(given, "s2")
            assert decode(newest(threaded)["s2"]).batch == DONE
        else:
            with pytest.raises(InvalidOption, match="'s2' has written batches of its own"):
                move_sink(given, "s2")
            assert newest(threaded) == SINKS | there
