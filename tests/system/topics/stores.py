"""The readers' process `stores`: results stores of the pipelines, driven without Spark.

Owns a consumer that keeps its positions in the stores alone, and the stores: `SqlResults` with and
without topic ids and `UniqueRows` on SQLite and, where it is installed, PostgreSQL; `RedisResults`
on fakeredis. What lies in a store is reported as that store's reads. Now and then a batch comes
again, or another driver goes on where the store is. Must not judge.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import fakeredis
import sqlalchemy as sa

from moldau.client import Consumer, OffsetAndMetadata, TopicPartition
from moldau.protocol.types import uuid_from_base64, uuid_to_base64
from moldau.spark_connector.results import (
    RedisOffsets,
    RedisResults,
    RowsOutOfOrder,
    SqlResults,
    UniqueRows,
)
from tests.spark.results.databases import postgres, postgres_programs
from tests.system.topics.account import LossReport, Read
from tests.system.topics.events import Teller
from tests.system.topics.readers import POLL_MS, SETTINGS, Assigned, Stop, reads_of

DIRECTORY_VARIABLE: Final = "MOLDAU_SOAK_DIRECTORY"
AGAIN: Final = 0.1
"""How often a batch is given again."""
DRIVER_S: Final = (4.0, 12.0)
"""How long a driver lives before another one goes on where the store is."""
COLUMNS: Final = ("topic", "partition", "offset", "topicId", "number")
WITHOUT_IDS: Final = ("topic", "partition", "offset", "number")
CREATE: Final = (
    "CREATE TABLE with_ids (id {id},"
    ' topic TEXT, partition INT, "offset" INT, "topicId" TEXT, number INT)',
    'CREATE TABLE without_ids (id {id}, topic TEXT, partition INT, "offset" INT, number INT)',
    "CREATE TABLE unique_rows (id {id},"
    ' topic TEXT, partition INT, "offset" INT, "topicId" TEXT, number INT,'
    ' UNIQUE (topic, partition, "offset", "topicId"))',
)
ROW_ID: Final = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
"""The number of a row: those of one writer come in order."""

POSTGRES: Final = "-postgres"
"""How the names of readers in PostgreSQL end."""
ONE_QUERY: Final = "one"

Row = dict[str, Any]
Write = Callable[[list[Row], int, str], int]
"""Rows, batch and query; how many were new."""


def read_of(row: Row) -> Read:
    """What a row of a store says."""
    topic_id = row.get("topicId")
    return Read(
        row["topic"],
        row["partition"],
        row["offset"],
        None if topic_id is None else uuid_from_base64(topic_id),
        row["number"],
    )


def create_tables(url: str) -> None:
    """The tables of a database of results."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in CREATE:
            connection.exec_driver_sql(statement.format(id=ROW_ID[engine.dialect.name]))
    engine.dispose()


@contextmanager
def own_postgres() -> Iterator[str | None]:
    """A PostgreSQL with the tables of results; None where its programs are not installed."""
    if postgres_programs() is None:
        yield None
        return
    # Not in the soak's directory: a socket's path is short, and PostgreSQL runs as another user.
    with (
        tempfile.TemporaryDirectory(prefix="moldau-pg-") as directory,
        postgres(Path(directory)) as url,
    ):
        create_tables(url)
        yield url


class Table:
    """What has come into a table, each row once."""

    def __init__(self, url: str, name: str) -> None:
        self._engine = sa.create_engine(url)
        self._query = sa.text(f'SELECT * FROM "{name}" WHERE id > :last ORDER BY id')
        self._last = 0

    def new(self) -> Iterator[Row]:
        """The rows since the last call."""
        with self._engine.connect() as connection:
            for row in connection.execute(self._query, {"last": self._last}).mappings():
                self._last = row["id"]
                yield dict(row)


class Database:
    """Results with topic ids in one database.

    Args:
        suffix: of the names of its readers.
    """

    def __init__(self, url: str, suffix: str) -> None:
        self.results = SqlResults(url, "with-ids", "with_ids")
        self._unique = UniqueRows(url, "unique_rows")
        self.writes: dict[str, Write] = {
            f"sql-results{suffix}": self._write_results,
            f"unique-rows{suffix}": self._write_unique,
        }
        self.tables = {
            f"sql-results{suffix}": Table(url, "with_ids"),
            f"unique-rows{suffix}": Table(url, "unique_rows"),
        }

    def _write_results(self, rows: list[Row], batch_id: int, query_id: str) -> int:
        return self.results.write_batch(iter(rows), COLUMNS, batch_id, query_id)

    def _write_unique(self, rows: list[Row], batch_id: int, query_id: str) -> int:
        return self._unique.write_rows(iter(rows), COLUMNS)


