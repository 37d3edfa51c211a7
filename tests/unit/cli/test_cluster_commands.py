"""Commands about quorum, features and elections, against answers written down here."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p18_api_versions as versions
from moldau.protocol.messages import p32_describe_configs as configs
from moldau.protocol.messages import p43_elect_leaders as elect
from moldau.protocol.messages import p44_incremental_alter_configs as altering
from moldau.protocol.messages import p55_describe_quorum as quorum
from moldau.protocol.messages import p75_describe_topic_partitions as describe
from moldau.protocol.messages.p57_update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.messages.p60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from moldau.protocol.messages.p64_unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.p81_remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from moldau.protocol.messages.quorum_records import Endpoint
from moldau.protocol.types import uuid_to_base64
from tests.kit.commands import Ended, run_here
from tests.kit.terminals import run_at_terminal
from tests.unit.client.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.real

IDS = {node_id: uuid.UUID(int=node_id << 90) for node_id in (101, 102)}
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


async def moldau(broker: ScriptedBroker, *arguments: object, stdout: int | None = None) -> Ended:
    """Run a command to its end, in a thread, while the broker answers."""
    environ = {"MOLDAU_BOOTSTRAP_SERVER": broker.address}
    done = await asyncio.to_thread(run_here, *arguments, environ=environ, stdout=stdout)
    assert len(done.errors.splitlines()) <= 1, done.errors
    return done


async def ok(broker: ScriptedBroker, *arguments: object) -> str:
    done = await moldau(broker, *arguments)
    assert (done.status, done.errors) == (0, "")
    return done.output


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.script(ApiKey.DESCRIBE_QUORUM, lambda _: described())
        scripted.script(
            ApiKey.DESCRIBE_CLUSTER,
            lambda _: DescribeClusterResponse(cluster_id=CLUSTER_ID, controller_id=7),
        )
        yield scripted


def described() -> quorum.DescribeQuorumResponse:
    replicas = [
        quorum.ReplicaState(
            replica_id=node_id,
            replica_directory_id=directory_id,
            log_end_offset=end_offset,
            last_fetch_timestamp=fetched_ms,
            last_caught_up_timestamp=5_000 - (100 - end_offset),
        )
        for (node_id, directory_id), end_offset, fetched_ms in zip(
            IDS.items(), (90, 100), (4_000, -1), strict=True
        )
    ]
    partition = quorum.PartitionDataResponse(
        leader_id=102,
        leader_epoch=5,
        high_watermark=90,
        current_voters=replicas,
        observers=[quorum.ReplicaState(replica_id=1, log_end_offset=88)],
    )
    return quorum.DescribeQuorumResponse(
        topics=[quorum.TopicDataResponse(topic_name="__cluster_metadata", partitions=[partition])],
        nodes=[
            quorum.Node(node_id=101, listeners=[Endpoint(name="CONTROLLER", host="h", port=9093)])
        ],
    )


async def test_status_in_the_form_of_kafkas_tool(broker: ScriptedBroker):
    one, two = (uuid_to_base64(directory_id) for directory_id in IDS.values())
    assert (await ok(broker, "quorum", "status")).splitlines() == [
        f"ClusterId:              {CLUSTER_ID}",
        "LeaderId:               102",
        "LeaderEpoch:            5",
        "HighWatermark:          90",
        "MaxFollowerLag:         10",
        "MaxFollowerLagTimeMs:   10",
        f'CurrentVoters:          [{{"id": 101, "directoryId": "{one}", '
        f'"endpoints": ["CONTROLLER://h:9093"]}}, {{"id": 102, "directoryId": "{two}"}}]',
        'CurrentObservers:       [{"id": 1}]',
    ]
    document = json.loads(await ok(broker, "quorum", "status", "--json"))
    assert document["max_follower_lag"] == 10
    assert document["current_voters"][0]["endpoints"] == ["CONTROLLER://h:9093"]


async def test_status_on_a_terminal_has_a_line_for_each_node(broker: ScriptedBroker):
    one, two = (uuid_to_base64(directory_id) for directory_id in IDS.values())
    reading, writing = pty.openpty()
    try:
        assert (await moldau(broker, "quorum", "status", stdout=writing)).status == 0
        lines = os.read(reading, 4096).decode().splitlines()
    finally:
        os.close(writing)
        os.close(reading)
    assert lines[6:] == [
        "CurrentVoters:",
        f"  101  {one}  CONTROLLER://h:9093",
        f"  102  {two}",
        "CurrentObservers:",
        "  1",
    ]


async def test_replication_names_the_leader_first(broker: ScriptedBroker):
    header, _, *rows = [
        line.split()
        for line in (await ok(broker, "quorum", "replication", "--timestamps")).splitlines()
        if line.strip()
    ]
    assert header[0] == "node"
    directory_ids = [uuid_to_base64(IDS[node_id]) for node_id in (102, 101)]
    assert rows[:3] == [
        ["102", directory_ids[0], "100", "0", "-", "5000", "Leader"],
        ["101", directory_ids[1], "90", "10", "4000", "4990", "Follower"],
        ["1", "AAAAAAAAAAAAAAAAAAAAAA", "88", "12", "-", "-", "Observer"],
    ]
    told = await ok(broker, "quorum", "replication", "--human-readable")
    assert " ms ago " in told
    assert " days ago " in await ok(broker, "quorum", "replication")
    refused = await moldau(broker, "quorum", "replication", "--human-readable", "--timestamps")
    assert (refused.status, refused.output) == (2, "")
    documents = json.loads(await ok(broker, "quorum", "replication", "--json"))
    assert [each["status"] for each in documents] == ["Leader", "Follower", "Observer"]


def controller_config(home: Path, roles: str = "controller") -> Path:
    listeners = {"controller": "CONTROLLER://:9095", "broker": "PLAINTEXT://:9092"}
    path = home / "server.properties"
    path.write_text(
        f"process.roles={roles}\nnode.id=103\nlisteners={listeners[roles]}\n"
        "controller.listener.names=CONTROLLER\nlog.dirs={}\n".format(home / "data")
        + "controller.quorum.bootstrap.servers=h:9093\n"
    )
    return path


async def test_a_controller_is_added_by_its_configuration(broker: ScriptedBroker, tmp_path: Path):
    broker.script(ApiKey.ADD_RAFT_VOTER, lambda _: AddRaftVoterResponse())
    config = controller_config(tmp_path)
    early = await moldau(broker, "quorum", "add-controller", "-c", config)
    assert early.status == 1
    assert "is not formatted" in early.errors
    await ok(broker, "storage", "format", "-c", config, "-t", CLUSTER_ID, "-N")
    dry = await ok(broker, "quorum", "add-controller", "-c", config, "--dry-run")
    assert dry.startswith("would add controller 103 with directory id ")
    assert broker.requests_of(AddRaftVoterRequest) == []
    told = await ok(broker, "quorum", "add-controller", "-c", config)
    [request] = broker.requests_of(AddRaftVoterRequest)
    assert isinstance(request, AddRaftVoterRequest)
    assert (request.voter_id, request.cluster_id) == (103, CLUSTER_ID)
    assert [(each.name, each.host, each.port) for each in request.listeners] == [
        ("CONTROLLER", "localhost", 9095)
    ]
    assert uuid_to_base64(request.voter_directory_id) in told
    broker_config = controller_config(tmp_path, "broker")
    refused = await moldau(broker, "quorum", "add-controller", "-c", broker_config)
    assert (refused.status, "has no controller" in refused.errors) == (2, True)


async def test_a_controller_is_added_by_what_its_environment_adds_to_its_configuration(
    broker: ScriptedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broker.script(ApiKey.ADD_RAFT_VOTER, lambda _: AddRaftVoterResponse())
    config = controller_config(tmp_path)
    config.write_text(config.read_text().replace("node.id=103\n", ""))
    monkeypatch.setenv("KAFKA_NODE_ID", "104")
    monkeypatch.setenv("KAFKA_ADVERTISED_LISTENERS", "CONTROLLER://controller-104:9095")
    await ok(broker, "storage", "format", "-c", config, "-t", CLUSTER_ID, "-N")
    told = await ok(broker, "quorum", "add-controller", "-c", config)
    assert told.startswith("added controller 104 ")
    assert "CONTROLLER://controller-104:9095" in told


async def test_a_controller_is_removed_by_its_id(broker: ScriptedBroker):
    broker.script(ApiKey.REMOVE_RAFT_VOTER, lambda _: RemoveRaftVoterResponse())
    directory_id = uuid_to_base64(IDS[101])
    told = await ok(broker, "quorum", "remove-controller", "-i", 101)
    assert told == f"removed controller 101 with directory id {directory_id}\n"
    [request] = broker.requests_of(RemoveRaftVoterRequest)
    assert isinstance(request, RemoveRaftVoterRequest)
    assert request.voter_directory_id == IDS[101]
    unknown = await moldau(broker, "quorum", "remove-controller", "-i", 9)
    assert unknown == (1, "", "moldau: node 9 is no voter; voters are 101, 102\n")
    garbled = await moldau(broker, "quorum", "remove-controller", "-i", 9, "-d", "x")
    assert garbled.status == 2


async def test_a_transfer_to_a_stranger_is_refused(broker: ScriptedBroker):
    refused = await moldau(broker, "quorum", "transfer-leader", 9)
    assert refused == (1, "", "moldau: node 9 is no voter; voters are 101, 102\n")
    assert await ok(broker, "quorum", "transfer-leader", 102) == "controller 102 leads in epoch 5\n"


async def test_features_are_described_and_changed(broker: ScriptedBroker):
    served = [versions.ApiVersion(api_key=key, min_version=0, max_version=127) for key in ApiKey]
    broker.script(
        ApiKey.API_VERSIONS,
        lambda _: versions.ApiVersionsResponse(
            api_keys=served,
            supported_features=[
                versions.SupportedFeatureKey(name="metadata.version", min_version=7, max_version=30)
            ],
            finalized_features=[
                versions.FinalizedFeatureKey(
                    name="metadata.version", min_version_level=29, max_version_level=29
                )
            ],
            finalized_features_epoch=77,
        ),
    )
    table = (await ok(broker, "features", "describe")).splitlines()
    assert any(
        line.split() == ["metadata.version", "3.3-IV3", "4.3-IV0", "4.2-IV1", "77"]
        for line in table
    )
    document = json.loads(await ok(broker, "features", "describe", "--json"))
    assert document["features"][0]["finalized_version_level"] == 29
    broker.script(
        ApiKey.UPDATE_FEATURES,
        lambda _: UpdateFeaturesResponse(),
        lambda _: UpdateFeaturesResponse(),
        lambda _: UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message="cannot go back"
        ),
    )
    told = await ok(broker, "features", "upgrade", "-f", "metadata.version=4.3")
    assert told == "metadata.version was upgraded to 30\n"
    told = await ok(
        broker, "features", "downgrade", "-f", "share.version=0", "--dry-run", "--unsafe"
    )
    assert told == "share.version can be downgraded to 0\n"
    unasked = await moldau(broker, "features", "downgrade", "-f", "share.version=0", "--unsafe")
    assert (unasked.status, unasked.output) == (2, "")
    assert "lose the metadata that is not known at share.version=0; give --yes" in unasked.errors
    refused = await moldau(broker, "features", "downgrade", "-r", "3.3")
    assert (refused.status, refused.output) == (1, "")
    assert "INVALID_UPDATE_VERSION: cannot go back" in refused.errors
    first, second, _ = broker.requests_of(UpdateFeaturesRequest)
    assert isinstance(first, UpdateFeaturesRequest)
    assert isinstance(second, UpdateFeaturesRequest)
    assert (first.feature_updates[0].upgrade_type, first.validate_only) == (1, False)
    assert (second.feature_updates[0].upgrade_type, second.validate_only) == (3, True)


def two_partitions() -> describe.DescribeTopicPartitionsResponse:
    partitions = [
        describe.DescribeTopicPartitionsResponsePartition(partition_index=index)
        for index in range(2)
    ]
    topic = describe.DescribeTopicPartitionsResponseTopic(name="t", partitions=partitions)
    return describe.DescribeTopicPartitionsResponse(topics=[topic])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say which: TOPIC[:PARTITION]… or --all"),
        (["t", "--all"], "say which"),
        (["t:x"], "'t:x' is not TOPIC or TOPIC:PARTITION"),
        (["t", "--election", "unclean"], "would elect leaders of t: one that lacks acknowledged"),
    ],
)
async def test_elections_that_are_not_begun(
    broker: ScriptedBroker, arguments: list[str], said: str
):
    done = await moldau(broker, "topics", "elect-leaders", *arguments)
    assert (done.status, done.output) == (2, "")
    assert said in done.errors
    assert broker.requests_of(elect.ElectLeadersRequest) == []


async def test_a_partition_that_is_not_there_is_not_elected(broker: ScriptedBroker):
    broker.script(ApiKey.DESCRIBE_TOPIC_PARTITIONS, lambda _: two_partitions())
    done = await moldau(broker, "topics", "elect-leaders", "t:2")
    assert done == (1, "", "moldau: there is no partition 2 of t; it has 2\n")


async def test_elections_tell_what_became_of_them(broker: ScriptedBroker):
    def answer(*codes: ErrorCode) -> Any:
        results = [
            elect.PartitionResult(partition_id=index, error_code=code, error_message=None)
            for index, code in enumerate(codes)
        ]
        topic = elect.ReplicaElectionResult(topic="t", partition_result=results)
        return lambda _: elect.ElectLeadersResponse(replica_election_results=[topic])

    broker.script(ApiKey.DESCRIBE_TOPIC_PARTITIONS, lambda _: two_partitions())
    broker.script(ApiKey.ELECT_LEADERS, answer(ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED))
    told = await ok(broker, "topics", "elect-leaders", "t:0", "t:1")
    assert told == "t-0 elected\nt-1 needed no election\n"
    broker.script(
        ApiKey.ELECT_LEADERS, answer(ErrorCode.NONE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    )
    done = await moldau(
        broker, "topics", "elect-leaders", "--all", "--election", "unclean", "--yes"
    )
    assert (done.status, done.output) == (1, "t-0 elected\n")
    assert "1 of 2 elections failed: t-1: ELIGIBLE_LEADERS_NOT_AVAILABLE" in done.errors
    last = broker.requests_of(elect.ElectLeadersRequest)[-1]
    assert isinstance(last, elect.ElectLeadersRequest)
    assert (last.election_type, last.topic_partitions) == (1, None)


async def test_a_broker_is_unregistered(broker: ScriptedBroker):
    broker.script(ApiKey.UNREGISTER_BROKER, lambda _: UnregisterBrokerResponse())
    told = await ok(broker, "brokers", "unregister", 3, "--yes")
    assert told == "broker 3 is no longer registered\n"
    [request] = broker.requests_of(UnregisterBrokerRequest)
    assert isinstance(request, UnregisterBrokerRequest)
    assert request.broker_id == 3


async def test_a_terminal_is_asked_where_scripts_go_on(broker: ScriptedBroker):
    """What one command makes again: the registration of a stopped broker, a vote, a profile."""
    stopped = DescribeClusterBroker(broker_id=3, host="h", port=1, is_fenced=True)
    broker.script(ApiKey.DESCRIBE_CLUSTER, lambda _: DescribeClusterResponse(brokers=[stopped]))
    broker.script(ApiKey.UNREGISTER_BROKER, lambda _: UnregisterBrokerResponse())
    held = two_partitions()
    held.topics[0].partitions[1].replica_nodes = [2, 3]
    broker.script(ApiKey.DESCRIBE_TOPIC_PARTITIONS, lambda _: held)
    broker.script(ApiKey.REMOVE_RAFT_VOTER, lambda _: RemoveRaftVoterResponse())
    for command, question in (
        (("brokers", "unregister", 3), "unregister broker 3 (it has 1 replica of 1 topic)?"),
        (("quorum", "remove-controller", "-i", 101), "take controller 101 out of the quorum"),
    ):
        environ = {"MOLDAU_BOOTSTRAP_SERVER": broker.address}
        no = await asyncio.to_thread(run_at_terminal, *command, typed="n\n", environ=environ)
        assert (no.status, no.output) == (1, "")
        assert question in no.errors
        assert not broker.requests_of(UnregisterBrokerRequest)
        assert not broker.requests_of(RemoveRaftVoterRequest)
        await ok(broker, *command)
        broker.requests.clear()


async def test_a_broker_that_serves_is_unregistered_after_a_yes_alone(broker: ScriptedBroker):
    serves = DescribeClusterBroker(broker_id=3, host="h", port=1)
    broker.script(ApiKey.DESCRIBE_CLUSTER, lambda _: DescribeClusterResponse(brokers=[serves]))
    broker.script(ApiKey.DESCRIBE_TOPIC_PARTITIONS, lambda _: two_partitions())
    done = await moldau(broker, "brokers", "unregister", 3)
    assert (done.status, done.output) == (2, "")
    assert "unregister broker 3, which serves" in done.errors
    assert not broker.requests_of(UnregisterBrokerRequest)


async def test_a_key_that_is_set_can_be_deleted_though_it_is_unknown(broker: ScriptedBroker):
    entry = configs.DescribeConfigsResourceResult(name="their.key", is_sensitive=True)
    result = configs.DescribeConfigsResult(resource_type=2, resource_name="t", configs=[entry])
    deleted: list[str] = []

    def alter(request: altering.IncrementalAlterConfigsRequest) -> Any:
        [resource] = request.resources
        deleted.extend(each.name for each in resource.configs)
        return altering.IncrementalAlterConfigsResponse()

    broker.script(
        ApiKey.DESCRIBE_CONFIGS, lambda _: configs.DescribeConfigsResponse(results=[result])
    )
    broker.script(ApiKey.INCREMENTAL_ALTER_CONFIGS, alter)
    assert (
        await ok(broker, "configs", "alter", "topics", "t", "--delete", "their.key") == "altered\n"
    )
    assert deleted == ["their.key"]
    refused = await moldau(broker, "configs", "alter", "topics", "t", "--delete", "retention.ms")
    assert (refused.status, deleted) == (1, ["their.key"])
