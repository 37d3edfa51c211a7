"""Admin calls under every retriable error, cut connections and moves: each ends, done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.client import (
    Admin,
    BrokerError,
    CommittedOffset,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    KafkaError,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    UnknownTopicOrPartition,
)
from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import (
    AnswerError,
    CutRequest,
    CutResponse,
    FakeCluster,
    Garbage,
    WrongCorrelation,
)
from tests.unit.client.faults.harness import RETRIABLE, ends, outcome_text, partition

Call = Callable[[Admin], Awaitable[Any]]

_TOPIC_RESOURCE = ConfigResource(ConfigResourceType.TOPIC, "t")

FINAL = {(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
"""Retriable by its class, but what the caller asked about: raised at once, as by Kafka's own."""

COORDINATOR_CODES = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

CALLS: dict[ApiKey, Call] = {
    ApiKey.METADATA: lambda admin: admin.list_topics(),
    ApiKey.DESCRIBE_CLUSTER: lambda admin: admin.describe_cluster(),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda admin: admin.describe_topics(["t"]),
    ApiKey.DESCRIBE_CONFIGS: lambda admin: admin.describe_configs([_TOPIC_RESOURCE]),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda admin: admin.alter_configs(
        {_TOPIC_RESOURCE: [ConfigChange("retention.ms", "1000")]}
    ),
    ApiKey.LIST_OFFSETS: lambda admin: admin.list_offsets({partition(0): OffsetSpec.LATEST}),
    ApiKey.DELETE_RECORDS: lambda admin: admin.delete_records({partition(0): 0}),
    ApiKey.LIST_GROUPS: lambda admin: admin.list_groups(),
    ApiKey.LIST_TRANSACTIONS: lambda admin: admin.list_transactions(),
}
"""What may be repeated, by the API whose answer is spoilt."""

