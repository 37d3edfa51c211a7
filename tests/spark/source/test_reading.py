"""A task's work against a real node, without Spark: what comes of a range, or why nothing does."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from moldau.client import ConsumerConfig, NewTopic, OffsetSpec
from moldau.client.sync import Consumer, Producer
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.ranges import OffsetRange
from moldau.spark_connector.errors import DataLoss, ReadStalled
from moldau.spark_connector.source.options import SourceOptions
from moldau.spark_connector.source.partition_reader import MAX_ROWS, KeptConsumers, read_range
from moldau.spark_connector.source.planners import OffsetsReader
from tests.kit.waiting import until
from tests.spark.conftest import make_topic, options_for


@pytest.fixture
def made():
    """The consumers that were connected, in order."""
    return []


@pytest.fixture
def consumers(made):
    """What a worker's process keeps, empty at first."""

    def connect(settings):
        made.append(Consumer(config=ConsumerConfig.from_properties(settings)))
        return made[-1]

    kept = KeptConsumers(connect)
    yield kept
    kept.close_all()


@pytest.fixture
def partition(admin):
    return TopicPartition(make_topic(admin), 0)


def write(cluster, partition, values):
    columns = {"value": values, "partition": pa.array([partition.partition] * len(values), "int32")}
    with Producer(cluster.bootstrap_server) as producer:
        producer.send_arrow(partition.topic, pa.table(columns))


def read(cluster, consumers, partition, start, end, topic_id=ZERO_UUID, **given):
    """Offsets and values of a range."""
    options = SourceOptions.parse(
        options_for(cluster, assign=json.dumps({partition.topic: [partition.partition]}), **given)
    )
    rows = []
    for batch in read_range(options, OffsetRange(partition, start, end), topic_id, consumers):
        assert batch.num_columns == (8 if options.include_headers else 7)
        rows += zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    return rows


def test_a_range_is_read_exactly(cluster, consumers, partition):
    count = 2 * MAX_ROWS + 500
    write(cluster, partition, [b"%d" % number for number in range(count)])
    for start, end in [(0, count), (3, 4), (MAX_ROWS, 2 * MAX_ROWS), (count - 1, count), (7, 7)]:
        expected = [(offset, b"%d" % offset) for offset in range(start, end)]
        assert read(cluster, consumers, partition, start, end) == expected


@pytest.mark.promise("stream-connections")
def test_one_connection_serves_many_tasks(cluster, consumers, made, partition, admin):
    other = TopicPartition(make_topic(admin), 0)
    write(cluster, partition, [b"a", b"b", b"c"])
    write(cluster, other, [b"x"])
    assert read(cluster, consumers, partition, 0, 2) == [(0, b"a"), (1, b"b")]
    assert read(cluster, consumers, partition, 2, 3) == [(2, b"c")]
    assert read(cluster, consumers, other, 0, 1) == [(0, b"x")]
    assert read(cluster, consumers, partition, 1, 2) == [(1, b"b")]
    assert (len(made), consumers.kept_count) == (1, 1)
    # Other settings are another connection.
    assert read(cluster, consumers, partition, 0, 1, kafka__client__id="other") == [(0, b"a")]
    assert (len(made), consumers.kept_count) == (2, 2)


def test_a_task_that_is_given_up_leaves_a_usable_consumer(cluster, consumers, made, partition):
    write(cluster, partition, [b"%d" % number for number in range(2 * MAX_ROWS)])
    options = SourceOptions.parse(options_for(cluster, subscribe=partition.topic))
    rows = read_range(options, OffsetRange(partition, 0, 2 * MAX_ROWS), ZERO_UUID, consumers)
    assert next(rows).num_rows > 0
    rows.close()
    assert read(cluster, consumers, partition, 5, 7) == [(5, b"5"), (6, b"6")]
    assert len(made) == 1


@pytest.mark.promise("stream-aborted")
def test_aborted_records_and_markers_are_passed_over(cluster, consumers, admin, partition):
    with Producer(cluster.bootstrap_server, transactional_id=f"x-{partition.topic}") as producer:
        for number, commit in enumerate([True, False, True, False]):
            producer.init_transactions() if not number else None
            producer.begin_transaction()
            producer.send(partition.topic, b"%d" % number, partition=0)
            (producer.commit_transaction if commit else producer.abort_transaction)()
    # Offsets: 0 marker 1, 2 marker 3, …: eight in all, and only two records that count.
    end = admin.list_offsets({partition: OffsetSpec.LATEST}, read_committed=True)[partition].offset
    assert end == 8
    committed = {"kafka__isolation__level": "read_committed"}
    assert read(cluster, consumers, partition, 0, end, **committed) == [(0, b"0"), (4, b"2")]
    assert read(cluster, consumers, partition, 5, end, **committed) == []
    assert [offset for offset, _ in read(cluster, consumers, partition, 0, end)] == [0, 2, 4, 6]


def test_a_range_that_ends_inside_of_a_batch_with_gaps(cluster, consumers, partition):
    """Fewer records than offsets: what is polled may lie behind the end."""
    with Producer(cluster.bootstrap_server, transactional_id=f"g-{partition.topic}") as producer:
        for number in range(4):
            with producer.transaction():
                producer.send(partition.topic, b"%d" % number, partition=0)
    assert read(cluster, consumers, partition, 0, 4) == [(0, b"0"), (2, b"1")]
    assert read(cluster, consumers, partition, 1, 2) == []
    assert read(cluster, consumers, partition, 1, 3) == [(2, b"1")]