class Stores:
    """All stores. Each batch goes to each of them."""

    def __init__(
        self, teller: Teller, topics: list[str], directory: Path, postgres_url: str | None
    ) -> None:
        self._teller = teller
        url = f"sqlite:///{directory}/results.db"
        create_tables(url)
        sqlite = Database(url, "")
        databases = [sqlite]
        if postgres_url is not None:
            databases.append(Database(postgres_url, POSTGRES))
        self.with_ids = sqlite.results
        self._without_ids = {
            topic: SqlResults(url, f"without-ids-{topic}", "without_ids") for topic in topics
        }
        self._redis = fakeredis.FakeRedis()
        self._redis_results = RedisResults(
            RedisOffsets("", "with-ids", client=self._redis),
            lambda pipe, row: pipe.rpush("rows", json.dumps(row)),
        )
        self._redis_count = 0
        self._batch_ids: dict[str, int] = {}
        self._writes = {name: write for each in databases for name, write in each.writes.items()}
        self._writes["redis-results"] = self._redis_results.write_batch
        self._tables = {name: table for each in databases for name, table in each.tables.items()}
        self._tables["sql-results-without-ids"] = Table(url, "without_ids")

    def write(self, rows: list[Row], query_id: str, *, again: bool) -> None:
        """One batch into all stores; what has come into them is reported."""
        for name, write in self._writes.items():
            self._put(name, write, rows, query_id, again)
        for topic in self._without_ids:
            own = [row for row in rows if row["topic"] == topic]
            if own:
                # One query all the time: another one's old rows are only warned of.
                self._put(f"without-ids-{topic}", self._sql_without_ids, own, ONE_QUERY, again)
        for name, table in self._tables.items():
            self._teller.reads(name, map(read_of, table.new()))
        new = self._redis.lrange("rows", self._redis_count, -1)
        self._redis_count += len(new)
        self._teller.reads("redis-results", (read_of(json.loads(each)) for each in new))

    def _put(self, store: str, write: Write, rows: list[Row], query_id: str, again: bool) -> None:
        key = f"{store} {query_id}"
        batch_id = self._batch_ids.get(key, -1) + 1
        self._batch_ids[key] = batch_id
        count = write(rows, batch_id, query_id)
        if count != len(rows):
            self._teller.wrong(store, f"{count} of {len(rows)} rows of a new batch were new")
        if again and (count := write(rows, batch_id, query_id)):
            self._teller.wrong(store, f"{count} rows of a batch that came again were new")

    def _sql_without_ids(self, rows: list[Row], batch_id: int, query_id: str) -> int:
        topic = rows[0]["topic"]
        plain = [{name: row[name] for name in WITHOUT_IDS} for row in rows]
        store = self._without_ids[topic]
        try:
            return store.write_batch(iter(plain), WITHOUT_IDS, batch_id, query_id)
        except RowsOutOfOrder:
            self._teller.loss("sql-results-without-ids", LossReport(topic))
            store.forget(topic)
            return store.write_batch(iter(plain), WITHOUT_IDS, batch_id, query_id)


async def stores(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """asyncio, without a group; positions are those of `SqlResults`."""
    with own_postgres() as url:
        kept = Stores(teller, topics, Path(os.environ[DIRECTORY_VARIABLE]), url)
        if url is None:
            teller.note("store-reader", "PostgreSQL is not installed here")
        await _drivers(teller, bootstrap, topics, kept)


async def _drivers(teller: Teller, bootstrap: str, topics: list[str], kept: Stores) -> None:
    """One driver after the other, each with its own consumer."""
    stop, dice = Stop(), Random()
    while not stop:
        query_id = uuid.uuid4().hex
        end = time.monotonic() + dice.uniform(*DRIVER_S)
        found = Assigned(topics)
        sought: set[TopicPartition] = set()
        async with Consumer(
            bootstrap, auto_offset_reset="earliest", isolation_level="read_committed", **SETTINGS
        ) as consumer:
            while not stop and time.monotonic() < end:
                await found.look(consumer)
                if not found.partitions:
                    continue
                _seek(kept.with_ids, consumer, found.partitions, sought)
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                reads = list(reads_of(polled, consumer.positions()))
                teller.polled("store-reader", reads)
                rows = [
                    {
                        "topic": read.topic,
                        "partition": read.partition,
                        "offset": read.offset,
                        "topicId": None if read.topic_id is None else uuid_to_base64(read.topic_id),
                        "number": read.number,
                    }
                    for read in reads
                ]
                if rows:
                    kept.write(rows, query_id, again=dice.random() < AGAIN)


def _seek(
    store: SqlResults,
    consumer: Consumer,
    partitions: list[TopicPartition],
    sought: set[TopicPartition],
) -> None:
    """Seek to where the store is, in partitions that this driver has not read yet."""
    new = [each for each in partitions if each not in sought]
    if not new:
        return
    sought |= set(new)
    counts = {
        each.topic: max(p.partition for p in new if p.topic == each.topic) + 1 for each in new
    }
    starting = json.loads(store.starting_offsets(counts))
    ids = {}
    for name in starting:
        topic, colon, topic_id = name.partition(":")
        if colon:
            ids[topic] = uuid_from_base64(topic_id)
    for each in new:
        offset = starting.get(each.topic, {}).get(str(each.partition), -2)
        if offset >= 0:
            position = OffsetAndMetadata(offset, topic_id=ids.get(each.topic))
            consumer.seek(each, position)
