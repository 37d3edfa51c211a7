"""foreachBatch into databases from a real stream: whatever fails, each record's result once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fakeredis
import pytest
import sqlalchemy as sa
from pyspark.errors import StreamingQueryException

from moldau.client import NewTopic, TopicPartition
from moldau.client.sync import Admin
from moldau.spark_connector.results import (
    RedisOffsets,
    RedisResults,
    ResultsBehind,
    SqlResults,
    UniqueRows,
)
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.spark.conftest import SEVERAL_BATCHES, make_topic, options_for
from tests.spark.pipelines.steps import send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, SEVERAL_BATCHES]

COUNT = 60
PER_BATCH = 20
END_S = 90


@pytest.fixture
def flights(cluster: Cluster, admin: Admin) -> str:
    """A topic with COUNT flights in two partitions."""
    name = make_topic(admin, partitions=2)
    pairs = [
        (b"%d" % n, json.dumps({"carrier": "UA" if n % 3 else "AA", "delay": n}).encode())
        for n in range(COUNT)
    ]
    send(cluster.bootstrap_server, name, pairs)
    return name


@pytest.fixture
def stream(spark: SparkSession, cluster: Cluster, flights: str) -> DataFrame:
    """Topic, partition, offset, carrier, delay; PER_BATCH records in a batch."""
    options = options_for(
        cluster, subscribe=flights, startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH
    )
    from pyspark.sql import functions as f

    records = spark.readStream.format("moldau").options(**options).load()
    parsed = f.from_json(f.col("value").cast("string"), "carrier STRING, delay INT")
    return records.select("topic", "partition", "offset", parsed.alias("it")).select(
        "topic", "partition", "offset", "it.carrier", "it.delay"
    )


def run(stream: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Everything that exists, to its end; raises what has ended it."""
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(END_S)
    finally:
        query.stop()


