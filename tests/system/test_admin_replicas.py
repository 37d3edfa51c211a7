"""Admin calls about replicas against a running node: pages, logs, moves, and their errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from moldau.client import (
    Admin,
    BrokerError,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    InvalidRequest,
    KafkaError,
    NewTopic,
    OffsetSpec,
    ReplicaLog,
    TopicPartition,
    TopicPartitionReplica,
    UnknownTopicOrPartition,
)
from moldau.protocol.errors import ErrorCode
from moldau.testing import Cluster
from tests.system.processes import Writer

NODE_ID = 1
OWN = TopicPartitionReplica("filled", 0, NODE_ID)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.bootstrap_server, default_api_timeout_ms=20_000) as client:
        have = await client.list_topics()
        new = [NewTopic(name, count, 1) for name, count in (("filled", 1), ("wide", 5))]
        await client.create_topics([each for each in new if each.name not in have])
        if "filled" not in have:
            writer = Writer(cluster.bootstrap_server, "filled")
            writer.send(10)
            writer.flush()
        yield client


async def test_topics_come_page_by_page(admin: Admin):
    seen: list[TopicPartition] = []
    cursors: list[TopicPartition | None] = [None]
    while len(cursors) == 1 or cursors[-1] is not None:
        page = await admin.describe_topic_partitions(
            ["wide", "filled"], cursor=cursors[-1], partition_limit=2
        )
        shown = [
            TopicPartition(topic.name, each.partition)
            for topic in page.topics
            for each in topic.partitions
        ]
        assert 0 < len(shown) <= 2
        seen += shown
        cursors.append(page.next_cursor)
    everything = await admin.describe_topics(["wide", "filled"])
    assert seen == [
        TopicPartition(name, each.partition)
        for name in ("filled", "wide")
        for each in everything[name].partitions
    ]
    assert cursors[1] == TopicPartition("wide", 1)
    assert (await admin.describe_topic_partitions([])).topics == ()
    with pytest.raises(UnknownTopicOrPartition, match="missing"):
        await admin.describe_topic_partitions(["missing"])


async def test_logs_of_replicas(admin: Admin, cluster: Cluster):
    strangers = [TopicPartitionReplica("filled", 7, NODE_ID), TopicPartitionReplica("filled", 0, 9)]
    logs = await admin.describe_replica_logs([OWN, *strangers])
    assert logs.keys() == {OWN, *strangers}
    log = logs[OWN]
    assert isinstance(log, ReplicaLog)
    assert log.directory == str(cluster.data_directory())
    assert log.size_bytes > 1_000
    assert (log.offset_lag, log.future_directory, log.future_offset_lag) == (0, None, None)
    absent, nobody = (logs[each] for each in strangers)
    assert isinstance(absent, UnknownTopicOrPartition)
    assert isinstance(nobody, KafkaError)
    assert "broker 9 is not part of the cluster" in str(nobody)


async def test_ends_of_replicas_logs(admin: Admin):
    stranger = TopicPartitionReplica("filled", 0, 9)
    gone = TopicPartitionReplica("missing", 0, NODE_ID)
    ends = await admin.list_replica_offsets([OWN, stranger, gone])
    assert ends[OWN] == 10
    assert isinstance(ends[stranger], KafkaError)
    assert isinstance(ends[gone], UnknownTopicOrPartition)
    assert await admin.list_replica_offsets([OWN], OffsetSpec.EARLIEST) == {OWN: 0}
    assert await admin.list_replica_offsets([OWN], as_consumer=True) == {OWN: 10}
    assert await admin.list_replica_offsets([]) == {}


async def test_moves_that_are_refused(admin: Admin):
    outcome = await admin.try_partition_reassignments(
        {
            TopicPartition("wide", 0): [NODE_ID],
            TopicPartition("wide", 1): [NODE_ID, NODE_ID],
            TopicPartition("wide", 2): [NODE_ID, 9],
            TopicPartition("wide", 3): None,
            TopicPartition("wide", 9): [NODE_ID],
            TopicPartition("missing", 0): [NODE_ID],
        }
    )
    codes = {key: None if error is None else error.code for key, error in outcome.items()}
    assert codes == {
        TopicPartition("wide", 0): None,
        TopicPartition("wide", 1): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicPartition("wide", 2): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        TopicPartition("wide", 3): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        TopicPartition("wide", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    with pytest.raises(InvalidRequest, match="reassign wide-1: INVALID_REPLICA_ASSIGNMENT"):
        await admin.alter_partition_reassignments({TopicPartition("wide", 1): [1, 1]})
    with pytest.raises(BrokerError, match="NO_REASSIGNMENT_IN_PROGRESS"):
        await admin.alter_partition_reassignments({TopicPartition("wide", 1): None})
    with pytest.raises(UnknownTopicOrPartition):
        await admin.alter_partition_reassignments({TopicPartition("missing", 0): [1]})
    assert await admin.list_partition_reassignments() == {}


async def test_elections(admin: Admin):
    here, gone = TopicPartition("wide", 0), TopicPartition("missing", 0)
    for kind in ElectionType:
        outcome = await admin.elect_leaders(kind, [here, gone])
        assert {key: error.code for key, error in outcome.items() if error is not None} == {
            here: ErrorCode.ELECTION_NOT_NEEDED,
            gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
    assert await admin.elect_leaders(ElectionType.PREFERRED) == {}


async def test_throttles_are_set_and_taken_away_by_incremental_changes(admin: Admin):
    broker = ConfigResource(ConfigResourceType.BROKER, str(NODE_ID))
    topic = ConfigResource(ConfigResourceType.TOPIC, "wide")
    rate, replicas = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    await admin.alter_configs(
        {broker: [ConfigChange(rate, "1000")], topic: [ConfigChange(replicas, "0:1")]}
    )
    extended = [ConfigChange(replicas, "1:1", ConfigOperation.APPEND)]
    await admin.alter_configs({topic: extended})
    told = await admin.describe_configs([broker, topic])
    assert told[broker][rate].value == "1000"
    assert told[topic][replicas].value == "0:1,1:1"
    with pytest.raises(InvalidRequest, match=rate):
        await admin.alter_configs({broker: [ConfigChange(rate, "-1")]})
    with pytest.raises(InvalidRequest, match=replicas):
        await admin.alter_configs({topic: [ConfigChange(replicas, "everything")]})
    await admin.alter_configs(
        {
            broker: [ConfigChange(rate, None, ConfigOperation.DELETE)],
            topic: [ConfigChange(replicas, None, ConfigOperation.DELETE)],
        }
    )
    told = await admin.describe_configs([topic])
    assert told[topic][replicas].value == ""
