"""kafka-python: the admin client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from tests.interop.drivers import KafkaPython
from tests.interop.samples import BASE_TIMESTAMP_MS, Rec
from tests.interop.topics import fresh_name
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield client
    finally:
        client.close()


def configs_of(admin: KafkaAdminClient, kind: ConfigResourceType, name: str) -> dict[str, Any]:
    found = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
    ((_, by_name),) = found.items()
    values = by_name[name]
    assert isinstance(values, dict)
    return values


def partition_count(admin: KafkaAdminClient, topic: str) -> int:
    return len(admin.describe_topics([topic])[0]["partitions"])


def test_create_describe_list_delete(admin: KafkaAdminClient) -> None:
    name = fresh_name()
    wanted = {name: {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": 9}}}
    admin.create_topics(wanted, validate_only=True)
    assert name not in admin.list_topics()
    created = admin.create_topics(wanted, wait_for_metadata=True)["topics"][0]
    assert (created["num_partitions"], created["replication_factor"]) == (3, 1)
    assert created["configs"]["retention.ms"]["value"] == "9"
    assert name in admin.list_topics()
    assert partition_count(admin, name) == 3
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        admin.create_topics(wanted)
    admin.delete_topics([name])
    until(lambda: name not in admin.list_topics(), what=f"{name} gone")
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name])


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("not a name", {}, kafka.errors.InvalidTopicError),
        ("a-factor", {"replication_factor": 9}, kafka.errors.InvalidReplicationFactorError),
        ("a-count", {"num_partitions": 0}, kafka.errors.InvalidPartitionsError),
        (
            "a-config",
            {"configs": {"retention.ms": "x"}},
            kafka.errors.InvalidConfigurationError,
        ),
    ],
    ids=["name", "factor", "count", "config"],
)
def test_what_a_topic_cannot_be(
    admin: KafkaAdminClient, name: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.create_topics({name: options})


def test_partitions_grow_and_never_shrink(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_partitions({topic: 4}, validate_only=True)
    admin.create_partitions({topic: 3})
    until(lambda: partition_count(admin, topic) == 3, what="three partitions")
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        admin.create_partitions({topic: 2})


def test_topic_configs_change_step_by_step(admin: KafkaAdminClient, topic: str) -> None:
    def change(incremental: bool, **configs: Any) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, named)
        admin.alter_configs([resource], incremental=incremental)

    def value_becomes(key: str, value: str) -> None:
        until(
            lambda: configs_of(admin, ConfigResourceType.TOPIC, topic)[key]["value"] == value,
            what=f"{key}={value}",
        )

    change(True, retention_ms="1234567", max_message_bytes="2000000")
    value_becomes("retention.ms", "1234567")
    value_becomes("max.message.bytes", "2000000")
    change(True, retention_ms=(AlterConfigOp.DELETE, None))
    value_becomes("retention.ms", "604800000")
    change(False, segment_bytes="3000000")
    value_becomes("segment.bytes", "3000000")


def test_bad_values_change_nothing(admin: KafkaAdminClient, topic: str) -> None:
    before = configs_of(admin, ConfigResourceType.TOPIC, topic)
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "soon"})
    # This client hands errors back as text instead of raising them.
    answer = admin.alter_configs([resource])["topic"][topic]
    assert answer.startswith("[Error 40] InvalidConfigurationError")
    assert "retention.ms" in answer
    assert configs_of(admin, ConfigResourceType.TOPIC, topic) == before


def test_broker_configs_are_described(admin: KafkaAdminClient) -> None:
    values = configs_of(admin, ConfigResourceType.BROKER, "1")
    assert values["node.id"]["value"] == "1"
    assert values["log.segment.bytes"]["value"] == "1073741824"


def test_records_before_an_offset_are_deleted(
    admin: KafkaAdminClient, bootstrap: str, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    records = [Rec(b"k", b"%d" % number) for number in range(10)]
    driver = KafkaPython()
    driver.write(bootstrap, topic, records)
    assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    assert driver.read(bootstrap, topic, 6, offset=4) == records[4:]
    assert admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 4


def test_offsets_of_every_kind(admin: KafkaAdminClient, bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    stamps = [5, 90, 40]
    KafkaPython().write(
        bootstrap,
        topic,
        [Rec(b"k", b"v", timestamp_ms=BASE_TIMESTAMP_MS + stamp) for stamp in stamps],
    )

    def listed(spec: OffsetSpec | int) -> int:
        return int(admin.list_partition_offsets({partition: spec})[partition].offset)

    assert listed(OffsetSpec.EARLIEST) == 0
    assert listed(OffsetSpec.LATEST) == 3
    assert listed(OffsetSpec.MAX_TIMESTAMP) == 1
    assert listed(OffsetSpec.EARLIEST_LOCAL) == 0
    assert listed(BASE_TIMESTAMP_MS + 6) == 1


def test_log_directories(admin: KafkaAdminClient, bootstrap: str, topic: str) -> None:
    KafkaPython().write(bootstrap, topic, [Rec(b"k", b"x" * 5000)])
    described = admin.describe_log_dirs(topic_partitions={topic: [0]}, brokers=[1])
    (directory,) = described[0]["log_dirs"]
    assert directory["error_code"] == 0
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    (entry,) = directory["topics"]
    (part,) = entry["partitions"]
    assert (entry["name"], part["partition_index"], part["is_future_key"]) == (topic, 0, False)
    assert 5000 < part["partition_size"] < 5200
    assert part["offset_lag"] == 0


def test_topic_partitions_come_in_pages(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_partitions({topic: 5})
    until(lambda: partition_count(admin, topic) == 5, what="five partitions")
    page = admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert [part["partition_index"] for part in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"] == {"topic_name": topic, "partition_index": 3}
    rest = admin.describe_topic_partitions([topic], cursor=page["next_cursor"])
    assert [part["partition_index"] for part in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None


def test_producers_of_a_partition(admin: KafkaAdminClient, bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    KafkaPython().write(bootstrap, topic, [Rec(b"k", b"v")] * 3, enable_idempotence=True)
    (producer,) = admin.describe_producers([partition])[partition].active_producers
    assert producer.producer_id >= 0
    assert producer.producer_epoch == 0
    assert producer.last_sequence == 2


def test_the_cluster_describes_itself(admin: KafkaAdminClient, bootstrap: str) -> None:
    described = admin.describe_cluster()
    assert len(described["cluster_id"]) == 22
    assert [f"{node['host']}:{node['port']}" for node in described["brokers"]] == [bootstrap]
    assert described["brokers"][0]["is_fenced"] is False
    level = admin.describe_features()["metadata.version"]["finalized"]
    assert level[0] == level[1] > 7
