"""Frames to records through Spark: columns, batch writes, and everything that is refused."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.client import ConsumerRecord, TopicPartition, sync
from moldau.client.sync import Admin
from moldau.testing import Cluster
from tests.spark.conftest import make_topic, options_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def records(cluster: Cluster, topic: str) -> list[ConsumerRecord]:
    """What a reader of committed records gets."""
    found: list[ConsumerRecord] = []
    with sync.Consumer(cluster.bootstrap_server, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, each) for each in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for polled in consumer.getmany(timeout_ms=200).values():
                found += polled
    return found


def save(frame: DataFrame, options: dict[str, str], mode: str = "append") -> None:
    frame.write.format("moldau").mode(mode).options(**options).save()


def test_every_column(spark: SparkSession, cluster: Cluster, admin: Admin) -> None:
    kept = {"partitions": 3, "retention_ms": "-1"}  # records may be as old as 1970
    one, other = make_topic(admin, **kept), make_topic(admin, **kept)
    rows = [
        (b"k", b"v", one, 2, [("h", b"1"), ("h", None)], 1_600_000_000, 7),
        (None, None, other, None, None, None, 8),
        (b"", b"", one, None, [], 0, 9),
    ]
    kinds = (
        "key binary, value binary, topic string, partition int, "
        "headers array<struct<key:string,value:binary>>, seconds long, other int"
    )
    frame = spark.createDataFrame(rows, kinds).selectExpr(
        "*", "timestamp_seconds(seconds) AS timestamp"
    )
    save(frame, options_for(cluster, includeTimestamp="true"))
    found = {each.value: each for each in records(cluster, one)}
    assert found.keys() == {b"v", b""}
    first = found[b"v"]
    assert (first.key, first.partition, first.timestamp_ms) == (b"k", 2, 1_600_000_000_000)
    assert [(name, value) for name, value in first.headers] == [("h", b"1"), ("h", None)]
    assert (found[b""].key, found[b""].timestamp_ms) == (b"", 0)
    (null,) = records(cluster, other)
    assert (null.key, null.value) == (None, None)


def test_strings_and_columns_of_no_use(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    """What was read can be written as it is: the option wins over the column `topic`."""
    frame = spark.range(100).selectExpr(
        "'nowhere' AS topic", "CAST(id AS string) AS value", "'ä' AS key", "id AS offset"
    )
    save(frame, options_for(cluster, topic=topic))
    found = records(cluster, topic)
    assert Counter(each.value for each in found) == Counter(b"%d" % each for each in range(100))
    assert {each.key for each in found} == {"ä".encode()}


@pytest.mark.promise("batch-named-once")
def test_a_named_write_is_made_once(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    frame = spark.range(50).selectExpr("CAST(id AS string) AS value").repartition(2)
    options = options_for(cluster, topic=topic, txnId=f"load-{uuid.uuid4().hex}")
    for _ in range(2):
        save(frame, options)
    assert len(records(cluster, topic)) == 50
    with pytest.raises(Exception, match=r"ReplayDiffers.*with 50 rows.*with 20 rows"):
        save(frame.limit(20), options)
    save(frame, options | {"txnId": options["txnId"] + "-2", "sinkId": "shared"})
    assert len(records(cluster, topic)) == 100


@pytest.mark.promise("batch-all-or-nothing")
def test_a_failed_write_leaves_nothing(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    frame = spark.range(50).selectExpr(
        "CASE WHEN id = 49 THEN raise_error('stop') ELSE CAST(id AS string) END AS value"
    )
    with pytest.raises(Exception, match="stop"):
        save(frame, options_for(cluster, topic=topic))
    assert records(cluster, topic) == []


def test_at_least_once(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    options = options_for(cluster, topic=topic, semantics="at-least-once")
    save(spark.range(30).selectExpr("CAST(id AS string) AS value"), options)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("one\ntwo\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    writer = lines.writeStream.format("moldau").options(**options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(60)
    assert len(records(cluster, topic)) == 32


def test_output_mode_complete(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Each batch's whole result is appended, as with Spark's own sink."""
    source = tmp_path / "in"
    source.mkdir()
    options = options_for(cluster, topic=topic, checkpointLocation=str(tmp_path / "checkpoint"))
    for number in range(2):
        (source / f"{number}.txt").write_text("a\nb\n")
        lines = spark.readStream.format("text").load(str(source))
        counts = lines.groupBy("value").count()
        counts = counts.selectExpr("value AS key", "CAST(count AS string) AS value")
        writer = counts.writeStream.format("moldau").outputMode("complete").options(**options)
        writer = writer.queryName("counts")  # which Spark hands over as one more option
        writer.trigger(availableNow=True).start().awaitTermination(60)
    found = Counter((each.key, each.value) for each in records(cluster, topic))
    assert found == Counter({(b"a", b"1"): 1, (b"b", b"1"): 1, (b"a", b"2"): 1, (b"b", b"2"): 1})


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("'v' AS value", {"topc": "t"}, "did you mean topic"),
        ("'v' AS value", {"subscribe": "t"}, "subscribe is not an option of the sink"),
        ("'v' AS value", {}, "no topic: set the option `topic`"),
        ("'k' AS key", {"topic": "t"}, "there is no column 'value'"),
        ("1 AS value", {"topic": "t"}, "'value' is int"),
        ("'v' AS value, 'p' AS partition", {"topic": "t"}, "'partition' is string"),
        ("'v' AS value, CAST(null AS string) AS topic", {}, "a null in column 'topic'"),
        ("'v' AS value", {"topic": "t", "kafka.acks": "1"}, "exactly-once needs all"),
        ("'v' AS value, -1 AS partition", {"topic": "EXISTING"}, "has -1"),
        ("'v' AS value, 99 AS partition", {"topic": "EXISTING"}, "99"),
        ("'v' AS value", {"topic": "no such name!"}, "no such name!"),
    ],
)
@pytest.mark.promise("refusal-options")
def test_bad_input(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    columns: str,
    options: dict[str, str],
    problem: str,
) -> None:
    given = {name: topic if value == "EXISTING" else value for name, value in options.items()}
    quick: dict[str, Any] = {"kafka.max.block.ms": "1000"}
    with pytest.raises(Exception, match=problem):
        save(spark.sql(f"SELECT {columns}"), options_for(cluster) | quick | given)


def test_overwrite_is_refused(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match="mode overwrite is not supported"):
        save(frame, options_for(cluster, topic=topic), mode="overwrite")


@pytest.mark.parametrize("semantics", ["exactly-once", "at-least-once"])
@pytest.mark.promise("refusal-unreachable")
def test_unreachable_brokers(spark: SparkSession, semantics: str) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.default.api.timeout.ms": "500",
        "topic": "t",
        "semantics": semantics,
    }
    with pytest.raises(Exception, match=r"ClusterUnreachable(?s:.*)bootstrap\.servers"):
        save(spark.sql("SELECT 'v' AS value"), options)