KEYED_CALLS: dict[ApiKey, Call] = {
    ApiKey.FIND_COORDINATOR: lambda admin: admin.list_group_offsets(["g"]),
    ApiKey.OFFSET_FETCH: lambda admin: admin.list_group_offsets(["g"]),
    ApiKey.OFFSET_COMMIT: lambda admin: admin.alter_group_offsets(
        "g", {partition(0): CommittedOffset(3)}
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda admin: admin.describe_groups(["g"]),
    ApiKey.DESCRIBE_GROUPS: lambda admin: admin.describe_groups(["g"]),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda admin: admin.describe_transactions(["x"]),
    ApiKey.DELETE_GROUPS: lambda admin: admin.delete_groups(["g"]),
}
"""What asks coordinators: their own errors lead to another try."""


def _cluster() -> FakeCluster:
    cluster = FakeCluster(2, topics={"t": 2})
    cluster.groups.set_committed("g", "t", 0, 3)
    cluster.transactions.begin("x", 1000)
    return cluster


@pytest.mark.parametrize("api_key", CALLS, ids=lambda key: key.name)
async def test_every_retriable_error_is_retried(api_key: ApiKey):
    failed = []
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        for code in RETRIABLE:
            if (api_key, code) in FINAL:
                continue
            by_partition = api_key in (ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS)
            level = "partition" if by_partition else "top"
            fault = cluster.fault(api_key, AnswerError(code, level=level))
            try:
                await ends(CALLS[api_key](admin), code.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
    assert failed == []


@pytest.mark.parametrize("api_key", KEYED_CALLS, ids=lambda key: key.name)
async def test_coordinators_errors_are_retried(api_key: ApiKey):
    failed = []
    async with _cluster() as cluster:
        for code in COORDINATOR_CODES:
            fault = cluster.fault(api_key, AnswerError(code))
            async with Admin(cluster.bootstrap_servers) as admin:
                outcome = await ends(KEYED_CALLS[api_key](admin), code.name)
            failed += [
                f"{code.name}: {outcome_text(answer)}"
                for answer in outcome.values()
                if isinstance(answer, KafkaError) and answer.code != ErrorCode.GROUP_ID_NOT_FOUND
            ]
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
    assert failed == []


@pytest.mark.parametrize("action", [CutRequest(20), CutResponse(9), WrongCorrelation(),
                                    Garbage(b"\xff" * 40, framed=True)])  # fmt: skip
async def test_broken_connections_are_opened_again(action: Any):
    failed = []
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        for api_key, call in {**CALLS, **KEYED_CALLS}.items():
            fault = cluster.fault(api_key, action)
            try:
                outcome = await ends(call(admin), api_key.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{api_key.name}: {outcome_text(error)}")
                continue
            errors = [e for e in _values(outcome) if isinstance(e, KafkaError)]
            failed += [outcome_text(e) for e in errors if e.code != ErrorCode.GROUP_ID_NOT_FOUND]
            if not fault.fired_count:
                failed.append(f"{api_key.name} was not met")
    assert failed == []


def _values(outcome: Any) -> list[Any]:
    return list(outcome.values()) if isinstance(outcome, dict) else []


CHANGES: dict[ApiKey, Call] = {
    ApiKey.CREATE_TOPICS: lambda admin: admin.create_topics([NewTopic("new", 2, 1)]),
    ApiKey.CREATE_PARTITIONS: lambda admin: admin.create_partitions({"t": NewPartitions(5)}),
    ApiKey.DELETE_TOPICS: lambda admin: admin.delete_topics(["t"]),
}


@pytest.mark.parametrize("api_key", CHANGES, ids=lambda key: key.name)
async def test_a_change_that_was_refused_is_made_by_another_try(api_key: ApiKey):
    refused = [code for code in RETRIABLE if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    failed = []
    for code in refused:
        async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
            cluster.fault(api_key, AnswerError(code), times=2)
            try:
                await ends(CHANGES[api_key](admin), code.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if cluster.recorder.count(api_key) != 3:
                failed.append(f"{code.name}: {cluster.recorder.count(api_key)} tries, not 3")
            state = ("new" in cluster.topics, "t" in cluster.topics)
            wanted = {
                ApiKey.CREATE_TOPICS: (True, True),
                ApiKey.CREATE_PARTITIONS: (False, True),
                ApiKey.DELETE_TOPICS: (False, False),
            }
            assert state == wanted[api_key], code.name
    assert failed == []


async def test_a_topic_that_is_unknown_to_the_controller_is_not_asked_for_again():
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        with pytest.raises(UnknownTopicOrPartition):
            await ends(admin.create_partitions({"gone": NewPartitions(5)}), "gone")
        assert cluster.recorder.count(ApiKey.CREATE_PARTITIONS) == 1


async def test_brokers_that_do_not_forward_are_asked_at_the_controller():
    cluster = _cluster()
    cluster.settings.forwards_admin = False
    async with cluster, Admin(cluster.bootstrap_servers) as admin:
        await ends(admin.create_topics([NewTopic("a", 1, 1)]), "at the controller")
        cluster.controller_id = 1
        await ends(admin.create_topics([NewTopic("b", 1, 1)]), "after it moved")
        assert {"a", "b"} <= set(cluster.topics)


async def test_a_coordinator_that_moves_is_followed():
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        before = await ends(admin.list_group_offsets(["g"]), "before")
        cluster.move_coordinator("group", "g")
        assert await ends(admin.list_group_offsets(["g"]), "after") == before
        assert before["g"] == {partition(0): CommittedOffset(3)}


async def test_a_leader_that_moves_is_followed():
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        cluster.fill("t", [b"a"])
        wanted = {partition(0): OffsetSpec.LATEST}
        await ends(admin.list_offsets(wanted), "before")
        cluster.move_leader("t", 0)
        assert (await ends(admin.list_offsets(wanted), "after"))[partition(0)].offset == 1


async def test_a_broker_that_is_gone_is_not_needed():
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        await ends(admin.list_topics(), "before")
        await cluster.stop_node(0)
        assert await ends(admin.list_topics(), "with one broker") == ["t"]
        await ends(admin.create_topics([NewTopic("new", 1, 1)]), "at the other controller")
        await cluster.start_node(0)
        await cluster.stop_node(1)
        assert await ends(admin.list_topics(), "with the other one") == ["new", "t"]


async def test_an_error_that_is_not_retriable_is_raised_at_once():
    async with _cluster() as cluster, Admin(cluster.bootstrap_servers) as admin:
        cluster.fault(
            ApiKey.CREATE_TOPICS, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), times=None
        )
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await ends(admin.create_topics([NewTopic("new", 1, 1)]), "the refusal")
        assert cluster.recorder.count(ApiKey.CREATE_TOPICS) == 1
