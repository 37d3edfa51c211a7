"""`moldau topics reassign plan` in a cluster with racks, written down here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p46_list_partition_reassignments as listing
from moldau.protocol.messages import p60_describe_cluster as cluster
from moldau.protocol.messages import p75_describe_topic_partitions as describe
from tests.unit.cli.test_cluster_commands import moldau, ok
from tests.unit.client.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.real

RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.topics = {"t": 1}
        script(scripted, RACKS)
        replicas = describe.DescribeTopicPartitionsResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1, 2]
        )
        topic = describe.DescribeTopicPartitionsResponseTopic(name="t", partitions=[replicas])
        scripted.script(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            lambda _: describe.DescribeTopicPartitionsResponse(topics=[topic]),
        )
        scripted.script(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            lambda _: listing.ListPartitionReassignmentsResponse(),
        )
        yield scripted


def script(broker: ScriptedBroker, racks: dict[int, Any], fenced: tuple[int, ...] = ()) -> None:
    brokers = [
        cluster.DescribeClusterBroker(
            broker_id=each, host="localhost", port=1, rack=rack, is_fenced=each in fenced
        )
        for each, rack in racks.items()
    ]
    response = cluster.DescribeClusterResponse(cluster_id="c", controller_id=1, brokers=brokers)
    broker.script(ApiKey.DESCRIBE_CLUSTER, lambda _: response)


async def planned(broker: ScriptedBroker, *options: str) -> list[int]:
    document = json.loads(await ok(broker, "topics", "reassign", "plan", "t", *options, "--json"))
    [entry] = document["partitions"]
    return list(entry["replicas"])


async def refused(broker: ScriptedBroker, *options: str) -> str:
    done = await moldau(broker, "topics", "reassign", "plan", "t", *options)
    assert (done.status, done.output) == (1, "")
    return done.errors


async def test_replicas_are_spread_over_racks(broker: ScriptedBroker):
    one, other = await planned(broker)
    assert {RACKS[one], RACKS[other]} == {"a", "b"}
    assert sorted(await planned(broker, "--racks", "b")) == [3, 4]
    assert len(await planned(broker, "--replication-factor", "3")) == 3
    assert sorted(await planned(broker, "--without", "1,3")) == [2, 4]
    text = await ok(broker, "topics", "reassign", "plan", "t")
    assert text.endswith("1 partitions change, 1 replicas are copied, at least 0 B\n"), "unknown"
    kept = await ok(broker, "topics", "reassign", "plan", "t", "--disable-rack-aware")
    assert kept == "all partitions are where they should be\n"


async def test_what_no_plan_can_do(broker: ScriptedBroker):
    assert "no broker is in rack 'z'; racks are a, b" in await refused(broker, "--racks", "z")
    assert "t-0 needs 3 brokers and 2" in await refused(
        broker, "--racks", "a", "--replication-factor", "3"
    )
    script(broker, RACKS, fenced=(4,))
    assert "broker 4 does not serve" in await refused(broker, "--brokers", "1,4")
    assert sorted(await planned(broker, "--racks", "b", "--replication-factor", "1")) == [3]
    script(broker, {1: "a", 2: "a", 3: None})
    said = await refused(broker)
    assert "brokers 3 have no broker.rack and others have" in said
    assert said.endswith("or give --disable-rack-aware\n")
    script(broker, {})
    assert await refused(broker, "--brokers", "2") == (
        "moldau: there is no broker 2; there are none\n"
    )


async def test_a_user_that_may_not_see_moves_gets_an_error(broker: ScriptedBroker):
    broker.script(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        lambda _: listing.ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ),
    )
    assert "CLUSTER_AUTHORIZATION_FAILED" in await refused(broker)
