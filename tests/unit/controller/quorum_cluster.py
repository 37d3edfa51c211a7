"""Three controllers and a broker's node in this process, over loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from moldau.broker.lifecycle.controller_channel import ForwardedClient, NetworkControllerChannel
from moldau.node.quorum_link import LeaderRelay
from moldau.node.quorum_node import QuorumNode
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from tests.kit.ports import free_ports
from tests.unit.controller.test_quorum_node import Consumer
from tests.unit.metadata.builders import CLUSTER_ID, node_config

CONTROLLERS = (1, 2, 3)
BROKER = 7
CLIENT = ForwardedClient("10.1.2.3", "client")
QUICK = {
    "controller_quorum_election_timeout_ms": "300",
    "controller_quorum_fetch_timeout_ms": "600",
}


class Cluster:
    """The nodes, the broker's channel to the active controller, and the metadata it sees."""

    def __init__(self, path: Path, **overrides: str) -> None:
        self._path = path
        self._overrides = {**QUICK, **overrides}
        self._voters = ",".join(
            f"{node_id}@127.0.0.1:{port}"
            for node_id, port in zip(CONTROLLERS, free_ports(len(CONTROLLERS)), strict=True)
        )
        self.nodes: dict[int, QuorumNode] = {}
        self.metadata = Consumer()
        self.relay = LeaderRelay(asyncio.get_running_loop())
        self.channel = NetworkControllerChannel(self.relay.leader)
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
            **self._overrides,
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
        response, _ = await self.channel.forward(
            CreateTopicsRequest(topics=[topic]), "User:alice", CLIENT, timeout_ms=60_000
        )
        return ErrorCode.of(response.topics[0].error_code)

    async def stop(self) -> None:
        await self.channel.close()
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