class Breaking:
    """Passes batches on, and breaks once at some of them, before or after what follows commits."""

    def __init__(self, inner: Callable[[DataFrame, int], None], **breaks: int) -> None:
        self._inner = inner
        self._breaks = breaks
        self.said: list[str] = []
        """What it broke with: Spark's own error does not always name the cause."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._break("before", batch_id)
        self._inner(frame, batch_id)
        self._break("after", batch_id)

    def _break(self, when: str, batch_id: int) -> None:
        if self._breaks.get(when) == batch_id:
            del self._breaks[when]
            self.said.append(f"broken {when} the commit")
            raise RuntimeError(self.said[-1])


@contextmanager
def breaks(breaking: Breaking, when: str) -> Iterator[None]:
    """The query that runs in here breaks there."""
    with pytest.raises(StreamingQueryException):
        yield
    assert breaking.said[-1] == f"broken {when} the commit"


def column(url: str, query: str) -> list[Any]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = [row[0] for row in connection.exec_driver_sql(query)]
    engine.dispose()
    return found


@pytest.mark.promise("results-sql")
def test_results_and_offsets_in_one_transaction(
    stream: DataFrame, flights: str, database: str, tmp_path: Path
):
    results = SqlResults(database, "delays", "delays")
    breaking = Breaking(results, before=0, after=1)
    for when in ("before", "after"):
        with breaks(breaking, when):
            run(stream, breaking, tmp_path / "checkpoint")
    run(stream, breaking, tmp_path / "checkpoint")
    assert sorted(column(database, "SELECT delay FROM delays")) == list(range(COUNT))
    shutil.rmtree(tmp_path / "checkpoint")  # everything comes again, and is known
    run(stream, results, tmp_path / "checkpoint")
    assert len(column(database, "SELECT delay FROM delays")) == COUNT
    assert sum(results.offsets().values()) == COUNT
    starting = json.loads(results.starting_offsets({flights: 2}))
    assert sum(starting[flights].values()) == COUNT
    results.engine.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.promise("sql-by-batch")
def test_aggregates_go_by_the_batch(stream: DataFrame, database: str, tmp_path: Path):
    totals = stream.groupBy("carrier").count().withColumnRenamed("count", "flights")
    results = SqlResults(database, "totals", "totals", keys=["carrier"])
    breaking = Breaking(results, after=1)

    def update() -> None:
        query = (
            totals.writeStream.outputMode("update")
            .foreachBatch(breaking)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(END_S)

    with breaks(breaking, "after"):
        update()
    update()
    found = dict(
        zip(
            *(
                column(database, f"SELECT {c} FROM totals ORDER BY carrier")
                for c in ("carrier", "flights")
            ),
            strict=True,
        )
    )
    assert found == {"AA": COUNT // 3, "UA": COUNT - COUNT // 3}
    results.engine.dispose()


@pytest.mark.promise("sql-behind")
def test_a_database_restored_from_a_backup_is_found(
    stream: DataFrame, cluster: Cluster, flights: str, tmp_path: Path
):
    url = f"sqlite:///{tmp_path}/results.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE delays (carrier TEXT, delay INTEGER)")
    engine.dispose()
    results = SqlResults(url, "delays", "delays")
    kept = tmp_path / "backup.db"

    def write(frame: DataFrame, batch_id: int) -> None:
        results(frame, batch_id)
        if batch_id == 0:
            shutil.copy(tmp_path / "results.db", kept)

    run(stream, write, tmp_path / "checkpoint")
    results.engine.dispose()
    shutil.copy(kept, tmp_path / "results.db")
    send(cluster.bootstrap_server, flights, [(b"x", b'{"carrier": "UA", "delay": 1}')])
    again = SqlResults(url, "delays", "delays")
    with pytest.raises(Exception, match=ResultsBehind.__name__):
        run(stream, again, tmp_path / "checkpoint")
    assert len(column(url, "SELECT delay FROM delays")) == PER_BATCH
    again.engine.dispose()


@pytest.mark.promise("results-unique")
def test_unique_rows_from_the_workers(stream: DataFrame, database: str, tmp_path: Path):
    unique = UniqueRows(database, "each_once")
    rows = stream.drop("carrier")
    breaking = Breaking(unique, after=1)
    with breaks(breaking, "after"):
        run(rows, breaking, tmp_path / "checkpoint")
    run(rows, breaking, tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "checkpoint")
    run(rows, unique, tmp_path / "checkpoint")
    assert sorted(column(database, "SELECT delay FROM each_once")) == list(range(COUNT))


class AllStores:
    """A batch goes into every kind of store, whose rows are the records' values."""

    def __init__(self, url: str, client: fakeredis.FakeRedis, key: str) -> None:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE journal (value TEXT)")
            connection.exec_driver_sql(
                "CREATE TABLE each_once (topic TEXT, topicId TEXT, partition INTEGER, offset BIGINT"
                f", value TEXT, PRIMARY KEY ({key}))"
            )
        engine.dispose()
        self.url = url
        self.client = client
        self.after: list[str] = []
        self.sql = SqlResults(url, "sums", "journal")
        self.unique = UniqueRows(url, "each_once")
        self.redis = RedisResults(
            RedisOffsets("", "sums", client=client), lambda pipe, row: pipe.rpush("v", row["value"])
        )
        self.redis_after = RedisOffsets("", "after", client=client).after(self._write_after)

    def _write_after(self, frame: DataFrame, _batch_id: int) -> None:
        self.after += [row.value for row in frame.collect()]

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        for store in (self.redis, self.redis_after, self.sql, self.unique):
            store(frame, batch_id)

    def rows(self) -> list[list[str]]:
        """What each store has."""
        found: Any = self.client.lrange("v", 0, -1)
        stores = [
            column(self.url, "SELECT value FROM journal"),
            [each.decode() for each in found],
            self.after,
            column(self.url, "SELECT value FROM each_once"),
        ]
        return [sorted(each) for each in stores]


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.promise("created-again-ids")
def test_a_topic_that_is_created_again_loses_no_row_silently(
    spark: SparkSession,
    cluster: Cluster,
    admin: Admin,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    with_ids: bool,
):
    """With the column topicId its rows are stored; without it they are refused, or warned of."""
    topic = make_topic(admin)
    key = "topic, partition, offset"
    columns = ["topic", "partition", "offset", "string(value) as value"]
    options = options_for(
        cluster, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false"
    )
    if with_ids:
        columns.append("topicId")
        key += ", topicId"
        options["includeTopicId"] = "true"
    stream = spark.readStream.format("moldau").options(**options).load().selectExpr(*columns)
    client = fakeredis.FakeRedis()
    stores = AllStores(f"sqlite:///{tmp_path}/results.db", client, key)
    send(cluster.bootstrap_server, topic, [(b"k", b"former-%d" % n) for n in range(5)])
    run(stream, stores, tmp_path / "checkpoint")
    former = [f"former-{n}" for n in range(5)]
    assert stores.rows() == [former] * 4
    admin.delete_topics([topic])
    until(lambda: topic not in admin.list_topics(), what="the topic is gone", deadline_s=END_S)
    admin.create_topics([NewTopic(topic, partition_count=1)])
    send(cluster.bootstrap_server, topic, [(b"k", b"new-%d" % n) for n in range(3)])
    if with_ids:
        run(stream, stores, tmp_path / "checkpoint")
        assert stores.rows() == [[*former, "new-0", "new-1", "new-2"]] * 4
        assert (stores.sql.skipped(), stores.unique.skipped_count) == ({}, 0)
        assert "which topic they are of" not in caplog.text
    else:
        for store in (stores, stores.redis_after, stores.sql):
            with pytest.raises(Exception, match=rf"RowsOutOfOrder.*{topic}-0: batch .*forget\("):
                run(stream, store, tmp_path / "checkpoint")
        run(stream, stores.unique, tmp_path / "checkpoint")
        assert "each_once: 3 rows of batch" in caplog.text
        assert stores.unique.skipped_count == 3
        assert stores.rows() == [former] * 4
    stores.sql.engine.dispose()
    client.close()


