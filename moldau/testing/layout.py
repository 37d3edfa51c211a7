"""Where the nodes of a cluster on one machine live: ids, ports, directories, configuration.

Owns the plan, `server.properties` and the formatting of each node. Must not start anything.
Invariant: all nodes are formatted with one cluster id and one voter set, whose directory ids are
chosen before anything is written.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from moldau.config import ConfigError, NodeConfig, read_properties_file
from moldau.config.listeners import host_and_port

FIRST_BROKER_ID: Final = 1
FIRST_CONTROLLER_ID: Final = 101
#: Broker ids end where controller ids begin.
MOST_BROKERS: Final = FIRST_CONTROLLER_ID - FIRST_BROKER_ID
MOST_CONTROLLERS: Final = 100
CONTROLLER_LISTENER: Final = "CONTROLLER"
PROPERTIES: Final = "server.properties"
LEAST_FOR_DEFAULTS: Final = 3
"""Brokers that the defaults of internal topics ask for."""

NextPort = Callable[[], int]


class LayoutError(Exception):
    """A cluster that cannot be laid out as asked; one line that says why."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. A port of None: it has no such listener."""

    node_id: int
    home: Path
    broker_port: int | None
    controller_port: int | None

    @property
    def name(self) -> str:
        """Role and id, for people."""
        if self.broker_port is None:
            return f"controller {self.node_id}"
        return f"broker {self.node_id}" if self.controller_port is None else f"node {self.node_id}"

    @property
    def roles(self) -> str:
        """`process.roles`."""
        roles = {"broker": self.broker_port, "controller": self.controller_port}
        return ",".join(role for role, port in roles.items() if port is not None)

    @property
    def config_path(self) -> Path:
        """Its `server.properties`."""
        return self.home / PROPERTIES

    @property
    def data_directory(self) -> Path:
        """Its `log.dirs`."""
        return self.home / "data"

    @property
    def log_path(self) -> Path:
        """Where its standard error goes."""
        return self.home / "node.log"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """All nodes of a cluster, brokers first."""

    host: str
    nodes: tuple[NodeSpec, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        directory: Path,
        *,
        controllers: int,
        brokers: int,
        host: str,
        broker_port: NextPort,
        controller_port: NextPort,
        combined: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> ClusterLayout:
        """Lay out a cluster: brokers 1, 2, …, controllers 101, 102, …

        Args:
            broker_port, controller_port: give the next port each time they are called.
            combined: make one controller and one broker a single node, number 1.

        Raises:
            LayoutError: too few or too many nodes.
        """
        check_counts(controllers, brokers)
        if combined and controllers == brokers == 1:
            home = directory / f"node-{FIRST_BROKER_ID}"
            node = NodeSpec(FIRST_BROKER_ID, home, broker_port(), controller_port())
            return cls(host, (node,), config or {})
        nodes = [
            NodeSpec(node_id, directory / f"broker-{node_id}", broker_port(), None)
            for node_id in range(FIRST_BROKER_ID, FIRST_BROKER_ID + brokers)
        ]
        nodes += [
            NodeSpec(node_id, directory / f"controller-{node_id}", None, controller_port())
            for node_id in range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers)
        ]
        return cls(host, tuple(nodes), config or {})

    @classmethod
    def found(cls, directory: Path, config: Mapping[str, str] | None = None) -> ClusterLayout:
        """The cluster that an earlier layout wrote into `directory`.

        Raises:
            LayoutError: there is none, or its configuration cannot be read.
        """
        nodes: list[NodeSpec] = []
        host = ""
        paths = [*directory.glob("node-*"), *directory.glob("broker-*")]
        for home in sorted([*paths, *directory.glob("controller-*")], key=_number_in):
            try:
                values = read_properties_file(str(home / PROPERTIES))
                node_config = NodeConfig(values)
            except ConfigError as error:
                raise LayoutError(f"{home / PROPERTIES}: {error}") from None
            brokers, voters = node_config.broker_listeners, node_config.controller_listeners
            host = (*brokers, *voters)[0].host
            nodes.append(
                NodeSpec(
                    node_config.node_id,
                    home,
                    brokers[0].port if brokers else None,
                    voters[0].port if voters else None,
                )
            )
        if not nodes:
            raise LayoutError(f"{directory}: holds no nodes of a cluster")
        return cls(host, tuple(nodes), config or {})

    @property
    def brokers(self) -> tuple[NodeSpec, ...]:
        """The nodes that serve clients."""
        return tuple(node for node in self.nodes if node.broker_port is not None)

    @property
    def controllers(self) -> tuple[NodeSpec, ...]:
        """The nodes that vote."""
        return tuple(node for node in self.nodes if node.controller_port is not None)

    @property
    def bootstrap_server(self) -> str:
        """`HOST:PORT,…` of all brokers."""
        return ",".join(host_and_port(self.host, node.broker_port or 0) for node in self.brokers)

    @property
    def bootstrap_controllers(self) -> str:
        """`HOST:PORT,…` of all controllers."""
        return ",".join(
            host_and_port(self.host, node.controller_port or 0) for node in self.controllers
        )

    def write_configs(self) -> None:
        """Write every node's `server.properties`, making its directory. Raises: OSError."""
        for node in self.nodes:
            node.home.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{key}={value}\n" for key, value in self.properties(node).items())
            node.config_path.write_text(text)

    def properties(self, node: NodeSpec) -> dict[str, str]:
        """A node's configuration."""
        ports = {"PLAINTEXT": node.broker_port, CONTROLLER_LISTENER: node.controller_port}
        return {
            "process.roles": node.roles,
            "node.id": str(node.node_id),
            "listeners": ",".join(
                f"{name}://{host_and_port(self.host, port)}"
                for name, port in ports.items()
                if port is not None
            ),
            "controller.listener.names": CONTROLLER_LISTENER,
            "controller.quorum.bootstrap.servers": self.bootstrap_controllers,
            "log.dirs": str(node.data_directory.absolute()),
            **internal_topic_properties(len(self.brokers)),
            **self.config,
        }

    def format(self, *, cluster_id: str | None = None) -> str:
        """Format every node's storage; returns the cluster id, a fresh one when None was given.

        Raises:
            LayoutError: a node's configuration or directory does not allow it.
        """
        from moldau.node.formatting import (
            FormatError,
            FormatPlan,
            format_storage,
            random_cluster_id,
        )
        from moldau.protocol.types import random_topic_id
        from moldau.raft import VoterDescription, VoterEndpoint
        from moldau.runtime.clock import SystemClock
        from moldau.runtime.filesystem import OsFilesystem

        source = random.Random(secrets.randbits(256))
        cluster_id = cluster_id or random_cluster_id(source)
        voters = tuple(
            VoterDescription(
                node.node_id,
                UUID(int=random_topic_id(source).int),
                (VoterEndpoint(CONTROLLER_LISTENER, self.host, node.controller_port or 0),),
            )
            for node in self.controllers
        )
        for node in self.nodes:
            try:
                config = NodeConfig.load(str(node.config_path))
                plan = FormatPlan.from_config(config, cluster_id, initial_controllers=voters)
                format_storage(OsFilesystem(), SystemClock(), source, plan)
            except (ConfigError, FormatError) as error:
                raise LayoutError(f"{node.name}: {error}") from error
        return cluster_id


def internal_topic_properties(broker_count: int) -> dict[str, str]:
    """Configuration with which groups and transactions work on so few brokers: the defaults are for
    three and more.
    """
    replication_factor = str(min(LEAST_FOR_DEFAULTS, broker_count))
    return {
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": "2" if broker_count >= LEAST_FOR_DEFAULTS else "1",
    }


def check_counts(controllers: int, brokers: int) -> None:
    """Raises: LayoutError: no cluster has so many nodes."""
    for what, count, most in (
        ("controllers", controllers, MOST_CONTROLLERS),
        ("brokers", brokers, MOST_BROKERS),
    ):
        if not 1 <= count <= most:
            raise LayoutError(f"{what}={count}: from 1 to {most} can be laid out")


def counting_from(port: int) -> NextPort:
    """Ports one after the other."""
    ports = iter(range(port, port + MOST_BROKERS + MOST_CONTROLLERS))
    return lambda: next(ports)


def _number_in(home: Path) -> int:
    digits = home.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1
