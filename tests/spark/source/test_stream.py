"""Streams through Spark: batches, limits, restarts, and what changes under a running query."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from moldau.client import NewPartitions, NewTopic
from moldau.client.sync import Producer
from moldau.protocol.types import TopicPartition, uuid_to_base64
from tests.kit.waiting import until
from tests.spark.conftest import make_topic, offsets_of, options_for


@pytest.fixture
def send(cluster, topic):
    """Writes numbers to the test's topic, alternating between partitions."""

    def sent(numbers, partitions=2):
        with Producer(cluster.bootstrap_server) as producer:
            for number in numbers:
                producer.send_nowait(topic, b"%d" % number, partition=number % partitions)
            producer.flush()

    return sent


def topic_id_of(admin, topic):
    return uuid_to_base64(admin.describe_topics([topic])[topic].topic_id)


def leader_epochs(admin, topic):
    return [each.leader_epoch for each in admin.describe_topics([topic])[topic].partitions]


def wait_for(condition):
    until(condition, what="the query gets there", deadline_s=90)


class Collected:
    """Rows of a stream by batch, as `foreachBatch` sees them."""

    def __init__(self):
        self.batches = {}

    def __call__(self, frame, batch_id):
        # A batch that is run again takes the place of its first run.
        rows = frame.selectExpr("int(string(value)) as value").collect()
        self.batches[batch_id] = sorted(row.value for row in rows)

    @property
    def values(self):
        return sorted(value for values in self.batches.values() for value in values)


@pytest.fixture
def collected():
    return Collected()


@pytest.fixture
def start(spark, cluster, topic, tmp_path, collected):
    """Starts the stream; the checkpoint is the test's."""
    running = []

    def started(available_now=True, **given):
        options = options_for(cluster, subscribe=topic, startingOffsets="earliest") | {
            name.replace("__", "."): str(value) for name, value in given.items()
        }
        frame = spark.readStream.format("moldau").options(**options).load()
        writer = frame.writeStream.foreachBatch(collected)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        running.append(writer.start())
        if available_now:
            running[-1].awaitTermination(90)
        return running[-1]

    yield started
    for query in running:
        query.stop()


@pytest.mark.skipif(
    version("pyspark").startswith("4.1."), reason="PySpark 4.1 does not say where a batch begins"
)
@pytest.mark.promise("stream-available-now", "stream-progress")
def test_available_now_reads_what_exists_in_limited_batches(start, send, collected, admin, topic):
    send(range(10))
    query = start(maxOffsetsPerTrigger=4)
    assert [len(values) for _, values in sorted(collected.batches.items())] == [4, 4, 2]
    assert collected.values == list(range(10))
    source = offsets_of(query)
    with_id = {topic: {"0": 5, "1": 5}, f"{topic}:{topic_id_of(admin, topic)}": {}}
    assert source["endOffset"] == source["latestOffset"] == with_id
    # Continued from the checkpoint: only what came since.
    send(range(10, 13))
    start()
    assert collected.values == list(range(13))
    start()
    assert len(collected.batches) == 4


@pytest.mark.promise("stream-first-batch")
def test_a_running_query_sees_new_records_and_new_partitions(start, send, collected, admin, topic):
    """With `latest`, too, partitions that come later are read from their first record."""
    send(range(4))
    query = start(available_now=False, startingOffsets="latest")
    # The first batch is empty, and puts the start into the checkpoint.
    wait_for(lambda: query.lastProgress is not None and 0 in collected.batches)
    assert collected.values == []
    send(range(10, 14))
    wait_for(lambda: collected.values == list(range(10, 14)))
    admin.create_partitions({topic: NewPartitions(3)})
    send([20, 21, 22], partitions=3)
    wait_for(lambda: collected.values == [*range(10, 14), 20, 21, 22])
    query.stop()


@pytest.mark.promise("loss-names", "loss-retention")
def test_records_deleted_before_they_were_read(start, send, collected, admin, topic):
    send(range(4))
    start()
    send(range(4, 10))
    admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(Exception, match=f"DataLoss: .*{topic}-0: offset 2 was to be read, but the"):
        start()
    assert collected.values == list(range(4))
    start(failOnDataLoss="false")
    assert collected.values == [0, 1, 2, 3, 5, 7, 8, 9]


@pytest.mark.promise("stream-aborted")
def test_read_committed_streams_skip_what_was_aborted(start, collected, cluster, topic):
    with Producer(cluster.bootstrap_server, transactional_id=topic) as producer:
        producer.init_transactions()
        for number, commit in enumerate([False, True, False]):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            (producer.commit_transaction if commit else producer.abort_transaction)()
    query = start(kafka__isolation__level="read_committed")
    assert collected.values == [1]
    # The markers have offsets too: the query stands behind them.
    assert offsets_of(query)["endOffset"][topic]["0"] == 6


@pytest.mark.promise("loss-created-again")
def test_a_topic_that_was_created_again_is_read_from_its_start(
    start, send, collected, admin, topic
):
    send(range(6))
    query = start(available_now=False, failOnDataLoss="false")
    wait_for(lambda: collected.values == list(range(6)))
    admin.delete_topics([topic])
    wait_for(lambda: topic not in admin.list_topics())
    admin.create_topics([NewTopic(topic, partition_count=2)])
    send(range(100, 120))
    wait_for(lambda: collected.values[6:] == list(range(100, 120)))
    assert query.isActive
    query.stop()


@pytest.mark.promise("loss-known-by-id")
def test_a_topic_that_was_created_again_with_lower_leader_epochs(
    start, send, collected, cluster, admin, topic
):
    """While the query runs, and while it does not, when only the id shows it: the new topic is
    longer than the former one was.
    """

    def create_again(numbers):
        admin.delete_topics([topic])
        wait_for(lambda: topic not in admin.list_topics())
        admin.create_topics([NewTopic(topic, partition_count=2)])
        send(numbers)

    send(range(4))
    cluster.stop()
    cluster.restart()
    wait_for(lambda: all(epoch > 0 for epoch in leader_epochs(admin, topic)))
    query = start(available_now=False, failOnDataLoss="false")
    wait_for(lambda: collected.values == list(range(4)))
    send(range(4, 6))
    wait_for(lambda: collected.values == list(range(6)))
    create_again(range(100, 120))
    assert leader_epochs(admin, topic) == [0, 0]
    wait_for(lambda: collected.values[6:] == list(range(100, 120)))
    # A batch that is not committed would be run again, and is lost with its topic.
    wait_for(lambda: offsets_of(query)["endOffset"].get(topic) == {"0": 10, "1": 10})
    query.stop()
    create_again(range(200, 240))
    lost = f"DataLoss: .*{topic}-0: offset 10 was to be read; the topic was deleted and created ag"
    with pytest.raises(Exception, match=lost):
        start()
    assert collected.values[26:] == []
    start(failOnDataLoss="false")
    assert collected.values[26:] == list(range(200, 240))
    start()
    assert len(collected.values) == 66


def test_two_topics_by_pattern(spark, cluster, admin, tmp_path, collected):
    first, second = make_topic(admin), make_topic(admin)
    with Producer(cluster.bootstrap_server) as producer:
        producer.send(first, b"1")
        producer.send(second, b"2")
    options = options_for(cluster, subscribePattern=f"{first}|{second}", startingOffsets="earliest")
    frame = spark.readStream.format("moldau").options(**options).load()
    writer = frame.writeStream.foreachBatch(collected).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)
    assert collected.values == [1, 2]
