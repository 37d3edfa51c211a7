"""Results and offsets in one transaction, on SQLite, without Spark: batches as it gives them."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from moldau.client import TopicPartition
from moldau.spark_connector.results import (
    ForeignResults,
    InvalidResults,
    ResultsBehind,
    SqlResults,
)
from tests.kit.dice import drawn_seed

COLUMNS = ("topic", "partition", "offset", "key", "amount")
QUERY = "0a09e9d0-e7e6-4233-8962-b3c68b976e1b"


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/results.db"
    engine = sa.create_engine(made)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE results (key TEXT PRIMARY KEY, amount INTEGER)")
        connection.exec_driver_sql("CREATE TABLE journal (key TEXT, amount INTEGER)")
    engine.dispose()
    return made


@pytest.fixture
def store(url: str) -> Iterator[SqlResults]:
    made = SqlResults(url, "sums", "journal")
    yield made
    made.engine.dispose()


def rows(first: int, end: int, partition: int = 0) -> list[dict[str, Any]]:
    return [
        {"topic": "in", "partition": partition, "offset": n, "key": f"k{n}", "amount": n}
        for n in range(first, end)
    ]


def table(store: SqlResults, name: str = "journal") -> list[tuple[Any, ...]]:
    with store.engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT key, amount FROM {name} ORDER BY amount")
        return [tuple(row) for row in found]


@pytest.mark.promise("sql-behind")
def test_rows_and_offsets_are_stored_together(store: SqlResults):
    assert store.write_batch(iter(rows(0, 3) + rows(5, 7, 1)), COLUMNS, 0, QUERY) == 5
    assert len(table(store)) == 5
    assert store.offsets() == {TopicPartition("in", 0): 3, TopicPartition("in", 1): 7}
    assert store.starting_offsets({"in": 3}) == '{"in": {"0": 3, "1": 7, "2": -2}}'


@pytest.mark.promise("results-sql", "sql-new-rows")
def test_the_same_batch_again_adds_nothing(store: SqlResults):
    for _ in range(3):
        store.write_batch(iter(rows(0, 3)), COLUMNS, 0, QUERY)
    assert table(store) == [("k0", 0), ("k1", 1), ("k2", 2)]


@pytest.mark.promise("sql-new-rows")
def test_another_query_that_begins_again_adds_only_what_is_new(store: SqlResults):
    store.write_batch(iter(rows(0, 2)), COLUMNS, 0, QUERY)
    store.write_batch(iter(rows(2, 3)), COLUMNS, 1, QUERY)
    assert store.write_batch(iter(rows(0, 5)), COLUMNS, 0, "another query") == 2
    assert store.write_batch(iter(rows(3, 6)), COLUMNS, 2, QUERY) == 1  # and the first goes on
    assert len(table(store)) == 6


@pytest.mark.promise("results-sql")
def test_a_batch_that_fails_leaves_nothing(store: SqlResults):
    def breaking() -> Iterator[dict[str, Any]]:
        yield from rows(0, 2_500)
        raise OSError("the executor is gone")

    with pytest.raises(OSError, match="the executor is gone"):
        store.write_batch(breaking(), COLUMNS, 0, QUERY)
    assert table(store) == []
    assert store.offsets() == {}
    assert store.write_batch(iter(rows(0, 2_500)), COLUMNS, 0, QUERY) == 2_500


@pytest.mark.promise("results-sql")
def test_batches_cut_at_random_and_repeated_add_up_to_each_row_once(store: SqlResults):
    seed = drawn_seed()
    dice = random.Random(seed)
    starts = [0]
    while starts[-1] < 300:
        if dice.random() < 0.3:  # a checkpoint that was taken back cuts differently
            del starts[dice.randrange(len(starts)) + 1 :]
        batch = rows(starts[-1], min(300, starts[-1] + dice.randrange(1, 60)))
        dice.shuffle(batch)
        store.write_batch(iter(batch), COLUMNS, len(starts) - 1, QUERY)
        starts.append(starts[-1] + len(batch))
    assert [amount for _, amount in table(store)] == list(range(300))


@pytest.mark.promise("sql-two-drivers")
def test_a_second_driver_waits_and_finds_nothing_new(url: str):
    """A paused driver comes back: it waits for the other one's transaction."""
    is_at_work, may_end = threading.Event(), threading.Event()

    def write(connection: sa.Connection, given: Iterator[dict[str, Any]]) -> None:
        for row in given:
            connection.exec_driver_sql(
                "INSERT INTO journal VALUES (?, ?)", (row["key"], row["amount"])
            )
        is_at_work.set()
        assert may_end.wait(60)

    first, second = (SqlResults(url, "own", write=write) for _ in range(2))
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first.write_batch, iter(rows(0, 5)), COLUMNS, 0, QUERY)
        assert is_at_work.wait(60)
        other = pool.submit(second.write_batch, iter(rows(0, 5)), COLUMNS, 0, QUERY)
        may_end.set()
        assert sorted([one.result(60), other.result(60)]) == [0, 5]
    assert table(first) == [(f"k{each}", each) for each in range(5)]
    first.engine.dispose()
    second.engine.dispose()


