"""Comparison with Spark's own Kafka source, option by option: same columns, same rows, same
refusals; and one goes on with the other's checkpoint.
"""

from __future__ import annotations

from importlib.metadata import version

import pyarrow as pa
import pytest

from moldau.client.sync import Producer
from tests.spark.conftest import SPARK_KAFKA_JARS, make_topic, offsets_of, options_for

pytestmark = pytest.mark.skipif(
    not SPARK_KAFKA_JARS,
    reason="Spark's own Kafka source is not in .cache (make setup-all fetches it with Maven)",
)
FORMATS = ("kafka", "moldau")


@pytest.fixture(scope="module")
def written(cluster, admin):
    """A topic with three partitions of different sizes, with headers, nulls and an aborted part."""
    name = make_topic(admin, partitions=3, retention_ms="-1")  # the records are old
    rows = range(60)
    table = pa.table(
        {
            "key": [None if row % 7 == 0 else b"k%d" % row for row in rows],
            "value": [None if row % 11 == 0 else b"v%d" % row for row in rows],
            "partition": pa.array([0 if row % 3 else row % 2 for row in rows], "int32"),
            "timestamp": pa.array([(1_000 + 10 * row) * 1_000 for row in rows], pa.timestamp("us")),
            "headers": [
                [{"key": "n", "value": b"%d" % row}, {"key": "n", "value": None}] if row % 5 else []
                for row in rows
            ],
        }
    )
    with Producer(cluster.bootstrap_server, transactional_id=name) as producer:
        with producer.transaction():
            producer.send_arrow(name, table)
        producer.begin_transaction()
        producer.send(name, b"aborted", partition=2)
        producer.abort_transaction()
    return name


@pytest.fixture
def read(spark, cluster, written):
    """All rows, as one format reads them."""

    def reading(source, **given):
        says_what = given.keys() & {"assign", "subscribePattern"}
        options = options_for(cluster, **({} if says_what else {"subscribe": written}))
        options |= {name.replace("__", "."): value for name, value in given.items()}
        options = {name: value.replace("TOPIC", written) for name, value in options.items()}
        frame = spark.read.format(source).options(**options).load()
        rows = frame.selectExpr("*", "unix_micros(timestamp) as us").orderBy("partition", "offset")
        return frame.schema, [row.asDict(recursive=True) for row in rows.collect()]

    return reading


