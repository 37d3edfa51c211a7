"""Topics that are created again, rows in no order, stores of former releases: nothing is lost
silently, whichever store has the results.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import fakeredis
import pytest
import sqlalchemy as sa

from moldau.client import TopicPartition
from moldau.spark_connector.results import RedisOffsets, RedisResults, RowsOutOfOrder, SqlResults
from tests.kit.dice import drawn_seed

QUERY, OTHER_QUERY = "query-1", "query-2"
FORMER, NEW, NEWER = "A" * 22, "B" * 22, "C" * 22
ZERO = TopicPartition("in", 0)


class Store(Protocol):
    """A store of results, as the tests use all of them."""

    def write(self, rows: list[dict[str, Any]], batch_id: int, query_id: str = QUERY) -> int:
        """One batch: how many rows were new."""

    def written(self) -> list[str]:
        """The rows that are stored, in order."""

    def put_former(self, topic: str, partition: int, next_offset: int) -> None:
        """A position as a release before topic ids has written it."""

    def offsets(self) -> dict[TopicPartition, int]:
        """Next offsets."""

    def skipped(self) -> dict[TopicPartition, int]:
        """Rows left out."""

    def starting_offsets(self, partition_counts: dict[str, int]) -> str:
        """The source's option."""

    def forget(self, topic: str) -> None:
        """The topic was created again."""


class SqlStore:
    """`SqlResults` on SQLite."""

    def __init__(self, url: str) -> None:
        self.results = SqlResults(url, "sums", "journal")
        with self.results.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE journal (name TEXT)")
        self.offsets = self.results.offsets
        self.skipped = self.results.skipped
        self.starting_offsets = self.results.starting_offsets
        self.forget = self.results.forget

    def write(self, rows: list[dict[str, Any]], batch_id: int, query_id: str = QUERY) -> int:
        columns = list(rows[0]) if rows else ["topic", "partition", "offset", "name"]
        return self.results.write_batch(iter(rows), columns, batch_id, query_id)

    def written(self) -> list[str]:
        with self.results.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT name FROM journal ORDER BY name")
            return [row[0] for row in found]

    def put_former(self, topic: str, partition: int, next_offset: int) -> None:
        with self.results.engine.begin() as connection:
            connection.execute(
                sa.text("INSERT INTO moldau_offsets VALUES ('sums', :topic, :partition, :next)"),
                {"topic": topic, "partition": partition, "next": next_offset},
            )

    def close(self) -> None:
        self.results.engine.dispose()


class RedisStore:
    """`RedisResults` and `RedisOffsets`."""

    def __init__(self) -> None:
        self.client = fakeredis.FakeRedis()
        self.kept = RedisOffsets("", "sums", client=self.client)
        self.results = RedisResults(self.kept, lambda pipe, row: pipe.rpush("rows", row["name"]))
        self.offsets = self.kept.load
        self.skipped = self.kept.skipped
        self.starting_offsets = self.kept.starting_offsets
        self.forget = self.kept.forget

    def write(self, rows: list[dict[str, Any]], batch_id: int, query_id: str = QUERY) -> int:
        return self.results.write_batch(rows, batch_id, query_id)

    def written(self) -> list[str]:
        found: Any = self.client.lrange("rows", 0, -1)
        return sorted(each.decode() for each in found)

    def put_former(self, topic: str, partition: int, next_offset: int) -> None:
        self.client.hset(self.kept.key, f"{topic}:{partition}", str(next_offset))

    def close(self) -> None:
        self.client.close()


