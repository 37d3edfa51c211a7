"""The admin client at real controllers, on storage that `quorum bootstrap` formats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moldau.client import Admin, BrokerError, FeatureUpdate, KafkaError, QuorumEndpoint, UpgradeType
from moldau.config import NodeConfig
from moldau.local.layout import ClusterLayout, NodeSpec, PortHolder
from moldau.node.quorum_node import QuorumNode
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.meta_properties import MetaProperties, read_meta_properties
from tests.kit.waiting import until_async

pytestmark = pytest.mark.real

HOST = "127.0.0.1"
QUICK = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
}


class Controllers:
    """Three of four controllers that were laid out for a cluster of three, in this process."""

    def __init__(self, home: Path) -> None:
        self._ports = PortHolder(HOST)
        self.layout = ClusterLayout.plan(
            home / "cluster",
            controllers=3,
            brokers=1,
            host=HOST,
            broker_port=lambda: self._ports.take()[0],
            controller_port=lambda: self._ports.take()[0],
            config=QUICK,
        )
        self.layout.write_configs()
        self.cluster_id = self.layout.format()
        self.nodes: dict[int, QuorumNode] = {}

    async def start(self) -> None:
        await asyncio.gather(*(self.start_node(node) for node in self.layout.controllers))

    async def start_node(self, node: NodeSpec) -> None:
        config = NodeConfig.load(str(node.config_path))
        made = self.nodes[node.node_id] = QuorumNode(
            config,
            cluster_id=self.cluster_id,
            directory_id=identity(node).directory_id,  # type: ignore[arg-type]
            on_fatal=pytest.fail,
        )
        await made.start()

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        self._ports.close()


def identity(node: NodeSpec) -> MetaProperties:
    found = read_meta_properties(OsFilesystem(), str(node.data_directory))
    assert found is not None
    return found


@pytest.fixture
async def controllers(tmp_path: Path) -> AsyncIterator[Controllers]:
    made = Controllers(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def admin(controllers: Controllers) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_controllers=controllers.layout.bootstrap_controllers) as client:

        async def is_active() -> bool:
            return "group.version" in (await client.describe_features()).finalized

        await until_async(is_active, what="the first controller is active")
        own = [node.own_controller for node in controllers.nodes.values()]
        end_offset = max(each.committed_end_offset() for each in own)

        async def all_know() -> bool:
            return all(each.committed_end_offset() >= end_offset for each in own)

        await until_async(all_know, what="every controller has the metadata of the first one")
        yield client


async def test_the_formatted_voters_elect_a_leader_that_describes_them(
    controllers: Controllers, admin: Admin
):
    quorum = await admin.describe_metadata_quorum()
    assert sorted(voter.replica_id for voter in quorum.voters) == [101, 102, 103]
    for node in controllers.layout.controllers:
        voter = quorum.voter(node.node_id)
        assert voter is not None
        assert voter.directory_id == identity(node).directory_id
        assert quorum.endpoints[node.node_id] == (
            QuorumEndpoint("CONTROLLER", HOST, node.controller_port or 0),
        )
    assert controllers.nodes[quorum.leader_id].is_active_controller
    cluster = await admin.describe_cluster()
    assert (cluster.cluster_id, cluster.controller_id) == (
        controllers.cluster_id,
        quorum.leader_id,
    )
    features = await admin.describe_features()
    assert features.finalized["kraft.version"] == 1


async def test_the_leader_hands_over_to_the_one_that_is_named(admin: Admin):
    quorum = await admin.describe_metadata_quorum()
    other_winners = 0
    for _ in range(6):
        wanted = max(v.replica_id for v in quorum.voters if v.replica_id != quorum.leader_id)
        after = await admin.transfer_quorum_leader(wanted)
        other_winners += after.leader_id != wanted
        assert after.leader_epoch > quorum.leader_epoch
        quorum = after
    assert other_winners <= 1, "a stall of the machine right there may let another one win"


async def test_a_voter_leaves_and_comes_back(controllers: Controllers, admin: Admin):
    quorum = await admin.describe_metadata_quorum()
    leaving = next(voter for voter in quorum.voters if voter.replica_id != quorum.leader_id)
    await admin.remove_raft_voter(leaving.replica_id, leaving.directory_id)
    with pytest.raises(BrokerError, match="VOTER_NOT_FOUND"):
        await admin.remove_raft_voter(leaving.replica_id, leaving.directory_id)

    async def follows() -> bool:
        now = await admin.describe_metadata_quorum()
        return leaving.replica_id in {observer.replica_id for observer in now.observers}

    await until_async(follows, what="the former voter follows as an observer")
    endpoints = quorum.endpoints[leaving.replica_id]
    with pytest.raises(KafkaError, match="INCONSISTENT_CLUSTER_ID"):
        await admin.add_raft_voter(
            leaving.replica_id, leaving.directory_id, endpoints, cluster_id="another"
        )
    await admin.add_raft_voter(
        leaving.replica_id, leaving.directory_id, endpoints, cluster_id=controllers.cluster_id
    )
    after = await admin.describe_metadata_quorum()
    assert after.voter(leaving.replica_id) is not None
    with pytest.raises(BrokerError, match="DUPLICATE_VOTER"):
        await admin.add_raft_voter(leaving.replica_id, leaving.directory_id, endpoints)


async def test_features_and_registrations_are_changed_by_way_of_the_controllers(admin: Admin):
    update = {"group.version": FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)}

    async def is_valid() -> bool:
        try:
            await admin.update_features(update, validate_only=True)
        except BrokerError as error:
            if "has not said yet" not in str(error):
                raise
            return False
        return True

    await until_async(is_valid, what="the registrations of all controllers")
    assert (await admin.describe_features()).finalized["group.version"] == 1
    with pytest.raises(BrokerError, match="BROKER_ID_NOT_REGISTERED"):
        await admin.unregister_broker(9)


async def test_calls_get_through_while_the_leader_is_gone(controllers: Controllers, admin: Admin):
    quorum = await admin.describe_metadata_quorum()
    await controllers.nodes[quorum.leader_id].stop()
    after = await admin.describe_metadata_quorum()
    assert after.leader_id != quorum.leader_id
    assert after.leader_epoch > quorum.leader_epoch