@pytest.mark.parametrize(
    "given",
    [
        {"includeHeaders": "true"},
        {"startingOffsets": '{"TOPIC":{"0":5,"1":-2,"2":-2}}'},
        {
            "startingOffsets": '{"TOPIC":{"0":5,"1":1,"2":-2}}',
            "endingOffsets": '{"TOPIC":{"0":9,"1":-1,"2":-1}}',
        },
        {"startingTimestamp": "1300", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingTimestamp": "9000"},  # the markers of transactions have timestamps, too
        {"endingTimestamp": "1300", "startingOffsets": "latest", "startingTimestamp": "0"},
        {
            "startingOffsetsByTimestamp": '{"TOPIC":{"0":1200,"1":1100,"2":0}}',
            "endingOffsetsByTimestamp": '{"TOPIC":{"0":1400,"1":9000,"2":9000}}',
        },
        {"assign": '{"TOPIC":[1]}', "minPartitions": "3"},
        {"maxRecordsPerPartition": "7", "failOnDataLoss": "FALSE"},
        {"kafka__isolation__level": "read_committed", "groupIdPrefix": "p"},
        {"kafka__group__id": "g", "kafka__max__partition__fetch__bytes": "2000"},
    ],
)
def test_columns_and_rows_are_the_same(read, given):
    theirs, ours = (read(source, **given) for source in FORMATS)
    assert ours == theirs
    assert ours[1]


@pytest.mark.parametrize(
    ("given", "theirs", "ours"),
    [
        (
            {"assign": '{"TOPIC":[0]}', "subscribe": "TOPIC"},
            "Only one of the following options can be specified",
            "assign and subscribe are given",
        ),
        ({"subscribe": " , "}, "No topics to subscribe", "subscribe=','"),
        ({"subscribePattern": ""}, "subscribe", "subscribePattern=''"),
        ({"assign": "TOPIC"}, "No topicpartitions to assign", "assign='t-"),
        ({"startingOffsets": "latest"}, "can't be latest", "startingOffsets=latest"),
        (
            {"startingOffsets": '{"TOPIC":{"0":-1,"1":-2,"2":-2}}'},
            "can't be latest",
            r"startingOffsets: .*-1 \(latest\)",
        ),
        (
            {"startingOffsets": '{"TOPIC":{"0":5}}'},
            "don't match what are assigned",
            "startingOffsets must name every partition",
        ),
        ({"startingOffsets": "somewhere"}, "got somewhere", "startingOffsets='somewhere'"),
        ({"endingOffsets": "earliest"}, "can't be earliest", "endingOffsets=earliest"),
        (
            {"endingOffsets": '{"TOPIC":{"0":-2,"1":-1,"2":-1}}'},
            "can't be earliest",
            r"endingOffsets: .*-2 \(earliest\)",
        ),
        (
            {"startingTimestamp": "99999999999999"},
            "No offset",
            "OffsetsNotFound: startingTimestamp",
        ),
        ({"startingTimestamp": "noon"}, "got noon", "startingTimestamp='noon'"),
        (
            {"startingTimestamp": "1400", "endingTimestamp": "1200"},
            "start offset is set beyond the end offset",
            "OffsetsNotFound: .* startingTimestamp leads to offset 33, which is behind 17",
        ),
        (
            {"startingOffsetsByTimestampStrategy": "middle", "startingTimestamp": "1"},
            "MIDDLE",
            "startingOffsetsByTimestampStrategy='middle'",
        ),
        ({"minPartitions": "0"}, "minPartitions must be positive", "minPartitions='0'"),
        ({"minPartitions": "x"}, 'For input string: "x"', "minPartitions='x'"),
        ({"failOnDataLoss": "maybe"}, 'For input string: "maybe"', "failOnDataLoss='maybe'"),
        ({"maxRecordsPerPartition": "0"}, "must be positive", "maxRecordsPerPartition='0'"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "is higher than the maxOffsetsPerTrigger",
            "minOffsetsPerTrigger=9 is more than maxOffsetsPerTrigger=8",
        ),
        *(
            (
                {f"kafka__{key.replace('.', '__')}": "x"},
                f"'{key}' is not",
                f"{key} is not supported",
            )
            for key in (
                "auto.offset.reset",
                "enable.auto.commit",
                "key.deserializer",
                "value.deserializer",
                "interceptor.classes",
            )
        ),
        (
            {"kafka__isolation__level": "serializable"},
            "Invalid value serializable",
            "kafka.isolation.level='serializable'",
        ),
        (
            {"subscribe": "TOPIC-that-is-not-there"},
            "UnknownTopicOrPartition",
            "TopicsNotFound: there is no t-.*-that-is-not-there",
        ),
    ],
)
def test_what_one_refuses_the_other_refuses(read, given, theirs, ours):
    for source, words in zip(FORMATS, (theirs, ours), strict=True):
        with pytest.raises(Exception, match=words):
            read(source, **given)


@pytest.mark.skipif(
    not any(
        f"-{'.'.join(version('pyspark').split('.')[:2])}." in jar.name for jar in SPARK_KAFKA_JARS
    ),
    reason="Spark's own source streams in the Spark only that it was made for: make spark-matrix",
)
@pytest.mark.parametrize("order", [FORMATS, FORMATS[::-1]])
@pytest.mark.promise("stream-checkpoint-of-spark")
def test_one_goes_on_with_the_others_checkpoint(spark, cluster, admin, tmp_path, order):
    topic = make_topic(admin, partitions=2)
    found = []

    def run(source, numbers):
        with Producer(cluster.bootstrap_server) as producer:
            for number in numbers:
                producer.send(topic, b"%d" % number, partition=number % 2)
        options = options_for(
            cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=3
        )
        frame = spark.readStream.format(source).options(**options).load()
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: found.extend(int(row.value) for row in batch.collect())
        )
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination(90)
        return offsets_of(query)["endOffset"]

    run(order[0], range(5))
    assert sorted(found) == list(range(5))
    ends = run(order[1], range(5, 9))
    assert sorted(found) == list(range(9))
    # Ours has the topic's id beside them, as a topic without partitions: nothing to the other.
    assert {name: offsets for name, offsets in ends.items() if offsets} == {topic: {"0": 5, "1": 4}}