def test_deleted_records_fail_the_task_or_are_passed_over(
    cluster, consumers, made, admin, partition, caplog
):
    write(cluster, partition, [b"%d" % number for number in range(10)])
    admin.delete_records({partition: 6})
    with pytest.raises(DataLoss, match=r"offset 2 was to be read, but the log begins at 6"):
        read(cluster, consumers, partition, 2, 9)
    assert consumers.kept_count == 0  # nothing is kept after an error
    left = read(cluster, consumers, partition, 2, 9, failOnDataLoss="false")
    assert left == [(6, b"6"), (7, b"7"), (8, b"8")]
    assert "offset 2 was to be read, but the log begins at 6" in caplog.text
    assert read(cluster, consumers, partition, 2, 5, failOnDataLoss="false") == []


def test_an_end_that_does_not_exist_fails_the_task_soon(cluster, consumers, partition, caplog):
    write(cluster, partition, [b"a", b"b"])
    with pytest.raises(DataLoss, match=r"the log ends at 2"):
        read(cluster, consumers, partition, 0, 5, kafkaConsumer__pollTimeoutMs=100)
    left = read(
        cluster,
        consumers,
        partition,
        0,
        5,
        failOnDataLoss="false",
        kafkaConsumer__pollTimeoutMs=100,
    )
    assert left == [(0, b"a"), (1, b"b")]
    assert "the log ends at 2" in caplog.text


def test_a_topic_that_is_gone_fails_the_task(cluster, consumers, admin, partition):
    write(cluster, partition, [b"a"])
    admin.delete_topics([partition.topic])
    with pytest.raises(DataLoss, match="does not exist any more"):
        read(cluster, consumers, partition, 0, 1, kafkaConsumer__pollTimeoutMs=100)


@pytest.mark.promise("loss-told-once")
def test_a_topic_that_was_created_again_is_not_read_for_the_former_one(
    cluster, consumers, made, admin, partition, caplog
):
    """Whichever of the two a kept consumer has read before."""

    def topic_id():
        return admin.describe_topics([partition.topic])[partition.topic].topic_id

    write(cluster, partition, [b"a", b"b"])
    former_id = topic_id()
    assert read(cluster, consumers, partition, 0, 1, former_id) == [(0, b"a")]
    admin.delete_topics([partition.topic])
    until(lambda: partition.topic not in admin.list_topics(), what="it is gone", deadline_s=30)
    admin.create_topics([NewTopic(partition.topic, partition_count=1)])
    write(cluster, partition, [b"x", b"y", b"z"])
    assert read(cluster, consumers, partition, 0, 3, topic_id()) == [
        (0, b"x"),
        (1, b"y"),
        (2, b"z"),
    ]
    given = {"failOnDataLoss": "false"}
    words = f"{partition}: offset 1 was to be read; the topic was deleted and created again"
    assert read(cluster, consumers, partition, 1, 2, former_id, **given) == []
    assert caplog.text.count(words) == 1
    assert read(cluster, consumers, partition, 1, 2, topic_id()) == [(1, b"y")]
    assert len(made) == 1
    with pytest.raises(DataLoss, match=words):
        read(cluster, consumers, partition, 1, 2, former_id)


def test_records_that_do_not_come_end_the_task_in_time(cluster, consumers, partition):
    """A transaction that stays open holds back what was planned up to the log's end."""
    write(cluster, partition, [b"a"])
    with Producer(cluster.bootstrap_server, transactional_id=f"o-{partition.topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(partition.topic, b"open", partition=0)
        settings = {
            "kafka__isolation__level": "read_committed",
            "kafkaConsumer__pollTimeoutMs": 100,
        }
        # As planned by a read_uncommitted driver: the stable end is before it.
        with pytest.raises((DataLoss, ReadStalled), match=r"the log ends at 1"):
            read(cluster, consumers, partition, 0, 2, **settings)
        producer.abort_transaction()


@pytest.mark.promise("stream-stable-end")
def test_the_end_of_a_batch_lies_before_open_transactions(cluster, partition):
    """Nothing is planned for which a task would have to wait."""
    write(cluster, partition, [b"a"])
    with Producer(cluster.bootstrap_server, transactional_id=f"s-{partition.topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(partition.topic, b"open", partition=0)
        for isolation, end in (("read_committed", 1), ("read_uncommitted", 2)):
            given = options_for(
                cluster, subscribe=partition.topic, kafka__isolation__level=isolation
            )
            reader = OffsetsReader(SourceOptions.parse(given))
            assert reader.ends([partition]) == {partition: end}
            reader.close()
        producer.abort_transaction()


def test_headers_and_nulls(cluster, consumers, partition):
    with Producer(cluster.bootstrap_server) as producer:
        producer.send(partition.topic, None, key=b"k", headers=[("h", b"1"), ("h", None)])
        producer.send(partition.topic, b"v", timestamp_ms=1_700_000_000_123)
    options = SourceOptions.parse(
        options_for(cluster, subscribe=partition.topic, includeHeaders="true")
    )
    [batch] = read_range(options, OffsetRange(partition, 0, 2), ZERO_UUID, consumers)
    first, second = batch.to_pylist()
    assert (first["key"], first["value"]) == (b"k", None)
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (second["key"], second["headers"]) == (None, None)
    assert second["timestamp"].timestamp() == 1_700_000_000.123
    assert (second["topic"], second["partition"], second["timestampType"]) == (
        partition.topic,
        0,
        0,
    )
