"""Admin calls to controllers: the quorum, features, registrations, replicas."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moldau.client import (
    Admin,
    AdminConfig,
    BrokerError,
    ConfigurationError,
    ElectionType,
    FeatureUpdate,
    InvalidRequest,
    QuorumEndpoint,
    Reassignment,
    RequestTimeout,
    TopicPartition,
    UpgradeType,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p43_elect_leaders as elect
from moldau.protocol.messages import p45_alter_partition_reassignments as alter
from moldau.protocol.messages import p46_list_partition_reassignments as listing
from moldau.protocol.messages import p54_end_quorum_epoch as end_epoch
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p57_update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.messages.p60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.messages.p64_unregister_broker import UnregisterBrokerResponse
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.p81_remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from moldau.protocol.messages.quorum_records import Endpoint
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker

IDS = {node_id: uuid.UUID(int=node_id << 80) for node_id in (NODE_ID, 8, 9)}
FAST: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 2,
    "default_api_timeout_ms": 5_000,
}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address, **FAST) as client:
        yield client


def described(
    broker: ScriptedBroker,
    *,
    leader_id: int = NODE_ID,
    leader_epoch: int = 5,
    error: ErrorCode = ErrorCode.NONE,
    knows_addresses: bool = True,
) -> Any:
    """Answers DescribeQuorum: three voters, all of which listen where the script answers."""
    host, _, port = broker.address.rpartition(":")
    replicas = [
        quorum.ReplicaState(
            replica_id=node_id,
            replica_directory_id=directory_id,
            log_end_offset=100 - node_id,
            last_fetch_timestamp=-1 if node_id == leader_id else 1_000,
            last_caught_up_timestamp=1_000 + node_id,
        )
        for node_id, directory_id in IDS.items()
    ]
    partition = quorum.PartitionDataResponse(
        error_code=error,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        high_watermark=91,
        current_voters=replicas,
        observers=[quorum.ReplicaState(replica_id=1, log_end_offset=3)],
    )
    nodes = [
        quorum.Node(
            node_id=node_id,
            listeners=[Endpoint(name="CONTROLLER", host=host, port=int(port))],
        )
        for node_id in (IDS if knows_addresses else ())
    ]
    response = quorum.DescribeQuorumResponse(
        topics=[quorum.TopicDataResponse(topic_name="__cluster_metadata", partitions=[partition])],
        nodes=nodes,
    )
    return lambda request: response


async def test_the_quorum_as_the_leader_sees_it(broker: ScriptedBroker, admin: Admin):
    broker.script(
        ApiKey.DESCRIBE_QUORUM,
        described(broker, error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        described(broker),
    )
    told = await admin.describe_metadata_quorum()
    assert (told.leader_id, told.leader_epoch, told.high_watermark) == (NODE_ID, 5, 91)
    assert [voter.replica_id for voter in told.voters] == [NODE_ID, 8, 9]
    leader, follower = told.voter(NODE_ID), told.voter(8)
    assert leader is not None
    assert follower is not None
    assert leader.last_fetch_timestamp_ms is None
    assert (follower.last_fetch_timestamp_ms, follower.last_caught_up_timestamp_ms) == (1000, 1008)
    assert follower.directory_id == IDS[8]
    assert told.voter(1) is None
    assert [observer.replica_id for observer in told.observers] == [1]
    assert told.observers[0].last_caught_up_timestamp_ms is None
    assert str(told.endpoints[8][0]) == f"CONTROLLER://{broker.address}"


async def test_voters_come_and_go(broker: ScriptedBroker, admin: Admin):
    broker.script(ApiKey.ADD_RAFT_VOTER, lambda _: AddRaftVoterResponse())
    broker.script(
        ApiKey.REMOVE_RAFT_VOTER,
        lambda _: RemoveRaftVoterResponse(
            error_code=ErrorCode.VOTER_NOT_FOUND, error_message="who is that?"
        ),
    )
    endpoint = QuorumEndpoint("CONTROLLER", "h", 9093)
    await admin.add_raft_voter(10, IDS[8], [endpoint], cluster_id="c")
    [added] = broker.requests_of(AddRaftVoterRequest)
    assert isinstance(added, AddRaftVoterRequest)
    assert (added.cluster_id, added.voter_id, added.voter_directory_id) == ("c", 10, IDS[8])
    assert [(each.name, each.host, each.port) for each in added.listeners] == [
        endpoint_of(endpoint)
    ]
    assert 0 < added.timeout_ms <= 5_000
    with pytest.raises(BrokerError, match="remove voter 9: VOTER_NOT_FOUND: who is that"):
        await admin.remove_raft_voter(9, IDS[9])
    [removed] = broker.requests_of(RemoveRaftVoterRequest)
    assert isinstance(removed, RemoveRaftVoterRequest)
    assert (removed.cluster_id, removed.voter_id) == (None, 9)


def endpoint_of(endpoint: QuorumEndpoint) -> tuple[str, str, int]:
    return (endpoint.listener_name, endpoint.host, endpoint.port)


def ended(error: ErrorCode, leader_epoch: int) -> Any:
    partition = end_epoch.PartitionDataResponse(error_code=error, leader_epoch=leader_epoch)
    topic = end_epoch.TopicDataResponse(topic_name="__cluster_metadata", partitions=[partition])
    response = end_epoch.EndQuorumEpochResponse(topics=[topic])
    return lambda request: response


@pytest.mark.parametrize(
    "answer", [ended(ErrorCode.NONE, 5), ended(ErrorCode.FENCED_LEADER_EPOCH, 6)]
)
async def test_the_leader_is_asked_to_resign_for_a_successor(
    broker: ScriptedBroker, admin: Admin, answer: Any
):
    broker.script(
        ApiKey.DESCRIBE_QUORUM,
        described(broker),
        described(broker),
        described(broker, leader_id=-1, leader_epoch=6),
        described(broker, leader_id=9, leader_epoch=6),
    )
    broker.script(ApiKey.END_QUORUM_EPOCH, answer)
    after = await admin.transfer_quorum_leader(9)
    assert (after.leader_id, after.leader_epoch) == (9, 6)
    [request] = broker.requests_of(end_epoch.EndQuorumEpochRequest)
    assert isinstance(request, end_epoch.EndQuorumEpochRequest)
    assert request.cluster_id == "scripted"
    [partition] = request.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch) == (NODE_ID, 5)
    candidates = [
        (c.candidate_id, c.candidate_directory_id) for c in partition.preferred_candidates
    ]
    assert candidates == [(9, IDS[9]), (8, IDS[8])]


async def test_a_transfer_that_cannot_be(broker: ScriptedBroker, admin: Admin):
    broker.script(ApiKey.DESCRIBE_QUORUM, described(broker))
    with pytest.raises(InvalidRequest, match="node 1 is no voter; voters are 7, 8, 9"):
        await admin.transfer_quorum_leader(1)
    assert (await admin.transfer_quorum_leader(NODE_ID)).leader_id == NODE_ID
    broker.script(ApiKey.END_QUORUM_EPOCH, ended(ErrorCode.INVALID_REQUEST, 5))
    with pytest.raises(InvalidRequest, match="end the leader's epoch: INVALID_REQUEST"):
        await admin.transfer_quorum_leader(8)
    broker.script(ApiKey.DESCRIBE_QUORUM, described(broker, knows_addresses=False))
    with pytest.raises(BrokerError, match="the address of the leader, node 7, is not known"):
        await admin.transfer_quorum_leader(8)


async def test_controllers_are_asked_directly(broker: ScriptedBroker):
    host, _, port = broker.address.rpartition(":")

    def cluster(request: Any) -> DescribeClusterResponse:
        assert isinstance(request, DescribeClusterRequest)
        assert request.endpoint_type == 2
        node = DescribeClusterBroker(broker_id=101, host=host, port=int(port))
        return DescribeClusterResponse(
            endpoint_type=2, cluster_id="c", controller_id=101, brokers=[node]
        )

    broker.script(ApiKey.DESCRIBE_CLUSTER, cluster)
    broker.script(ApiKey.DESCRIBE_QUORUM, described(broker))
    async with Admin(bootstrap_controllers=broker.address, **FAST) as admin:
        assert (await admin.describe_metadata_quorum()).leader_id == NODE_ID
        found = await admin.describe_cluster()
        assert (found.controller_id, [node.node_id for node in found.brokers]) == (101, [101])
    assert broker.requests_of(MetadataRequest) == []


def test_either_brokers_or_controllers():
    config = AdminConfig.from_properties({"bootstrap.controllers": "a:1, b:2"})
    assert (config.addresses, config.asks_controllers) == (("a:1", "b:2"), True)
    with pytest.raises(ConfigurationError, match="exclude each other"):
        AdminConfig("a:1", bootstrap_controllers="b:2")
    with pytest.raises(ConfigurationError, match="at least one HOST:PORT"):
        AdminConfig(bootstrap_controllers="")


async def test_feature_levels(broker: ScriptedBroker, admin: Admin):
    refusal = UpdatableFeatureResult(
        feature="share.version", error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message="no"
    )
    broker.script(
        ApiKey.UPDATE_FEATURES,
        lambda _: UpdateFeaturesResponse(),
        lambda _: UpdateFeaturesResponse(results=[refusal]),
        lambda _: UpdateFeaturesResponse(
            error_code=ErrorCode.FEATURE_UPDATE_FAILED, error_message="not now"
        ),
    )
    broker.served = {key: (0, 1) if key is ApiKey.UPDATE_FEATURES else (0, 127) for key in ApiKey}
    update = {"share.version": FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)}
    await admin.update_features(update, validate_only=True)
    [request] = broker.requests_of(UpdateFeaturesRequest)
    assert isinstance(request, UpdateFeaturesRequest)
    [key] = request.feature_updates
    assert (key.feature, key.max_version_level, key.upgrade_type) == ("share.version", 0, 2)
    assert request.validate_only
    with pytest.raises(BrokerError, match=r"feature share\.version: INVALID_UPDATE_VERSION: no"):
        await admin.update_features(update)
    with pytest.raises(BrokerError, match="FEATURE_UPDATE_FAILED: not now"):
        await admin.update_features(update)


async def test_unregistering_a_broker(broker: ScriptedBroker, admin: Admin):
    broker.script(
        ApiKey.UNREGISTER_BROKER,
        lambda _: UnregisterBrokerResponse(),
        lambda _: UnregisterBrokerResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED),
    )
    await admin.unregister_broker(3)
    with pytest.raises(BrokerError, match="unregister broker 3: BROKER_ID_NOT_REGISTERED"):
        await admin.unregister_broker(3)


async def test_elections_tell_what_became_of_each_partition(broker: ScriptedBroker, admin: Admin):
    results = [
        elect.PartitionResult(partition_id=0),
        elect.PartitionResult(partition_id=1, error_code=ErrorCode.ELECTION_NOT_NEEDED),
    ]
    answer = elect.ElectLeadersResponse(
        replica_election_results=[elect.ReplicaElectionResult(topic="t", partition_result=results)]
    )
    broker.script(ApiKey.ELECT_LEADERS, lambda _: answer)
    outcome = await admin.elect_leaders(
        ElectionType.UNCLEAN, [TopicPartition("t", 1), TopicPartition("t", 0)]
    )
    assert outcome[TopicPartition("t", 0)] is None
    error = outcome[TopicPartition("t", 1)]
    assert error is not None
    assert error.code is ErrorCode.ELECTION_NOT_NEEDED
    await admin.elect_leaders(ElectionType.PREFERRED)
    first, second = broker.requests_of(elect.ElectLeadersRequest)
    assert isinstance(first, elect.ElectLeadersRequest)
    assert isinstance(second, elect.ElectLeadersRequest)
    assert first.topic_partitions is not None
    assert [(each.topic, each.partitions) for each in first.topic_partitions] == [("t", [0, 1])]
    assert (first.election_type, second.election_type) == (1, 0)
    assert second.topic_partitions is None


async def test_reassignments(broker: ScriptedBroker, admin: Admin):
    bad = alter.ReassignablePartitionResponse(
        partition_index=1, error_code=ErrorCode.INVALID_REPLICA_ASSIGNMENT, error_message="twice"
    )
    broker.script(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        lambda _: alter.AlterPartitionReassignmentsResponse(),
        lambda _: alter.AlterPartitionReassignmentsResponse(
            responses=[alter.ReassignableTopicResponse(name="t", partitions=[bad])]
        ),
    )
    moves = {TopicPartition("t", 1): [2, 3], TopicPartition("t", 0): None}
    await admin.alter_partition_reassignments(moves)
    [request] = broker.requests_of(alter.AlterPartitionReassignmentsRequest)
    assert isinstance(request, alter.AlterPartitionReassignmentsRequest)
    asked = [(each.partition_index, each.replicas) for each in request.topics[0].partitions]
    assert asked == [(0, None), (1, [2, 3])]
    with pytest.raises(InvalidRequest, match="reassign t-1: INVALID_REPLICA_ASSIGNMENT: twice"):
        await admin.alter_partition_reassignments(moves)
    move = listing.OngoingPartitionReassignment(
        partition_index=1, replicas=[1, 2, 3], adding_replicas=[2, 3], removing_replicas=[1]
    )
    topic = listing.OngoingTopicReassignment(name="t", partitions=[move])
    broker.script(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        lambda _: listing.ListPartitionReassignmentsResponse(topics=[topic]),
    )
    assert await admin.list_partition_reassignments() == {
        TopicPartition("t", 1): Reassignment((1, 2, 3), (2, 3), (1,))
    }


async def test_controllers_out_of_reach_are_called_controllers():
    async with Admin(bootstrap_controllers="127.0.0.1:1", **FAST) as admin:
        with pytest.raises(RequestTimeout, match="no controller can be reached: "):
            await admin.describe_metadata_quorum(timeout_ms=300)
