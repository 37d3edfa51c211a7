"""What a controller keeps of snapshots, of batches that are committed or lost, and of a log that is
new to it.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from moldau.controller.apis import DECIDERS
from moldau.controller.core.controller_core import ControllerCore, Role, decider
from moldau.controller.core.result import Asked, ControllerResult
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import feature_records, initial_feature_levels
from moldau.metadata.image import ConfigResourceType, Provenance
from moldau.metadata.scram_secret import scram_secret
from moldau.metadata.steps import at_once
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p38_create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.p44_incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerRequest
from moldau.protocol.metadata_records import (
    BeginTransactionRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from moldau.protocol.schema import Message
from tests.unit.metadata.builders import CLUSTER_ID, CoreDriver, node_config

TOPIC = ConfigResourceType.TOPIC


def standby(**settings: str) -> ControllerCore:
    config = node_config(**{"node.id": "100"})
    return ControllerCore(ControllerSettings(config, CLUSTER_ID, **settings), random.Random(7))


def levels(release: str | None = None) -> list[Message]:
    overrides = {"eligible.leader.replicas.version": 0}
    return [
        record
        for record, _version in feature_records(initial_feature_levels(overrides, release=release))
    ]


def topic(name: str, number: int) -> TopicRecord:
    return TopicRecord(name=name, topic_id=UUID(int=number))


def create(driver: CoreDriver, name: str) -> int:
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (answer,) = driver.ask(CreateTopicsRequest(topics=[wanted])).topics
    return int(answer.error_code)


def test_a_snapshot_ends_the_transaction_that_the_log_had_begun() -> None:
    core = standby()
    core.on_committed([*levels(), BeginTransactionRecord(name="x")], Provenance(9, 1, 0))
    core.on_committed([topic("lost", 1)], Provenance(10, 1, 0))
    assert not core.may_snapshot
    core.load_snapshot([*levels(), topic("kept", 2)], Provenance(20, 1, 0))
    assert core.may_snapshot
    assert set(core.committed_image.topics.topics_by_name) == {"kept"}
    core.on_committed([topic("more", 3)], Provenance(21, 1, 0))
    assert set(core.committed_image.topics.topics_by_name) == {"kept", "more"}


def test_a_transaction_counts_when_it_has_ended() -> None:
    core = standby()
    core.on_committed([*levels(), BeginTransactionRecord(name="x")], Provenance(9, 1, 0))
    core.on_committed([topic("t", 1)], Provenance(10, 1, 0))
    assert not core.committed_image.topics.topics_by_name
    core.on_committed([EndTransactionRecord()], Provenance(11, 1, 0))
    assert core.may_snapshot
    assert set(core.committed_image.topics.topics_by_name) == {"t"}


def test_the_committed_image_says_where_it_is_in_the_log() -> None:
    driver = CoreDriver()
    core = driver.core
    driver.commit()
    at = core.committed_image.provenance.last_contained_offset
    assert at == driver.log_end_offset - 1
    driver.log_end_offset += 1  # a record of the quorum itself
    driver.join(1)
    core.on_committed((), Provenance(at + 1, 1, 1_000))
    assert core.committed_image.provenance.last_contained_offset == at + 1
    assert not core.committed_image.cluster.brokers
    driver.commit()
    assert core.committed_image.provenance.last_contained_offset == driver.log_end_offset - 1
    assert set(core.committed_image.cluster.brokers) == {1}
    core.on_committed((), Provenance(driver.log_end_offset, 1, 1_000))
    assert core.committed_image.provenance.last_contained_offset == driver.log_end_offset
    assert set(core.committed_image.cluster.brokers) == {1}


def test_a_standby_decides_nothing_and_has_no_epoch() -> None:
    core = standby()
    assert (core.role, core.leader_epoch, core.tasks.next_due_ms()) == (Role.STANDBY, -1, None)
    core.activate(5, feature_records(initial_feature_levels()), monotonic_ms=0)
    assert (core.role, core.leader_epoch) == (Role.ACTIVE, 5)
    assert core.tasks.next_due_ms() is not None
    core.deactivate()
    assert (core.role, core.leader_epoch, core.tasks.next_due_ms()) == (Role.STANDBY, -1, None)


def test_a_name_that_was_never_committed_is_free() -> None:
    driver = CoreDriver()
    driver.join(1)
    driver.commit()
    assert create(driver, "a.b") == ErrorCode.NONE
    assert create(driver, "a_b") == ErrorCode.INVALID_TOPIC_EXCEPTION
    driver.core.deactivate()
    driver.core.activate(2, [], monotonic_ms=0)
    assert create(driver, "a_b") == ErrorCode.NONE
    assert create(driver, "a.b") == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_in_a_snapshot_collide_with_new_ones() -> None:
    driver = CoreDriver()
    driver.join(1)
    driver.commit()
    records = [record for record, _version in driver.image.write()]
    driver.core.deactivate()
    driver.core.load_snapshot([*records, topic("a.b", 5)], Provenance(99, 1, 0))
    driver.core.activate(2, [], monotonic_ms=0)
    assert create(driver, "a_b") == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_of_two_names_that_collide_already_the_one_that_stays_counts() -> None:
    """Apache Kafka's controllers let both in that one request names."""
    driver = CoreDriver()
    driver.join(1)
    driver.append([(topic("a.b", 5), 0), (topic("a_b", 6), 0)])
    driver.append([(RemoveTopicRecord(topic_id=UUID(int=5)), 0)])
    assert create(driver, "a.b") == ErrorCode.INVALID_TOPIC_EXCEPTION
    driver.append([(RemoveTopicRecord(topic_id=UUID(int=6)), 0)])
    assert create(driver, "a.b") == ErrorCode.NONE


