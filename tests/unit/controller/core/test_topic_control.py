"""Topics at the controller: create, delete, grow, and everything that is refused."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from moldau.controller.core.placement import UsableBroker, place_replicas
from moldau.controller.core.result import Refusal
from moldau.metadata.image import ConfigResourceType
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from moldau.protocol.messages.p20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.unit.metadata.builders import CoreDriver, directory_id


@pytest.fixture
def driver() -> CoreDriver:
    driver = CoreDriver()
    for broker_id in (1, 2, 3):
        driver.join(broker_id)
    return driver


def create(
    driver: CoreDriver, *topics: CreatableTopic, **options: Any
) -> list[CreatableTopicResult]:
    response = driver.ask(CreateTopicsRequest(topics=list(topics), **options))
    results: list[CreatableTopicResult] = response.topics
    return results


def topic(
    name: str, partitions: int = 1, replicas: int = 1, **configs: str | None
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def manual(name: str, assignments: dict[int, list[int]], **fields: int) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=fields.get("num_partitions", -1),
        replication_factor=fields.get("replication_factor", -1),
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments.items()
        ],
    )


def test_a_topic_is_created_as_asked(driver: CoreDriver) -> None:
    (result,) = create(driver, topic("t", 4, 2, retention_ms="1000"))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 2)
    assert result.configs is not None
    shown = {each.name: each for each in result.configs}
    assert shown["retention.ms"].value == "1000"
    assert shown["retention.ms"].config_source == 1
    assert shown["segment.bytes"].config_source == 5
    created = driver.image.topics.topics_by_name["t"]
    assert created.topic_id == result.topic_id
    for partition in created.partitions.values():
        assert len(set(partition.replicas)) == 2
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert partition.directories == tuple(directory_id(each) for each in partition.replicas)
    assert driver.image.configs.get(ConfigResourceType.TOPIC, "t") == {"retention.ms": "1000"}


def test_minus_one_takes_the_brokers_defaults() -> None:
    driver = CoreDriver(num_partitions="5", default_replication_factor="1")
    driver.join(1)
    (result,) = create(driver, topic("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (5, 1)


def test_validate_only_changes_nothing(driver: CoreDriver) -> None:
    (result,) = create(driver, topic("t", 3), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert not driver.appended
    (result,) = create(driver, topic("t", 3, 9), validate_only=True)
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("grün"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a_b.c"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a.b.c"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (topic("t", no_such_key="1"), ErrorCode.INVALID_CONFIG),
        (topic("t", retention_ms=None), ErrorCode.INVALID_CONFIG),
        (topic("t", retention_ms="1" * 40_000), ErrorCode.INVALID_CONFIG),
        (manual("t", {0: [1]}, num_partitions=1), ErrorCode.INVALID_REQUEST),
        (manual("t", {0: [1]}, replication_factor=1), ErrorCode.INVALID_REQUEST),
        (manual("t", {1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (manual("t", {0: [1], 2: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (manual("t", {0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (manual("t", {0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (manual("t", {0: [1, 9]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (manual("t", {0: [1, 2], 1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_is_refused(driver: CoreDriver, wanted: CreatableTopic, error: ErrorCode) -> None:
    create(driver, topic("a.b.c"))
    before = driver.image
    (result,) = create(driver, wanted)
    assert ErrorCode.of(result.error_code) is error
    assert result.error_message
    assert result.configs == []
    assert driver.image is before


def test_one_bad_topic_leaves_the_others_alone(driver: CoreDriver) -> None:
    results = create(driver, topic("good"), topic("bad", 0), topic("x.y"), topic("x_y"))
    assert [result.error_code for result in results] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert sorted(driver.image.topics.topics_by_name) == ["good", "x.y"]


def test_a_collision_ends_with_the_topic(driver: CoreDriver) -> None:
    create(driver, topic("x.y"))
    assert create(driver, topic("x_y"))[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    driver.ask(DeleteTopicsRequest(topic_names=["x.y"]))
    assert create(driver, topic("x_y"))[0].error_code == ErrorCode.NONE


def test_a_name_given_twice(driver: CoreDriver) -> None:
    results = create(driver, topic("t"), topic("t"), topic("u"))
    assert [r.error_code for r in results] == [42, 42, 0]


def test_a_manual_assignment(driver: CoreDriver) -> None:
    (result,) = create(driver, manual("t", {1: [3, 1], 0: [2, 3]}))
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    partitions = driver.image.topics.topics_by_name["t"].partitions
    assert [partitions[index].replicas for index in (0, 1)] == [(2, 3), (3, 1)]


def test_fenced_brokers_do_not_lead(driver: CoreDriver) -> None:
    driver.beat(2, want_fence=True)
    create(driver, topic("t", 6, 3), manual("m", {0: [2, 1]}))
    for partition in driver.image.topics.topics_by_name["t"].partitions.values():
        assert set(partition.replicas) == {1, 2, 3}
        assert 2 not in partition.isr
        assert partition.leader == partition.replicas[0] != 2
    assert driver.image.topics.topics_by_name["m"].partitions[0].leader == 1
    (result,) = create(driver, manual("n", {0: [2]}))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_without_a_live_broker_nothing_is_created() -> None:
    driver = CoreDriver()
    (result,) = create(driver, topic("t"))
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    driver.join(1)
    driver.beat(1, want_fence=True)
    (result,) = create(driver, topic("t"))
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_too_many_partitions_at_once(driver: CoreDriver) -> None:
    results = create(driver, topic("a", 5_000), topic("b", 5_001))
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert not driver.appended
    (result,) = create(driver, topic("a", 10_000))
    assert result.error_code == ErrorCode.NONE


def test_too_many_partitions_at_once_by_the_brokers_default() -> None:
    driver = CoreDriver(num_partitions="5001")
    driver.join(1)
    results = create(driver, topic("a", -1), topic("b", -1))
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert not driver.appended


@pytest.mark.parametrize(
    ("size", "error"), [(32_767, ErrorCode.NONE), (32_768, ErrorCode.INVALID_CONFIG)]
)
def test_a_configured_value_has_a_largest_size(
    driver: CoreDriver, size: int, error: ErrorCode
) -> None:
    throttled = "1000:1"
    throttled += ",10:1" * ((size - len(throttled)) // 5)
    throttled = "1" * (size - len(throttled)) + throttled
    name = "leader.replication.throttled.replicas"
    (result,) = create(driver, topic("t", **{name: throttled}))
    assert result.error_code == error


def test_a_key_given_twice_is_refused(driver: CoreDriver) -> None:
    twice = topic("t", retention_ms="1", segment_ms="100")
    twice.configs.append(CreatableTopicConfig(name="retention.ms", value="1"))
    (result,) = create(driver, twice)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "twice" in str(result.error_message)
    assert not driver.image.topics.topics_by_name


def test_brokers_that_are_not_known_are_named_up_to_a_number(driver: CoreDriver) -> None:
    for count, rest in ((50, ""), (51, "and 1 more"), (60, "and 10 more")):
        unknown = list(range(100, 100 + count))
        (result,) = create(driver, manual("t", {0: unknown}))
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        message = str(result.error_message)
        assert "149" in message
        assert "150" not in message
        assert message.endswith(rest or "]")


def test_a_drawn_id_that_a_topic_has_is_drawn_again(driver: CoreDriver) -> None:
    (first,) = create(driver, topic("a"))

    class Drawn(random.Random):
        """The id of the first topic comes up again, and again."""

        left = 2

        def randbytes(self, n: int) -> bytes:
            self.left -= 1
            return first.topic_id.bytes if self.left >= 0 else super().randbytes(n)

    driver.core.state.random = Drawn(5)
    (second,) = create(driver, topic("b"))
    assert (second.error_code, second.topic_id == first.topic_id) == (0, False)
    assert len(driver.image.topics.topics_by_id) == 2


def test_topics_of_a_request_that_are_alike_are_described_once(driver: CoreDriver) -> None:
    alike = [topic(name, retention_ms="5") for name in "ab"]
    first, second, other = create(driver, *alike, topic("c"))
    assert first.configs is second.configs
    assert first.configs != other.configs


def test_delete_by_name_and_by_id(driver: CoreDriver) -> None:
    _first, second, _third = create(driver, topic("a"), topic("b"), topic("c"))
    response = driver.ask(
        DeleteTopicsRequest(
            topics=[
                DeleteTopicState(name="a"),
                DeleteTopicState(name=None, topic_id=second.topic_id),
                DeleteTopicState(name="absent"),
                DeleteTopicState(name=None, topic_id=UUID(int=77)),
                DeleteTopicState(name="c", topic_id=UUID(int=77)),
                DeleteTopicState(name=None),
            ]
        )
    )
    assert [each.error_code for each in response.responses] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [each.name for each in response.responses[:2]] == ["a", "b"]
    assert response.responses[1].topic_id == second.topic_id
    assert list(driver.image.topics.topics_by_name) == ["c"]


def test_a_topic_named_twice_is_not_deleted_at_all(driver: CoreDriver) -> None:
    (first, *_) = create(driver, topic("a"), topic("b"))
    by_id = DeleteTopicState(name=None, topic_id=first.topic_id)
    response = driver.ask(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), by_id, DeleteTopicState(name="b")])
    )
    assert [each.error_code for each in response.responses] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert list(driver.image.topics.topics_by_name) == ["a"]


def test_deletion_can_be_disabled() -> None:
    driver = CoreDriver(delete_topic_enable="false")
    driver.join(1)
    create(driver, topic("a"))
    response = driver.ask(DeleteTopicsRequest(topic_names=["a"]))
    assert response.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED


def grow(
    driver: CoreDriver,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    **options: Any,
) -> int:
    wanted = CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=each) for each in assignments],
    )
    response = driver.ask(CreatePartitionsRequest(topics=[wanted], **options))
    return int(response.results[0].error_code)


def test_a_topic_grows(driver: CoreDriver) -> None:
    create(driver, topic("t", 2, 2))
    old = driver.image.topics.topics_by_name["t"].partitions
    assert grow(driver, "t", 5, validate_only=True) == ErrorCode.NONE
    assert driver.image.topics.topics_by_name["t"].partitions == old
    assert grow(driver, "t", 4) == ErrorCode.NONE
    assert grow(driver, "t", 5, [[3, 1]]) == ErrorCode.NONE
    partitions = driver.image.topics.topics_by_name["t"].partitions
    assert sorted(partitions) == [0, 1, 2, 3, 4]
    assert {index: partitions[index] for index in (0, 1)} == old
    assert partitions[4].replicas == (3, 1)
    assert {len(each.replicas) for each in partitions.values()} == {2}


@pytest.mark.parametrize(
    ("name", "count", "assignments", "error"),
    [
        ("absent", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", -1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 2**31 - 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 10_003, None, ErrorCode.POLICY_VIOLATION),
        ("t", 1_000_000, None, ErrorCode.POLICY_VIOLATION),
        ("t", 1_000_001, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 4, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[1, 9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_that_is_refused(
    driver: CoreDriver,
    name: str,
    count: int,
    assignments: list[list[int]] | None,
    error: ErrorCode,
) -> None:
    create(driver, topic("t", 2, 2))
    before = driver.image
    assert grow(driver, name, count, assignments) == error
    assert driver.image is before


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    "name", ["__consumer_offsets", "__transaction_state", "__share_group_state"]
)
def test_the_coordinators_topics_do_not_grow(
    driver: CoreDriver, name: str, validate_only: bool
) -> None:
    """Every group and transactional id would belong in another partition."""
    create(driver, topic(name, 2, 2), topic("t"))
    before = driver.image.topics.topics_by_name[name]
    wanted = [CreatePartitionsTopic(name=each, count=3, assignments=None) for each in (name, "t")]
    response = driver.ask(CreatePartitionsRequest(topics=wanted, validate_only=validate_only))
    assert [each.error_code for each in response.results] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert "keeps its 2 partitions" in response.results[0].error_message
    assert driver.image.topics.topics_by_name[name] is before


def test_a_request_grows_by_the_largest_number_and_by_no_more(driver: CoreDriver) -> None:
    create(driver, topic("t"), topic("u"))
    assert grow(driver, "t", 10_002, validate_only=True) == ErrorCode.POLICY_VIOLATION
    assert grow(driver, "t", 10_001, validate_only=True) == ErrorCode.NONE
    wanted = [
        CreatePartitionsTopic(name=name, count=5_002, assignments=None) for name in ("t", "u")
    ]
    response = driver.ask(CreatePartitionsRequest(topics=wanted, validate_only=True))
    assert [each.error_code for each in response.results] == [
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
    ]


def test_a_topic_named_twice_does_not_grow(driver: CoreDriver) -> None:
    create(driver, topic("t"), topic("u"))
    wanted = [
        CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("t", "u", "t")
    ]
    response = driver.ask(CreatePartitionsRequest(topics=wanted))
    assert [(each.name, each.error_code) for each in response.results] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
        ("t", ErrorCode.INVALID_REQUEST),
    ]
    topics = driver.image.topics.topics_by_name
    assert (len(topics["t"].partitions), len(topics["u"].partitions)) == (1, 2)


RACKS: tuple[dict[int, str | None], ...] = (
    dict.fromkeys(range(6)),
    {0: "a", 1: "b", 2: "c", 3: "b", 4: "c", 5: "a"},
)


@pytest.mark.parametrize("racks", RACKS, ids=["no racks", "three racks"])
@pytest.mark.parametrize("seed", range(20))
def test_placement_spreads_over_brokers_and_racks(racks: dict[int, str | None], seed: int) -> None:
    brokers = [UsableBroker(broker_id, rack, False) for broker_id, rack in racks.items()]
    placements = at_once(
        place_replicas(random.Random(seed), brokers, partition_count=12, replication_factor=3)
    )
    leaders = Counter(replicas[0] for replicas in placements)
    replicas_total = Counter(broker for replicas in placements for broker in replicas)
    assert set(leaders.values()) == {2}, f"seed {seed}: {placements}"
    # Every six partitions (as many as brokers) are even; 12 partitions make 36 replicas.
    assert max(replicas_total.values()) - min(replicas_total.values()) <= 2, f"seed {seed}"
    for replicas in placements:
        assert len(set(replicas)) == 3
        if racks[0] is not None:
            assert len({racks[broker] for broker in replicas}) == 3, f"seed {seed}: {replicas}"


def test_placement_takes_fenced_brokers_last() -> None:
    brokers = [
        UsableBroker(0, None, True),
        UsableBroker(1, None, False),
        UsableBroker(2, None, True),
    ]
    for seed in range(10):
        placements = at_once(
            place_replicas(random.Random(seed), brokers, partition_count=4, replication_factor=2)
        )
        assert all(replicas[0] == 1 for replicas in placements)
    with pytest.raises(Refusal):
        at_once(
            place_replicas(random.Random(0), brokers[:1], partition_count=1, replication_factor=1)
        )


def test_the_metadata_log_cannot_be_created_as_a_topic(driver: CoreDriver) -> None:
    (refused,) = create(driver, topic("__cluster_metadata"))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert refused.configs == []
    assert driver.image.topics.topics_by_name == {}