@pytest.fixture(params=["sql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = SqlStore(f"sqlite:///{tmp_path}/r.db") if request.param == "sql" else RedisStore()
    yield made
    made.close()


def rows(
    first: int, end: int, topic_id: str | None = None, partition: int = 0, topic: str = "in"
) -> list[dict[str, Any]]:
    """Rows of records; with an id they say which topic they are of."""
    place: dict[str, Any] = {"topic": topic, "partition": partition}
    if topic_id is not None:
        place["topicId"] = topic_id
    return [
        {**place, "offset": n, "name": f"{topic}{(topic_id or '')[:1]}-{partition}-{n:03}"}
        for n in range(first, end)
    ]


def names(*given: list[dict[str, Any]]) -> list[str]:
    return sorted(row["name"] for each in given for row in each)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.promise("created-again-ids")
def test_rows_that_say_their_topic_begin_again_in_one_that_was_created_again(
    store: Store, caplog: pytest.LogCaptureFixture
):
    assert store.write(rows(0, 5, FORMER), 0) == 5
    assert store.write(rows(0, 3, NEW) + rows(0, 2, NEW, 1), 1) == 5
    assert store.offsets() == {ZERO: 3, TopicPartition("in", 1): 2}
    # Rows of the former topic that come late, as from a state, are judged by its own positions.
    assert store.write(rows(5, 6, FORMER) + rows(3, 4, NEW), 2) == 2
    assert store.offsets()[ZERO] == 4
    assert store.written() == names(rows(0, 6, FORMER), rows(0, 4, NEW), rows(0, 2, NEW, 1))
    starting = json.loads(store.starting_offsets({"in": 3}))
    assert starting == {"in": {"0": 4, "1": 2, "2": -2}, f"in:{NEW}": {}}
    assert store.skipped() == {}
    assert warnings_in(caplog) == []


@pytest.mark.promise("order-broken", "created-again-forget")
def test_without_ids_rows_of_a_topic_that_was_created_again_are_refused(store: Store):
    store.write(rows(0, 5), 0)
    with pytest.raises(
        RowsOutOfOrder,
        match=r"in-0: batch 1 of query query-1, .* offset 0, and batch 0 .* come to 5.*forget\(to",
    ):
        store.write(rows(0, 3), 1)
    assert store.written() == names(rows(0, 5))
    assert store.offsets() == {ZERO: 5}
    # As the text says.
    store.forget("in")
    assert store.write(rows(0, 3, NEW), 1) == 3
    assert store.offsets() == {ZERO: 3}


@pytest.mark.promise("order-broken")
def test_rows_in_no_order_are_refused(store: Store):
    """A join of streams gives a record's row when the other side comes."""
    store.write(rows(0, 2, NEW) + rows(3, 5, NEW), 0)
    with pytest.raises(RowsOutOfOrder, match=r"joins of streams, unions.*then leave out"):
        store.write(rows(2, 3, NEW) + rows(5, 7, NEW), 1)
    assert store.written() == names(rows(0, 2, NEW), rows(3, 5, NEW))


@pytest.mark.parametrize("topic_id", [None, NEW])
@pytest.mark.promise("order-repeated", "order-skipped")
def test_repetitions_are_left_out_silently_and_counted(
    store: Store, caplog: pytest.LogCaptureFixture, topic_id: str | None
):
    store.write(rows(0, 5, topic_id), 0)
    store.write(rows(5, 9, topic_id), 1)
    assert store.write(rows(5, 9, topic_id), 1) == 0
    # A checkpoint that was taken back: batches come again with other ends.
    assert store.write(rows(0, 2, topic_id), 0) == 0
    assert store.write(rows(2, 4, topic_id), 1) == 0
    assert store.skipped() == {ZERO: 8}
    assert warnings_in(caplog) == []
    # From here on the store cannot tell the rest of the repetition from another topic's rows.
    assert store.write(rows(4, 12, topic_id), 2) == 3
    assert len(warnings_in(caplog)) == 1
    assert store.written() == names(rows(0, 12, topic_id))
    assert store.skipped() == {ZERO: 13}


@pytest.mark.promise("order-unknown")
def test_another_query_with_old_rows_only_is_warned_of(
    store: Store, caplog: pytest.LogCaptureFixture
):
    """The checkpoint was deleted, or the topic: the store cannot know."""
    store.write(rows(0, 5), 0)
    assert store.write(rows(0, 3), 0, OTHER_QUERY) == 0
    assert store.write(rows(3, 8), 1, OTHER_QUERY) == 3
    first, second = warnings_in(caplog)
    assert "batch 0 of query query-2 was never written, and all 3 of its rows are left out" in first
    assert "in-0: 3 rows from offset 0 on, and the store is at 5 by query-1" in first
    assert "created again" in first
    assert "and 2 of 5 of its rows are left out" in second
    assert store.skipped() == {ZERO: 5}
    assert store.written() == names(rows(0, 8))


@pytest.mark.promise("order-unknown")
def test_two_streams_in_one_store(store: Store, caplog: pytest.LogCaptureFixture):
    """Streams of different topics know nothing of each other; of one topic the second is warned
    of.
    """
    store.write(rows(0, 5, FORMER), 0)
    store.write(rows(0, 5, NEW, topic="b"), 0, OTHER_QUERY)
    store.write(rows(0, 2, NEW), 1)  # in is created again, b is not
    assert store.write(rows(5, 7, NEW, topic="b"), 1, OTHER_QUERY) == 2
    assert warnings_in(caplog) == []
    evens = [row for row in rows(0, 20, topic="c") if row["offset"] % 2 == 0]
    odds = [row for row in rows(0, 20, topic="c") if row["offset"] % 2]
    store.write(evens, 2)
    assert store.write(odds, 2, OTHER_QUERY) == 1
    assert "several queries write different rows of one topic" in warnings_in(caplog)[0]


@pytest.mark.promise("created-again-former")
def test_a_former_releases_store_goes_on_with_ids(store: Store, caplog: pytest.LogCaptureFixture):
    store.put_former("in", 0, 5)
    store.put_former("in", 1, 7)
    store.put_former("out", 0, 9)
    assert store.offsets()[ZERO] == 5
    assert store.write(rows(5, 8, FORMER), 0) == 3
    assert store.write(rows(7, 8, FORMER, 1), 1) == 1
    assert store.offsets() == {
        ZERO: 8,
        TopicPartition("in", 1): 8,
        TopicPartition("out", 0): 9,
    }
    assert warnings_in(caplog) == []
    # From here on another topic of the name is another one, in every partition.
    assert store.write(rows(0, 2, NEW) + rows(0, 2, NEW, 1), 2) == 4
    assert store.offsets()[ZERO] == 2


@pytest.mark.promise("order-unknown")
def test_a_former_releases_store_cannot_tell_whether_the_topic_is_another_one(
    store: Store, caplog: pytest.LogCaptureFixture
):
    store.put_former("in", 0, 5)
    assert store.write(rows(0, 2, NEW), 0) == 0
    assert store.write(rows(2, 4, NEW), 1) == 0
    assert len(warnings_in(caplog)) == 2  # each time, since it may be a loss each time
    assert "all 2 of its rows are left out" in warnings_in(caplog)[1]
    store.forget("in")
    assert store.write(rows(4, 6, NEW), 2) == 2
    assert store.skipped() == {}


def test_rows_without_ids_are_of_the_topic_heard_of_last(store: Store):
    store.write(rows(0, 5, FORMER), 0)
    store.write(rows(0, 2, NEW), 1)
    assert store.write(rows(2, 4), 2) == 2
    assert store.offsets() == {ZERO: 4}
    with pytest.raises(RowsOutOfOrder, match=rf"in-0 \(topic id {NEW}\): batch 3"):
        store.write(rows(3, 6), 3)


def test_whatever_happens_every_row_is_stored_once(store: Store):
    """Topics are created again, batches come again, checkpoints are taken back and cut again."""
    seed = drawn_seed()
    dice = random.Random(seed)
    partition_count = 2
    topic_ids = [f"{chr(65 + number) * 22}" for number in range(4)]
    alive = 0
    ends = [0] * partition_count
    starts: list[tuple[int, list[int]]] = []  # by batch: the topic, and where it begins
    expected: list[str] = []
    batch_id = 0
    for _ in range(120):
        del starts[batch_id:]
        starts.append((alive, list(ends)))
        batch = []
        for partition in range(partition_count):
            end = ends[partition] + dice.randrange(0, 6)
            batch += rows(ends[partition], end, topic_ids[alive], partition)
            ends[partition] = end
        dice.shuffle(batch)
        store.write(batch, batch_id)
        expected += [row["name"] for row in batch]
        batch_id += 1
        choice = dice.random()
        if choice < 0.2:
            # Only what the topic that there is still holds can come again.
            back = [n for n, (topic, _) in enumerate(starts) if topic == alive]
            batch_id = dice.choice(back)
            ends = list(starts[batch_id][1])
        elif choice < 0.24 and alive + 1 < len(topic_ids):
            alive, ends = alive + 1, [0] * partition_count
    assert store.written() == sorted(set(expected))
    assert sum(store.skipped().values()) == len(expected) - len(set(expected))
