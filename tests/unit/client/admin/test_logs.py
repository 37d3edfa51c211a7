"""Answers about replicas' logs that a running node gives seldom, written down here."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.client import (
    Admin,
    BrokerError,
    KafkaError,
    NoBrokerAvailable,
    ReplicaLog,
    RequestTimeout,
    TopicPartitionReplica,
    UnsupportedByBroker,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p02_list_offsets as offsets
from moldau.protocol.messages import p35_describe_log_dirs as dirs
from moldau.protocol.messages import p75_describe_topic_partitions as describe
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

ONE, TWO = (TopicPartitionReplica("t", index, NODE_ID) for index in (0, 1))


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address, retry_backoff_ms=1, default_api_timeout_ms=5_000) as client:
        yield client


def directory(path: str, *partitions: dirs.DescribeLogDirsPartition, error: int = 0) -> Any:
    topics = [dirs.DescribeLogDirsTopic(name="t", partitions=list(partitions))]
    return dirs.DescribeLogDirsResult(error_code=error, log_dir=path, topics=topics)


async def test_a_log_that_moves_between_directories(admin: Admin, broker: ScriptedBroker):
    lies = dirs.DescribeLogDirsPartition(partition_index=0, partition_size=70, offset_lag=2)
    comes = dirs.DescribeLogDirsPartition(
        partition_index=0, partition_size=30, offset_lag=4, is_future_key=True
    )
    lost = dirs.DescribeLogDirsPartition(partition_index=1, partition_size=9)
    broken = directory("/c", lost, error=ErrorCode.KAFKA_STORAGE_ERROR)
    response = dirs.DescribeLogDirsResponse(
        results=[directory("/b", comes), directory("/a", lies), broken]
    )
    broker.script(ApiKey.DESCRIBE_LOG_DIRS, lambda _: response)
    logs = await admin.describe_replica_logs([TWO, ONE, ONE])
    assert logs[ONE] == ReplicaLog("/a", 70, 2, "/b", 4)
    assert isinstance(logs[TWO], KafkaError), "its directory is offline"
    [request] = broker.requests_of(dirs.DescribeLogDirsRequest)
    assert isinstance(request, dirs.DescribeLogDirsRequest)
    assert request.topics is not None
    assert [(each.topic, each.partitions) for each in request.topics] == [("t", [0, 1])]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            lambda _: dirs.DescribeLogDirsResponse(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            ),
            BrokerError,
        ),
        (lambda _: None, NoBrokerAvailable),
    ],
)
async def test_a_broker_that_does_not_tell(
    admin: Admin, broker: ScriptedBroker, answer: Any, kind: type[KafkaError]
):
    broker.script(ApiKey.DESCRIBE_LOG_DIRS, answer)
    logs = await admin.describe_replica_logs([ONE, TWO])
    assert [isinstance(log, kind) for log in logs.values()] == [True, True]
    assert len(broker.requests_of(dirs.DescribeLogDirsRequest)) == 1, "asked once"


async def test_a_broker_that_does_not_serve_the_api(broker: ScriptedBroker):
    broker.served = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 13)}
    async with Admin(broker.address) as admin:
        [problem] = (await admin.list_replica_offsets([ONE])).values()
        assert isinstance(problem, UnsupportedByBroker)


async def test_a_broker_that_is_silent(admin: Admin, broker: ScriptedBroker):
    [problem] = (await admin.list_replica_offsets([ONE], timeout_ms=0)).values()
    assert isinstance(problem, RequestTimeout | NoBrokerAvailable)


async def test_each_partition_has_its_own_answer(admin: Admin, broker: ScriptedBroker):
    entries = [
        offsets.ListOffsetsPartitionResponse(partition_index=0, offset=12),
        offsets.ListOffsetsPartitionResponse(
            partition_index=1, error_code=ErrorCode.OFFSET_NOT_AVAILABLE
        ),
    ]
    topic = offsets.ListOffsetsTopicResponse(name="t", partitions=entries)
    broker.script(ApiKey.LIST_OFFSETS, lambda _: offsets.ListOffsetsResponse(topics=[topic]))
    ends = await admin.list_replica_offsets([ONE, TWO])
    assert ends[ONE] == 12
    problem = ends[TWO]
    assert isinstance(problem, BrokerError)
    assert str(problem).startswith(f"t-1 on broker {NODE_ID}: OFFSET_NOT_AVAILABLE")
    await admin.list_replica_offsets([ONE], as_consumer=True)
    asked = broker.requests_of(offsets.ListOffsetsRequest)
    assert [each.replica_id for each in asked] == [-2, -1]  # type: ignore[attr-defined]


async def test_a_topic_created_again_between_two_pages_has_partitions_of_one_topic(
    admin: Admin, broker: ScriptedBroker
):
    """Its partitions are those of one topic, not the halves of two."""

    def page(topic_id: int, index: int, *, more: bool) -> Any:
        entry = describe.DescribeTopicPartitionsResponsePartition(partition_index=index)
        topic = describe.DescribeTopicPartitionsResponseTopic(
            name="t", topic_id=uuid.UUID(int=topic_id), partitions=[entry]
        )
        cursor = describe.Cursor(topic_name="t", partition_index=index + 1) if more else None
        return lambda _: describe.DescribeTopicPartitionsResponse(
            topics=[topic], next_cursor=cursor
        )

    broker.script(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        page(1, 0, more=True),
        page(2, 1, more=False),
        page(2, 0, more=True),
        page(2, 1, more=False),
    )
    described = (await admin.describe_topics(["t"]))["t"]
    assert described.topic_id == uuid.UUID(int=2)
    assert [each.partition for each in described.partitions] == [0, 1]
