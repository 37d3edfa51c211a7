"""Configuration of simulated nodes, and the opening of their production log.

Owns: names, ids and settings. Must not: stand in for any part of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from moldau.config import NodeConfig
from moldau.node.settings import metadata_log_settings
from moldau.raft import QuorumLog, VoterDescription, VoterEndpoint
from moldau.raft.peers import ConnectionPeers
from moldau.runtime.connector import Connector

METADATA_DIRECTORY = "/data"
CLUSTER_ID = "TrV5GzD9TWy-7UjVSbMWxQ"
LISTENER = "CONTROLLER"
PORT = 9093
SEGMENT_BYTES = 16 * 1024
INDEX_BYTES = 4 * 1024
RETENTION_BYTES = 32 * 1024


def host_of(controller_id: int) -> str:
    """The name of a controller's machine."""
    return f"controller-{controller_id}"


def directory_of(node_id: int, wipe_count: int = 0) -> UUID:
    """The id of a node's metadata directory; a wiped disk gets another."""
    return UUID(int=0xC000_0000 + (wipe_count << 16) + node_id)


def voter_of(controller_id: int, wipe_count: int = 0) -> VoterDescription:
    """A controller as the voter set names it."""
    endpoint = VoterEndpoint(LISTENER, host_of(controller_id), PORT)
    return VoterDescription(controller_id, directory_of(controller_id, wipe_count), (endpoint,))


def static_quorum(controllers: Sequence[tuple[int, str, int]]) -> dict[str, str]:
    """The keys of a quorum whose voters are configured (kraft.version 0)."""
    return {
        "controller.quorum.bootstrap.servers": "",
        "controller.quorum.voters": ",".join(
            f"{node_id}@{host}:{port}" for node_id, host, port in controllers
        ),
    }


def dynamic_quorum(controllers: Sequence[tuple[int, str, int]]) -> dict[str, str]:
    """The keys of a quorum whose voters are in its log."""
    return {
        "controller.quorum.bootstrap.servers": ",".join(
            f"{host}:{port}" for _node_id, host, port in controllers
        )
    }


def controller_config(controller_id: int, overrides: dict[str, str]) -> NodeConfig:
    """What an operator would write into a controller's file."""
    listener = f"{LISTENER}://{host_of(controller_id)}:{PORT}"
    return _config("controller", controller_id, listener, overrides)


def broker_config(broker_id: int, host: str, overrides: dict[str, str]) -> NodeConfig:
    """What an operator would write into a broker's file."""
    return _config("broker", broker_id, f"PLAINTEXT://{host}:9092", overrides)


def _config(role: str, node_id: int, listeners: str, overrides: dict[str, str]) -> NodeConfig:
    values = {
        "process.roles": role,
        "node.id": str(node_id),
        "listeners": listeners,
        "controller.listener.names": LISTENER,
        "log.dirs": METADATA_DIRECTORY,
        **overrides,
    }
    return NodeConfig({key: value for key, value in values.items() if value})


async def open_metadata_log(
    config: NodeConfig,
    disk: Any,
    clock: Any,
    network: Any,
    on_fatal: Callable[[str], None],
    random: Random,
    directory_id: UUID,
) -> QuorumLog:
    """A replica of the quorum on simulated ports. Raises as `QuorumLog.open`."""
    peers = ConnectionPeers(
        Connector(network, clock),
        cluster_id=CLUSTER_ID,
        client_id=f"raft-{config.node_id}",
        listener_name=LISTENER,
    )
    settings = replace(
        metadata_log_settings(config, directory_id),
        segment_bytes=SEGMENT_BYTES,
        segment_index_bytes=INDEX_BYTES,
        retention_bytes=RETENTION_BYTES,
    )
    return await QuorumLog.open(
        disk, clock, settings, on_fatal, peers=peers, dice=Random(random.getrandbits(64))
    )
