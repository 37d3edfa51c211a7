"""Three controllers and a broker's node over loopback: who leads changes, requests get through."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from moldau.broker.controller_channel import ForwardedClient
from moldau.broker.lifecycle import BrokerDescription, BrokerLifecycle, BrokerState
from moldau.broker.node.quorum_link import ControllerRouter, InProcessControllerChannel, LeaderRelay
from moldau.controller_server import QuorumNode
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.messages.p62_broker_registration import Feature, Listener
from tests.unit.controller_server.test_quorum_node import Consumer
from tests.unit.metadata.builders import CLUSTER_ID, directory_id, node_config

CONTROLLERS = (1, 2, 3)
BROKER = 7
CLIENT = ForwardedClient("10.1.2.3", "client")
QUICK = {
    "controller_quorum_election_timeout_ms": "300",
    "controller_quorum_fetch_timeout_ms": "600",
}


class Cluster:
    """The nodes, the broker's channel to the active controller, and the metadata it sees."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._voters = ",".join(
            f"{node_id}@127.0.0.1:{port}"
            for node_id, port in zip(CONTROLLERS, free_ports(len(CONTROLLERS)), strict=True)
        )
        self.nodes: dict[int, QuorumNode] = {}
        self.metadata = Consumer()
        self.relay = LeaderRelay(asyncio.get_running_loop())
        self.channel = ControllerRouter(self.relay.leader, node_id=BROKER, in_process=None)
        self.relay.on_change = self.channel.leader_changed

    async def start(self) -> None:
        await asyncio.gather(*(self.start_node(node_id) for node_id in (*CONTROLLERS, BROKER)))
        broker = self.nodes[BROKER]
        await broker.watch_leader(self.relay.publish)
        await broker.subscribe(self.metadata)

    async def start_node(self, node_id: int) -> None:
        is_controller = node_id in CONTROLLERS
        address = next(
            (each.partition("@")[2] for each in self._voters.split(",") if each[0] == str(node_id)),
            "127.0.0.1:0",
        )
        config = node_config(
            process_roles="controller" if is_controller else "broker",
            node_id=str(node_id),
            listeners=f"{'CONTROLLER' if is_controller else 'PLAINTEXT'}://{address}",
            log_dirs=str(self._path / str(node_id)),
            controller_quorum_bootstrap_servers="",
            controller_quorum_voters=self._voters,
            **QUICK,
        )
        (self._path / str(node_id)).mkdir(exist_ok=True)
        node = self.nodes[node_id] = QuorumNode(
            config, cluster_id=CLUSTER_ID, directory_id=UUID(int=node_id), on_fatal=pytest.fail
        )
        await node.start()

    @property
    def active(self) -> int:
        (active,) = (each for each, node in self.nodes.items() if node.is_active_controller)
        return active

    async def create(self, name: str) -> ErrorCode:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        response = await self.channel.send(
            CreateTopicsRequest(topics=[topic]), "User:alice", timeout_ms=60_000, client=CLIENT
        )
        return ErrorCode.of(response.topics[0].error_code)

    async def stop(self) -> None:
        await self.channel.close()
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in taken]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.start()
    yield made
    await made.stop()


def broker_lifecycle(cluster: Cluster) -> BrokerLifecycle:
    return BrokerLifecycle(
        cluster.channel,
        BrokerDescription(
            broker_id=BROKER,
            cluster_id=CLUSTER_ID,
            listeners=[Listener(name="PLAINTEXT", host="b", port=9092)],
            features=[
                Feature(
                    name=name,
                    min_supported_version=levels.minimum_level,
                    max_supported_version=levels.maximum_level,
                )
                for name, levels in SUPPORTED_FEATURES.items()
            ],
            rack=None,
            log_directory_ids=[directory_id(BROKER)],
            previous_broker_epoch=-1,
        ),
        incarnation_id=UUID(int=BROKER),
        heartbeat_interval_ms=200,
        registration_timeout_ms=60_000,
        metadata_offset=lambda: cluster.metadata.image.provenance.last_contained_offset,
        offline_log_directories=list,
    )


async def test_requests_get_through_while_the_active_controller_changes(cluster: Cluster) -> None:
    lifecycle = broker_lifecycle(cluster)
    lifecycle.move_to(BrokerState.STARTING)
    await lifecycle.register()
    lifecycle.start_heartbeats()
    await asyncio.wait_for(lifecycle.wait_unfenced(), 30)
    assert await cluster.create("before") is ErrorCode.NONE

    def all_registered(image: MetadataImage) -> bool:
        return set(image.cluster.controllers) == set(CONTROLLERS)

    await cluster.metadata.until(all_registered)
    first = cluster.active
    stopping = asyncio.ensure_future(cluster.nodes[first].stop())
    during = [asyncio.ensure_future(cluster.create(f"during-{n}")) for n in range(5)]
    outcomes = set(await asyncio.wait_for(asyncio.gather(*during), 60))
    # A repeated request may meet what its lost first try has created.
    assert outcomes <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    await stopping
    assert cluster.active != first
    names = {"before", *(f"during-{n}" for n in range(5))}
    await cluster.metadata.until(lambda image: set(image.topics.topics_by_name) == names)
    broker = cluster.metadata.image.cluster.brokers[BROKER]
    assert broker.broker_epoch == lifecycle.broker_epoch, "the registration outlives its controller"
    await cluster.start_node(first)
    incarnation = cluster.metadata.image.cluster.controllers[first].incarnation_id
    await cluster.metadata.until(
        lambda image: image.cluster.controllers[first].incarnation_id != incarnation
    )
    assert await cluster.create("after") is ErrorCode.NONE
    await lifecycle.stop()


async def test_a_quorum_with_configured_voters_is_upgraded(cluster: Cluster) -> None:
    """kraft.version 1 by UpdateFeatures: from then on the voters are in the log (KIP-853)."""
    update = FeatureUpdateKey(feature="kraft.version", max_version_level=1)
    response = await cluster.channel.send(
        UpdateFeaturesRequest(feature_updates=[update]), "User:alice", client=CLIENT
    )
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    async with asyncio.timeout(30):
        while cluster.nodes[BROKER].kraft_version != 1:
            await cluster.create("makes-the-observer-fetch")


async def test_a_standbys_own_process_asks_the_others(cluster: Cluster) -> None:
    """The router of a combined node whose controller is not the active one."""
    assert await cluster.channel.send(UpdateFeaturesRequest(), "User:a", client=CLIENT)
    standby = next(each for each in CONTROLLERS if each != cluster.active)
    node = cluster.nodes[standby]
    relay = LeaderRelay(asyncio.get_running_loop())
    router = ControllerRouter(
        relay.leader, node_id=standby, in_process=InProcessControllerChannel(node)
    )
    relay.on_change = router.leader_changed
    await node.watch_leader(relay.publish)
    response = await router.send(UpdateFeaturesRequest(), "User:a", client=CLIENT)
    assert response.error_code == ErrorCode.NONE
    await router.close()
