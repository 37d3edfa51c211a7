"""As much as one request may change is changed, and nothing beyond: each limit from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.controller.core import (
    configuration_control,
    reassignments,
    topic_control,
)
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.protocol.messages.p45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.unit.metadata.builders import CoreDriver

LIMIT = 3
NONE, REFUSED = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION
BOTH_SIDES = pytest.mark.parametrize(("count", "error"), [(LIMIT, NONE), (LIMIT + 1, REFUSED)])


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    return driver


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch, driver: CoreDriver) -> None:
    for module in (
        configuration_control,
        reassignments,
        topic_control,
    ):
        monkeypatch.setattr(module, "MAX_RECORDS_PER_REQUEST", LIMIT)
    monkeypatch.setattr(configuration_control, "MAX_CLEARED_PARTITIONS", LIMIT)


def wanted(name: str, count: int, **options: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=count, replication_factor=1, **options)


def assigned(name: str, count: int) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in range(count)
    ]
    return CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
    )


def errors(driver: CoreDriver, answers: list[Any]) -> set[ErrorCode]:
    found = {ErrorCode.of(answer.error_code) for answer in answers}
    assert found == {NONE} or not driver.appended, "refused, and changed all the same"
    return found


@BOTH_SIDES
def test_partitions_of_new_topics(driver: CoreDriver, count: int, error: ErrorCode) -> None:
    for topics in (
        [wanted("a", count)],
        [wanted("b", 2), wanted("c", count - 2)],
        [assigned("d", count)],
        [wanted("e", -1), assigned("f", count - 1)],
        [wanted(f"h{number}", -1) for number in range(count)],
    ):
        response = driver.ask(CreateTopicsRequest(topics=topics))
        assert errors(driver, response.topics) == {error}


@BOTH_SIDES
def test_records_of_new_topics(driver: CoreDriver, count: int, error: ErrorCode) -> None:
    keys = ["retention.ms", "segment.ms", "flush.ms", "max.message.bytes", "delete.retention.ms"]
    # The topic, one partition, and what is set of it: six fit, twice the limit of partitions.
    configs = [CreatableTopicConfig(name=key, value="1000") for key in keys[: count + 1]]
    response = driver.ask(CreateTopicsRequest(topics=[wanted("a", 1, configs=configs)]))
    assert errors(driver, response.topics) == {error}


@BOTH_SIDES
def test_deleted_topics(driver: CoreDriver, count: int, error: ErrorCode) -> None:
    names = [f"t{number}" for number in range(count)]
    for name in names:
        driver.topic(name, [1])
    response = driver.ask(DeleteTopicsRequest(topic_names=names))
    assert errors(driver, response.responses) == {error}
    assert [answer.name for answer in response.responses] == names
    assert len(driver.image.topics.topics_by_name) == (0 if error is NONE else count)


@BOTH_SIDES
def test_added_partitions_of_all_topics_together(
    driver: CoreDriver, count: int, error: ErrorCode
) -> None:
    driver.topic("a", [1], [1])
    driver.topic("b", [1])
    topics = [
        CreatePartitionsTopic(name="a", count=2 + 1, assignments=None),
        CreatePartitionsTopic(name="b", count=1 + count - 1, assignments=None),
    ]
    response = driver.ask(CreatePartitionsRequest(topics=topics))
    assert [ErrorCode.of(each.error_code) for each in response.results] == [NONE, error]
    counts = [len(driver.image.topics.topics_by_name[name].partitions) for name in "ab"]
    assert counts == [3, count if error is NONE else 1]


@BOTH_SIDES
def test_moved_partitions(driver: CoreDriver, count: int, error: ErrorCode) -> None:
    driver.topic("a", *[[1]] * 2)
    driver.topic("b", *[[1]] * (count - 2))
    topics = [
        ReassignableTopic(
            name=name,
            partitions=[
                ReassignablePartition(partition_index=index, replicas=[2]) for index in range(size)
            ],
        )
        for name, size in (("a", 2), ("b", count - 2))
    ]
    response = driver.ask(AlterPartitionReassignmentsRequest(topics=topics))
    assert ErrorCode.of(response.error_code) is error
    assert len(driver.appended) == (count if error is NONE else 0)


@BOTH_SIDES
@pytest.mark.parametrize("is_legacy", [False, True])
def test_keys_of_one_resource_and_of_all_together(
    driver: CoreDriver, is_legacy: bool, count: int, error: ErrorCode
) -> None:
    driver.topic("a", [1])
    driver.topic("b", [1])
    keys = ["retention.ms", "segment.ms", "flush.ms", "delete.retention.ms"]

    def alter(sizes: dict[str, int]) -> set[ErrorCode]:
        module: Any = legacy if is_legacy else incremental
        resources = [
            module.AlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=name,
                configs=[module.AlterableConfig(name=key, value="1000") for key in keys[:size]],
            )
            for name, size in sizes.items()
        ]
        request = legacy.AlterConfigsRequest if is_legacy else None
        made: Any = request or incremental.IncrementalAlterConfigsRequest
        return errors(driver, driver.ask(made(resources=resources)).responses)

    assert alter({"a": 2, "b": count - 2}) == {error}
    assert alter({"a": count}) == {error}


@BOTH_SIDES
def test_partitions_whose_eligible_leaders_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, driver: CoreDriver, count: int, error: ErrorCode
) -> None:
    for module in (topic_control, configuration_control):
        monkeypatch.setattr(module, "MAX_RECORDS_PER_REQUEST", 100)
    for broker_id in (3, 4):
        driver.join(broker_id)
    driver.topic("t", *[[1, 2]] * count, [3, 4], min_insync_replicas="2")
    for index in range(count):
        driver.alter_partition([1], index=index)
    for broker_id in (3, 4):
        driver.beat(broker_id, want_fence=True)
    # Who is eligible where nothing is in sync stays so: one record for all would strand it.
    stranded = driver.partition(index=count)
    assert (stranded.isr, stranded.elr) == ((), (3, 4))
    resource = incremental.AlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC,
        resource_name="t",
        configs=[incremental.AlterableConfig(name="min.insync.replicas", value="1")],
    )
    response = driver.ask(incremental.IncrementalAlterConfigsRequest(resources=[resource]))
    assert errors(driver, response.responses) == {error}
    eligible = [driver.partition(index=index).elr for index in range(count + 1)]
    assert eligible == [() if error is NONE else (2,)] * count + [(3, 4)]
    value = driver.image.configs.get(ConfigResourceType.TOPIC, "t")["min.insync.replicas"]
    assert value == ("1" if error is NONE else "2")
