"""Topics deleted, grown and configured while clients produce to them and to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all

WAIT_S = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node that looks for old segments all the time."""
    config = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "200"}
    with Cluster(config=config) as running:
        yield running


def admin_of(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_server})


def test_a_topic_deleted_under_its_producer(cluster: Cluster, topics: TopicMaker) -> None:
    doomed, other = topics.create(), topics.create()
    settings = {"message.timeout.ms": 4000, "allow.auto.create.topics": False}
    victim = Writer(cluster.bootstrap_server, doomed, **settings)
    bystander = Writer(cluster.bootstrap_server, other)
    victim.send(200)
    until(lambda: victim.poll() >= 200, what="the first records")
    admin = admin_of(cluster)
    victim.send(50)
    bystander.send(50)
    admin.delete_topics([doomed])[doomed].result(WAIT_S)
    bystander.send(50)
    victim.flush()
    bystander.flush()
    assert bystander.refused == []
    assert len(read_all(cluster.bootstrap_server, other)) == 100
    allowed = {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._PURGE_QUEUE,
    }
    assert {error.code() for error in victim.refused} <= allowed
    assert doomed not in admin.list_topics(timeout=WAIT_S).topics
    until(
        lambda: not (cluster.data_directory() / f"{doomed}-0").exists(),
        what="its directory is gone",
    )


def test_a_topic_made_again_under_its_producer(cluster: Cluster, topics: TopicMaker) -> None:
    name = topics.create()
    writer = Writer(cluster.bootstrap_server, name, **{"enable.idempotence": False})
    writer.send(100)
    writer.flush()
    admin = admin_of(cluster)
    admin.delete_topics([name])[name].result(WAIT_S)
    topics.create(name)
    again = Writer(cluster.bootstrap_server, name)
    again.send(30)
    again.flush()
    assert again.refused == []
    assert len(read_all(cluster.bootstrap_server, name)) == 30


def test_partitions_added_under_a_producer(cluster: Cluster, topic: str) -> None:
    writer = Writer(cluster.bootstrap_server, topic)
    writer.send(100)
    admin = admin_of(cluster)
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(WAIT_S)
    writer.send(100)
    writer.flush()
    assert writer.refused == []
    assert len(read_all(cluster.bootstrap_server, topic)) == 200
    assert read_all(cluster.bootstrap_server, topic, partition=5) == []


def test_settings_changed_under_a_producer(cluster: Cluster, topic: str) -> None:
    writer = Writer(cluster.bootstrap_server, topic)
    admin = admin_of(cluster)
    for codec in ("lz4", "zstd", "uncompressed", "producer"):
        entry = ConfigEntry("compression.type", codec, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        writer.send(200)
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        writer.send(200)
    writer.flush()
    assert writer.refused == []
    values = read_all(cluster.bootstrap_server, topic)
    assert [int(value.split(b":")[0]) for value in values] == list(range(1600))


def test_segments_roll_and_old_ones_go_under_a_producer(
    cluster: Cluster, topics: TopicMaker
) -> None:
    keeps_bytes = 2 * 2**20
    config = {"segment.bytes": "1048576", "retention.bytes": str(keeps_bytes)}
    topic = topics.create(config=config)
    writer = Writer(cluster.bootstrap_server, topic)
    writer.send(5000, size_bytes=1000)
    writer.flush()
    assert writer.refused == []

    def only_what_is_kept() -> bool:
        segments = sorted((cluster.data_directory() / f"{topic}-0").glob("*.log"))
        with suppress(FileNotFoundError):  # one goes just now
            return sum(each.stat().st_size for each in segments[1:]) < keeps_bytes
        return False

    until(only_what_is_kept, what="old segments go")
    values = read_all(cluster.bootstrap_server, topic)
    last = [int(value.split(b":")[0]) for value in values]
    assert 2000 < len(last) < 5000
    assert last == list(range(5000 - len(last), 5000))