@pytest.mark.parametrize(("release", "is_one"), [("3.6-IV0", False), ("3.6-IV1", True)])
def test_the_first_records_are_one_transaction_from_the_level_that_has_them(
    release: str, is_one: bool
) -> None:
    given = [(record, 0) for record in levels(release)]
    records = standby().activate(1, given, monotonic_ms=0)
    kinds = [type(record) for record, _version in records]
    inner = [FeatureLevelRecord] * len(given)
    marked = [BeginTransactionRecord, *inner, EndTransactionRecord]
    assert kinds == (marked if is_one else inner)
    assert not any(isinstance(record, ConfigRecord) for record, _version in records)


def test_a_minimum_that_another_version_wrote_is_passed_over() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2):
        driver.join(broker_id)
    driver.topic("t", [1, 2])
    values = {(TOPIC, "t"): "many", (ConfigResourceType.BROKER, ""): "2"}
    for (resource_type, name), value in values.items():
        record = ConfigRecord(
            resource_type=resource_type,
            resource_name=name,
            name="min.insync.replicas",
            value=value,
        )
        driver.append([(record, 0)])
    assert driver.core.state.min_insync_replicas("t") == 2
    driver.beat(2, want_fence=True)
    assert driver.partition().elr == (2,)


# -- the secret behind answers about unknown users -------------------------------------------------


def test_a_token_brings_the_secret() -> None:
    driver = CoreDriver(scram_secret="drawn", **{"delegation.token.secret.key": "k"})
    request = CreateDelegationTokenRequest(renewers=[])
    assert driver.ask(request, principal="User:a").error_code == ErrorCode.NONE
    assert scram_secret(driver.image.configs) == "drawn"


def test_an_older_cluster_with_tokens_gets_it_from_its_next_active_controller() -> None:
    core = standby(scram_secret="drawn")
    token = DelegationTokenRecord(owner="User:a", requester="User:a", renewers=[], token_id="x")
    core.load_snapshot([*levels(), token], Provenance(9, 1, 0))
    (record,) = core.activate(2, [], monotonic_ms=0)
    assert isinstance(record[0], ConfigRecord)
    assert record[0].value == "drawn"
    other = standby(scram_secret="drawn")
    other.load_snapshot(levels(), Provenance(9, 1, 0))
    assert other.activate(2, [], monotonic_ms=0) == []


def test_what_decides_an_api_is_found_by_its_name() -> None:
    core = standby()
    request = UnregisterBrokerRequest(broker_id=5)
    decide = decider("ClusterControl.unregister_broker")
    result = decide(core, request, Asked(0.0, 0))
    assert isinstance(result, ControllerResult)
    assert result.response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("request_", "may_wait"),
    [
        (IncrementalAlterConfigsRequest(resources=[]), True),
        (UnregisterBrokerRequest(broker_id=5), False),
    ],
)
def test_only_what_is_decided_in_steps_may_wait_for_its_append(
    request_: Message, may_wait: bool
) -> None:
    driver = CoreDriver()
    decide = DECIDERS[ApiKey(request_.API_KEY)]
    result = at_once(driver.core.handle(request_, decide, driver.asked()))
    assert result.may_wait is may_wait
