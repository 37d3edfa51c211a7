"""confluent-kafka (librdkafka): the admin client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.interop.drivers import Confluent
from tests.interop.samples import BASE_TIMESTAMP_MS, Rec
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until

WAIT_S = 20.0


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def refused(admin: AdminClient, new: NewTopic, *, validate_only: bool = False) -> KafkaError:
    """The error that creating a topic ends with."""
    future = admin.create_topics([new], validate_only=validate_only)[new.topic]
    with pytest.raises(KafkaException) as caught:
        future.result(WAIT_S)
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def topic_config(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert isinstance(found, dict)
    return found


def exists(admin: AdminClient, topic: str) -> bool:
    return topic in admin.list_topics(timeout=WAIT_S).topics


def test_create_describe_list_delete(admin: AdminClient) -> None:
    name = fresh_name()
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "3600000"})])[name].result(
        WAIT_S
    )
    metadata = admin.list_topics(name, timeout=WAIT_S).topics[name]
    assert sorted(metadata.partitions) == [0, 1, 2]
    for partition in metadata.partitions.values():
        assert (partition.leader, partition.replicas, partition.isrs) == (1, [1], [1])
    described = admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S)
    assert described.name == name
    assert not described.is_internal
    assert [part.id for part in described.partitions] == [0, 1, 2]
    assert str(described.topic_id) not in ("", "AAAAAAAAAAAAAAAAAAAAAA")
    assert topic_config(admin, name)["retention.ms"].value == "3600000"
    assert exists(admin, name)
    admin.delete_topics([name])[name].result(WAIT_S)
    until(lambda: not exists(admin, name), what=f"{name} gone")


def test_a_deleted_topic_can_be_made_again_empty(admin: AdminClient, bootstrap: str) -> None:
    name = fresh_name()
    driver = Confluent()
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
    driver.write(bootstrap, name, [Rec(b"old", b"old")])
    admin.delete_topics([name])[name].result(WAIT_S)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
    driver.write(bootstrap, name, [Rec(b"new", b"new")])
    assert driver.read(bootstrap, name, 1) == [Rec(b"new", b"new")]
    admin.delete_topics([name])[name].result(WAIT_S)


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    name = fresh_name()
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(WAIT_S)
    assert not exists(admin, name)
    bad = NewTopic(name, 1, 1, config={"retention.ms": "soon"})
    assert refused(admin, bad, validate_only=True).code() == KafkaError.INVALID_CONFIG


def test_defaults_of_partitions_and_replicas(admin: AdminClient) -> None:
    name = fresh_name()
    admin.create_topics([NewTopic(name)])[name].result(WAIT_S)
    assert len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 1
    admin.delete_topics([name])[name].result(WAIT_S)


def test_replicas_can_be_assigned_by_hand(admin: AdminClient) -> None:
    name = fresh_name()
    new = NewTopic(name, 2, replica_assignment=[[1], [1]])
    admin.create_topics([new])[name].result(WAIT_S)
    assert len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 2
    admin.delete_topics([name])[name].result(WAIT_S)
    unknown_broker = NewTopic(fresh_name(), 1, replica_assignment=[[4711]])
    assert refused(admin, unknown_broker).code() == KafkaError.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("name", ["with space", "ä", "a/b", "..", "x" * 250])
def test_invalid_topic_names(admin: AdminClient, name: str) -> None:
    error = refused(admin, NewTopic(name, 1, 1))
    assert error.code() == KafkaError.TOPIC_EXCEPTION
    assert not exists(admin, name)


def test_names_that_differ_in_dots_and_underscores_collide(
    admin: AdminClient, topics: TopicMaker
) -> None:
    name = topics.create(f"collide.{fresh_name()}")
    assert refused(admin, NewTopic(name.replace(".", "_"), 1, 1)).code() == (
        KafkaError.TOPIC_EXCEPTION
    )


def test_a_duplicate_is_refused(admin: AdminClient, topic: str) -> None:
    assert refused(admin, NewTopic(topic, 1, 1)).code() == KafkaError.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("t-bad-factor", 1, 5), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("t-zero-factor", 1, 0), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("t-unknown", 1, 1, config={"no.such.key": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t-number", 1, 1, config={"segment.bytes": "many"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t-range", 1, 1, config={"retention.ms": "-2"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t-codec", 1, 1, config={"compression.type": "rar"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else str(value),
)
def test_what_a_topic_cannot_be(admin: AdminClient, new: NewTopic, code: int) -> None:
    assert refused(admin, new).code() == code
    assert not exists(admin, new.topic)


def test_deleting_what_is_not_there(admin: AdminClient) -> None:
    name = fresh_name()
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics([name])[name].result(WAIT_S)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_grow_and_never_shrink(admin: AdminClient, topic: str) -> None:
    def partition_count() -> int:
        return len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)

    def refusal(count: int) -> int:
        with pytest.raises(KafkaException) as caught:
            admin.create_partitions([NewPartitions(topic, count)])[topic].result(WAIT_S)
        return int(caught.value.args[0].code())

    admin.create_partitions([NewPartitions(topic, 5)], validate_only=True)[topic].result(WAIT_S)
    assert partition_count() == 1
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(WAIT_S)
    until(lambda: partition_count() == 5, what="five partitions")
    assert refusal(2) == KafkaError.INVALID_PARTITIONS
    assert refusal(5) == KafkaError.INVALID_PARTITIONS
    assert partition_count() == 5
    missing = fresh_name()
    with pytest.raises(KafkaException) as caught:
        admin.create_partitions([NewPartitions(missing, 2)])[missing].result(WAIT_S)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topic_configs_change_step_by_step(admin: AdminClient, topic: str) -> None:
    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def source(name: str) -> ConfigSource:
        return ConfigSource(topic_config(admin, topic)[name].source)

    assert source("retention.ms") is ConfigSource.DEFAULT_CONFIG
    change("retention.ms", "1234567", AlterConfigOpType.SET)
    until(lambda: topic_config(admin, topic)["retention.ms"].value == "1234567", what="a new value")
    assert source("retention.ms") is ConfigSource.DYNAMIC_TOPIC_CONFIG
    change("max.message.bytes", "2000000", AlterConfigOpType.SET)
    assert topic_config(admin, topic)["retention.ms"].value == "1234567"
    change("retention.ms", None, AlterConfigOpType.DELETE)
    until(
        lambda: topic_config(admin, topic)["retention.ms"].value == "604800000", what="the default"
    )
    with pytest.raises(KafkaException) as caught:
        change("retention.ms", "never", AlterConfigOpType.SET)
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
    with pytest.raises(KafkaException) as caught:
        change("retention.ms", "1", AlterConfigOpType.APPEND)
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_altering_all_configs_replaces_them(admin: AdminClient, topic: str) -> None:
    def replace(config: dict[str, str]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=config)
        with pytest.warns(DeprecationWarning, match="alter_configs"):
            futures = admin.alter_configs([resource])
        futures[resource].result(WAIT_S)

    replace({"retention.ms": "1000000", "segment.bytes": "2000000"})
    until(lambda: topic_config(admin, topic)["segment.bytes"].value == "2000000", what="two values")
    replace({"retention.ms": "2000000"})
    until(
        lambda: topic_config(admin, topic)["segment.bytes"].value == "1073741824", what="one value"
    )
    assert topic_config(admin, topic)["retention.ms"].value == "2000000"


def test_broker_configs_change_while_it_runs(admin: AdminClient) -> None:
    def broker_config() -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.BROKER, "1")
        found = admin.describe_configs([resource])[resource].result(WAIT_S)
        assert isinstance(found, dict)
        return found

    def change(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    assert broker_config()["node.id"].is_read_only
    assert not broker_config()["log.retention.ms"].is_read_only
    change("log.retention.ms", "86400000", AlterConfigOpType.SET)
    try:
        entry = until(
            lambda: (found := broker_config()["log.retention.ms"]).value == "86400000" and found,
            what="a dynamic broker value",
        )
        assert isinstance(entry, ConfigEntry)
        assert ConfigSource(entry.source) is ConfigSource.DYNAMIC_BROKER_CONFIG
    finally:
        change("log.retention.ms", None, AlterConfigOpType.DELETE)
    with pytest.raises(KafkaException) as caught:
        change("node.id", "2", AlterConfigOpType.SET)
    assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST


def test_records_before_an_offset_are_deleted(
    admin: AdminClient, bootstrap: str, topic: str
) -> None:
    driver = Confluent()
    records = [Rec(b"k", b"%d" % number) for number in range(50)]
    for start in range(0, 50, 10):
        driver.write(bootstrap, topic, records[start : start + 10])

    def delete(offset: int) -> int:
        where = TopicPartition(topic, 0, offset)
        return int(admin.delete_records([where])[where].result(WAIT_S).low_watermark)

    assert delete(17) == 17
    assert driver.read(bootstrap, topic, 33, offset=17) == records[17:]
    with pytest.raises(KafkaException) as caught:
        delete(51)
    assert caught.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    assert delete(-1) == 50
    driver.write(bootstrap, topic, records[:1])
    assert driver.read(bootstrap, topic, 1, offset=50) == records[:1]


def test_offsets_of_every_kind(admin: AdminClient, bootstrap: str, topic: str) -> None:
    stamps = [5, 90, 40, 20]
    Confluent().write(
        bootstrap,
        topic,
        [Rec(None, b"v", timestamp_ms=BASE_TIMESTAMP_MS + stamp) for stamp in stamps],
    )

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        where = TopicPartition(topic, 0)
        found = admin.list_offsets({where: spec})[where].result(WAIT_S)
        return found.offset, found.timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.latest())[0] == 4
    assert listed(OffsetSpec.max_timestamp()) == (1, BASE_TIMESTAMP_MS + 90)
    assert listed(OffsetSpec.for_timestamp(BASE_TIMESTAMP_MS + 6)) == (1, BASE_TIMESTAMP_MS + 90)
    assert listed(OffsetSpec.for_timestamp(BASE_TIMESTAMP_MS + 91))[0] == -1


def test_the_cluster_describes_itself(admin: AdminClient, bootstrap: str) -> None:
    described = admin.describe_cluster().result(WAIT_S)
    assert len(described.cluster_id) == 22
    assert described.controller is not None
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [bootstrap]
    assert admin.list_topics(timeout=WAIT_S).cluster_id == described.cluster_id