@pytest.mark.promise("sql-behind")
def test_a_store_that_has_lost_batches_is_refused(store: SqlResults):
    store.write_batch(iter(rows(0, 3)), COLUMNS, 0, QUERY)
    with pytest.raises(
        ResultsBehind, match="batches up to 0 of this query, and Spark goes on with 2"
    ):
        store.write_batch(iter(rows(6, 9)), COLUMNS, 2, QUERY)
    assert len(table(store)) == 3


@pytest.mark.promise("sql-behind-elsewhere")
def test_a_store_that_has_lost_everything_is_refused(store: SqlResults):
    with pytest.raises(ResultsBehind, match="has none of this query, and Spark goes on with 7"):
        store.write_batch(iter(rows(6, 9)), COLUMNS, 7, QUERY)
    store.write_batch(iter(rows(0, 3)), COLUMNS, 0, "another query")
    with pytest.raises(ResultsBehind, match="has none of this query"):
        store.write_batch(iter(rows(6, 9)), COLUMNS, 7, QUERY)
    assert store.write_batch(iter(rows(6, 9)), COLUMNS, 7, None) == 3  # unknown


@pytest.mark.promise("sql-by-batch")
def test_rows_without_offsets_go_by_the_batch(url: str):
    store = SqlResults(url, "totals", "results", keys=["key"])
    columns = ("key", "amount")
    assert store.write_batch(iter([{"key": "a", "amount": 1}]), columns, 0, QUERY) == 1
    assert store.write_batch(iter([{"key": "a", "amount": 9}]), columns, 0, QUERY) == 0
    assert store.write_batch(iter([{"key": "a", "amount": 2}]), columns, 1, QUERY) == 1
    assert table(store, "results") == [("a", 2)]
    with pytest.raises(ForeignResults, match="cannot be told apart"):
        store.write_batch(iter([{"key": "a", "amount": 3}]), columns, 0, "another query")
    store.forget()
    assert store.write_batch(iter([{"key": "a", "amount": 3}]), columns, 0, "another query") == 1
    store.engine.dispose()


@pytest.mark.promise("sql-function")
def test_a_function_writes_in_the_same_transaction(url: str):
    def write(connection: sa.Connection, given: Iterator[dict[str, Any]]) -> None:
        first = next(given)  # the others are left: they count as written
        connection.exec_driver_sql("INSERT INTO journal VALUES (?, ?)", (first["key"], 1))
        if first["offset"] == 5:
            raise ValueError("no")

    store = SqlResults(url, "own", write=write)
    store.write_batch(iter(rows(0, 5)), COLUMNS, 0, QUERY)
    with pytest.raises(ValueError, match="no"):
        store.write_batch(iter(rows(5, 9)), COLUMNS, 1, QUERY)
    assert table(store) == [("k0", 1)]
    assert store.offsets() == {TopicPartition("in", 0): 5}
    store.engine.dispose()


def test_two_names_do_not_know_of_each_other(url: str):
    one, other = SqlResults(url, "one", "journal"), SqlResults(url, "other", "journal")
    one.write_batch(iter(rows(0, 2)), COLUMNS, 0, QUERY)
    other.write_batch(iter(rows(0, 2)), COLUMNS, 0, QUERY)
    assert len(table(one)) == 4
    one.engine.dispose()
    other.engine.dispose()


def test_what_does_not_fit_is_refused_with_the_names(url: str, store: SqlResults):
    with pytest.raises(InvalidResults, match="either a table or a function"):
        SqlResults(url, "x")
    absent = SqlResults(url, "x", "nothing")
    with pytest.raises(InvalidResults, match="there is no table nothing"):
        absent.write_batch(iter(rows(0, 1)), COLUMNS, 0, QUERY)
    absent.engine.dispose()
    with pytest.raises(InvalidResults, match="journal has no column more; it has key, amount"):
        store.write_batch(iter(rows(0, 1)), (*COLUMNS, "more"), 0, QUERY)
    with pytest.raises(InvalidResults, match="go by the query's id, which Spark does not tell"):
        store.write_batch(iter([{"key": "a", "amount": 1}]), ("key", "amount"), 0, None)
    keyed = SqlResults(url, "x", "results", keys=["id"])
    with pytest.raises(InvalidResults, match="keys: the rows have no column id"):
        keyed.write_batch(iter(rows(0, 1)), COLUMNS, 0, QUERY)
    keyed.engine.dispose()


def test_the_function_can_be_pickled_without_its_connection(store: SqlResults):
    store.write_batch(iter(rows(0, 1)), COLUMNS, 0, QUERY)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.write_batch(iter(rows(1, 2)), COLUMNS, 1, QUERY) == 1
    copy.engine.dispose()