@pytest.fixture
def offsets() -> Iterator[RedisOffsets]:
    client = fakeredis.FakeRedis()
    yield RedisOffsets("", "sums", client=client)
    client.close()


@pytest.mark.promise("results-redis")
def test_results_and_offsets_in_redis(
    stream: DataFrame, flights: str, offsets: RedisOffsets, tmp_path: Path
):
    def add(pipe: Any, row: dict[str, Any]) -> None:
        pipe.hincrby("delays", row["carrier"], row["delay"])

    breaking = Breaking(RedisResults(offsets, add), after=1)
    with breaks(breaking, "after"):
        run(stream, breaking, tmp_path / "checkpoint")
    run(stream, breaking, tmp_path / "checkpoint")
    found: Any = offsets.client.hgetall("delays")
    assert {key: int(value) for key, value in found.items()} == {
        b"AA": sum(range(0, COUNT, 3)),
        b"UA": sum(n for n in range(COUNT) if n % 3),
    }
    assert sum(offsets.load().values()) == COUNT
    assert set(offsets.load()) == {TopicPartition(flights, 0), TopicPartition(flights, 1)}


@pytest.mark.promise("results-redis-offsets")
def test_offsets_after_the_results_are_at_least_once(
    stream: DataFrame, offsets: RedisOffsets, tmp_path: Path
):
    written: list[int] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        written.extend(row.delay for row in frame.select("delay").collect())
        if batch_id == 1 and len(written) == 2 * PER_BATCH:
            raise RuntimeError("broken between results and offsets")

    after = offsets.after(write)
    with pytest.raises(Exception, match="broken between results and offsets"):
        run(stream, after, tmp_path / "checkpoint")
    run(stream, after, tmp_path / "checkpoint")
    assert len(written) == COUNT + PER_BATCH
    assert sorted(set(written)) == list(range(COUNT))
    shutil.rmtree(tmp_path / "checkpoint")
    run(stream, after, tmp_path / "checkpoint")
    assert len(written) == COUNT + PER_BATCH


def test_unique_rows_counts_rows_that_existed_in_every_database(database: str):
    columns = ("topic", "partition", "offset", "delay")
    rows = [dict(zip(columns, ("t", 0, offset, offset), strict=True)) for offset in range(1_500)]
    unique = UniqueRows(database, "each_once")
    assert unique.write_rows(iter(rows[:1_200]), columns) == 1_200
    assert unique.write_rows(iter(rows), columns) == 300
    assert unique.skipped_count == 1_200
