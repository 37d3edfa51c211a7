"""Batch reads through Spark: rows, columns, places to start and end, tasks, conditions."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from moldau.client.sync import Producer
from moldau.protocol.types import uuid_to_base64
from tests.spark.conftest import make_topic, options_for

COUNT = 100


@pytest.fixture(scope="module")
def numbers(cluster, admin):
    """A topic whose records count up, ten ms apart, alternating between two partitions."""
    name = make_topic(admin, partitions=2, retention_ms="-1")  # the records are old
    rows = range(COUNT)
    table = pa.table(
        {
            "key": [b"k%d" % row for row in rows],
            "value": [b"%d" % row for row in rows],
            "partition": pa.array([row % 2 for row in rows], "int32"),
            "timestamp": pa.array([(1_000 + 10 * row) * 1_000 for row in rows], pa.timestamp("us")),
            "headers": [[{"key": "n", "value": b"%d" % row}] for row in rows],
        }
    )
    with Producer(cluster.bootstrap_server) as producer:
        producer.send_arrow(name, table)
    return name


@pytest.fixture
def load(spark, cluster, numbers):
    """A DataFrame of the numbers with more options."""

    def loaded(**given):
        options = options_for(cluster, subscribe=numbers) | {
            name: str(value) for name, value in given.items()
        }
        return spark.read.format("moldau").options(**options).load()

    return loaded


def values(frame):
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_columns_are_sparks_own(load):
    assert load().schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert load(includeHeaders=True).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_the_topics_id_is_a_column_when_it_is_asked_for(load, admin, numbers):
    topic_id = uuid_to_base64(admin.describe_topics([numbers])[numbers].topic_id)
    for headers in (False, True):
        frame = load(includeHeaders=headers, includeTopicId=True)
        assert frame.columns[-1] == "topicId"
        assert {row.topicId for row in frame.select("topicId").collect()} == {topic_id}


def test_every_record_is_a_row(load, numbers):
    frame = load(includeHeaders=True).selectExpr("*", "unix_millis(timestamp) as time_ms")
    rows = frame.orderBy("timestamp").collect()
    assert [int(row.value) for row in rows] == list(range(COUNT))
    for number, row in enumerate(rows):
        assert (row.key, row.topic, row.partition) == (b"k%d" % number, numbers, number % 2)
        assert (row.offset, row.timestampType) == (number // 2, 0)
        assert row.time_ms == 1_000 + 10 * number
        assert [(header.key, header.value) for header in row.headers] == [("n", b"%d" % number)]


def test_places_to_start_and_end(load, numbers):
    def offsets(first, second):
        return json.dumps({numbers: {"0": first, "1": second}})

    frame = load(startingOffsets=offsets(48, -2), endingOffsets=offsets(-1, 2))
    assert values(frame) == [1, 3, 96, 98]
    assert values(load(startingTimestamp=1_970)) == [97, 98, 99]
    assert values(load(endingTimestamp=1_031)) == [0, 1, 2, 3]
    by_time = load(
        startingOffsetsByTimestamp=offsets(1_960, 1_990),
        endingOffsetsByTimestamp=offsets(1_980, 5_000),
    )
    assert values(by_time) == [96, 99]


def test_tasks_are_as_many_as_asked_for(load):
    assert load().rdd.getNumPartitions() == 2
    assert load(minPartitions=5).rdd.getNumPartitions() == 5
    assert load(maxRecordsPerPartition=20).rdd.getNumPartitions() == 6
    assert values(load(minPartitions=5, maxRecordsPerPartition=20)) == list(range(COUNT))


def test_assigned_partitions_and_patterns(spark, cluster, numbers):
    options = options_for(cluster, assign=json.dumps({numbers: [1]}))
    assert values(spark.read.format("moldau").options(**options).load()) == list(range(1, COUNT, 2))
    options = options_for(cluster, subscribePattern=f"{numbers[:-1]}.")
    assert values(spark.read.format("moldau").options(**options).load()) == list(range(COUNT))
    options = options_for(cluster, subscribePattern="nothing-.*")
    assert spark.read.format("moldau").options(**options).load().count() == 0


def test_conditions_leave_out_what_need_not_be_read(spark, load):
    conditions = (
        "partition = 1 and offset >= 10 and offset < 13 and timestamp > timestamp'1970-01-01 "
        "00:00:01.210' and int(string(value)) <> 99"
    )
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load().where(conditions)
        assert values(frame) == [23, 25]
        assert frame.rdd.getNumPartitions() == 1
        plan = frame._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    # What was taken over is not checked again; the time is.
    assert "offset#" not in plan.split("Filter")[1].split("BatchScan")[0]
    assert "timestamp#" in plan.split("Filter")[1].split("BatchScan")[0]
    assert values(load().where(conditions)) == [23, 25]
