"""Where the nodes of a cluster on one machine live: ids, ports, directories, configuration.

Owns the plan, `server.properties`, the formatting of each node, and a socket for each port that
keeps it free while its node is down. Must not start anything, nor listen. Invariants: all nodes are
formatted with one cluster id and one voter set, whose directory ids are chosen before anything is
written; a port that is held is given to no other holder and to no outgoing connection, and yet the
cluster's own node can listen on it (both set SO_REUSEADDR, and the holding socket never listens).
"""

from __future__ import annotations

import contextlib
import errno
import random
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.config import ConfigError, NodeConfig, read_properties_file
from moldau.config.listeners import host_and_port
from moldau.local.secure_files import (
    CLIENT_LISTENER,
    INTERNAL_LISTENER,
    LOOPBACK,
    LayoutError,
    SecureFiles,
    http_properties,
    properties_text,
    secure_properties,
)
from moldau.runtime.private_files import OWNER_ONLY_DIRECTORY, close_to_others, owner_only

if TYPE_CHECKING:
    from moldau.protocol.metadata_records import UserScramCredentialRecord

FIRST_BROKER_ID: Final = 1
FIRST_CONTROLLER_ID: Final = 101
#: Broker ids end where controller ids begin.
MOST_BROKERS: Final = FIRST_CONTROLLER_ID - FIRST_BROKER_ID
MOST_CONTROLLERS: Final = 100
CONTROLLER_LISTENER: Final = "CONTROLLER"
HTTP_LISTENER: Final = "moldau.http.listener"
CONSOLE: Final = "moldau.console.enable"
PROPERTIES: Final = "server.properties"
HOMES: Final = ("node-*", "broker-*", "controller-*")
"""Directories of nodes in that of their cluster."""
LEAST_FOR_DEFAULTS: Final = 3
"""Brokers that the defaults of internal topics ask for."""
#: The first member of a group reads at once; the coordinator does not wait for more members.
QUICK_GROUPS: Final[Mapping[str, str]] = {"group.initial.rebalance.delay.ms": "0"}

NextPort = Callable[[], int]
#: Well-known services listen below it.
LOWEST_PORT: Final = 10_000
HIGHEST_PORT: Final = 65_535
#: Where the system takes ports of outgoing connections from, if it does not say (IANA's advice).
USUAL_EPHEMERAL: Final = (49_152, 65_535)
EPHEMERAL_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: A range with fewer ports than this is taken for full too soon.
FEW_PORTS: Final = 1_000
MOST_TRIES: Final = 2_000
#: A bound socket that does not listen shares its port on Linux only.
CAN_HOLD: Final = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. A port of None: it has no such listener.

    Attributes:
        internal_port: where brokers of a secured cluster talk to it.
        http_port: where a secured cluster's node is scraped, over TLS, and a broker serves its
            console.
    """

    node_id: int
    home: Path
    broker_port: int | None
    controller_port: int | None
    internal_port: int | None = None
    http_port: int | None = None

    @property
    def name(self) -> str:
        if self.broker_port is None:
            return f"controller {self.node_id}"
        return f"broker {self.node_id}" if self.controller_port is None else f"node {self.node_id}"

    @property
    def roles(self) -> str:
        roles = {"broker": self.broker_port, "controller": self.controller_port}
        return ",".join(role for role, port in roles.items() if port is not None)

    @property
    def ports(self) -> tuple[int, ...]:
        ports = (self.broker_port, self.internal_port, self.controller_port, self.http_port)
        return tuple(port for port in ports if port is not None)

    @property
    def config_path(self) -> Path:
        return self.home / PROPERTIES

    @property
    def data_directory(self) -> Path:
        return self.home / "data"

    @property
    def log_path(self) -> Path:
        """Where its standard error goes."""
        return self.home / "node.log"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """All nodes of a cluster, brokers first. `secure`: what secures it; None: nothing does."""

    host: str
    nodes: tuple[NodeSpec, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    secure: SecureFiles | None = None

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
        internal_port: NextPort | None = None,
        http_port: Callable[[], int | None] | None = None,
        combined: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> ClusterLayout:
        """Lay out a cluster: brokers 1, 2, …, controllers 101, 102, …

        Args:
            broker_port, controller_port: give the next port each time they are called.
            internal_port: as these, for a cluster that is secured; None: it is not.
            http_port: as these, for one whose nodes serve HTTP, brokers first; None, as for a node
                to which it gives None: they do not.
            combined: make one controller and one broker a single node, number 1.

        Raises:
            LayoutError: too few or too many nodes.
        """
        check_counts(controllers, brokers)
        secure = None if internal_port is None else SecureFiles(directory)
        internal: Callable[[], int | None] = internal_port or (lambda: None)
        http: Callable[[], int | None] = http_port or (lambda: None)
        if combined and controllers == brokers == 1:
            home = directory / f"node-{FIRST_BROKER_ID}"
            ports = (broker_port(), controller_port(), internal(), http())
            node = NodeSpec(FIRST_BROKER_ID, home, *ports)
            return cls(host, (node,), config or {}, secure)
        nodes = [
            NodeSpec(
                *(node_id, directory / f"broker-{node_id}"),
                *(broker_port(), None, internal(), http()),
            )
            for node_id in range(FIRST_BROKER_ID, FIRST_BROKER_ID + brokers)
        ]
        nodes += [
            NodeSpec(
                *(node_id, directory / f"controller-{node_id}"),
                *(None, controller_port(), None, http()),
            )
            for node_id in range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers)
        ]
        return cls(host, tuple(nodes), config or {}, secure)

    @classmethod
    def found(cls, directory: Path, config: Mapping[str, str] | None = None) -> ClusterLayout:
        """The cluster that an earlier layout wrote into `directory`, or into directories in it.
        Raises: LayoutError: there is none, it is not whole, or a configuration cannot be read
        """
        nodes: list[NodeSpec] = []
        host = ""
        paths = [path for homes in HOMES for path in directory.glob(homes)]
        if (directory / PROPERTIES).exists():
            paths = [directory]
        for home in sorted(paths, key=_number_in):
            path = str(home / PROPERTIES)
            try:
                node_config = NodeConfig(read_properties_file(path))
            except ConfigError as error:
                about = "" if error.key == path else f"{path}: "
                raise LayoutError(f"{about}{error}") from None
            brokers, voters = node_config.broker_listeners, node_config.controller_listeners
            host = (*brokers, *voters)[0].host
            nodes.append(
                NodeSpec(
                    node_config.node_id,
                    home,
                    brokers[0].port if brokers else None,
                    voters[0].port if voters else None,
                    next((e.port for e in brokers if e.listener_name == INTERNAL_LISTENER), None),
                    _http_port(node_config),
                )
            )
        if not nodes:
            raise LayoutError(f"{directory}: holds no nodes of a cluster; it is left as it is")
        is_secure = any(node.internal_port is not None for node in nodes)
        secure = SecureFiles(directory) if is_secure else None
        found = cls(host, tuple(nodes), config or {}, secure)
        if not (found.brokers and found.controllers):
            names = ", ".join(node.name for node in nodes)
            raise LayoutError(f"{directory}: holds only {names} of a cluster")
        return found

    def refuse_other_size(self, directory: Path, counts: tuple[int, int]) -> None:
        """Raises: ValueError: there are not so many controllers and brokers."""
        found = (len(self.controllers), len(self.brokers))
        if found != counts:
            raise ValueError(
                f"{directory} holds a cluster of {found[0]} controllers and {found[1]} brokers, "
                f"not {counts[0]} and {counts[1]}"
            )

    @property
    def brokers(self) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if node.broker_port is not None)

    @property
    def controllers(self) -> tuple[NodeSpec, ...]:
        return tuple(node for node in self.nodes if node.controller_port is not None)

    @property
    def formats_itself(self) -> bool:
        """True for a lone node, which is faster than `format`; but it knows no users."""
        return len(self.nodes) == 1 and self.secure is None

    @property
    def bootstrap_server(self) -> str:
        return ",".join(host_and_port(self.host, node.broker_port or 0) for node in self.brokers)

    @property
    def bootstrap_controllers(self) -> str:
        return ",".join(
            host_and_port(self.host, node.controller_port or 0) for node in self.controllers
        )

    def client_properties(self) -> dict[str, str]:
        """What a client needs; of a secured cluster's super user. Raises: NotSecured."""
        if self.secure is None:
            return {"bootstrap.servers": self.bootstrap_server}
        return self.secure.client_properties()

    def librdkafka_properties(self) -> dict[str, str]:
        """As `client_properties`, by librdkafka's names. Raises: NotSecured."""
        if self.secure is None:
            return {"bootstrap.servers": self.bootstrap_server}
        return self.secure.librdkafka_properties()

    def controller_properties(self) -> dict[str, str]:
        """As `client_properties`, for a client that asks controllers. Raises: NotSecured."""
        if self.secure is None:
            return {"bootstrap.controllers": self.bootstrap_controllers}
        return self.secure.controllers_settings()

    def hold_ports(self, ports: PortHolder) -> None:
        """Hold the ports of all nodes. Raises: NoFreePort."""
        for node in self.nodes:
            for port in node.ports:
                try:
                    ports.hold(port)
                except NoFreePort as error:
                    raise type(error)(f"{error}; {node.name} has it in `listeners`") from None

    def write_configs(self) -> None:
        """Write the `server.properties` of all nodes, making directories, and what secures them
        unless it exists. Raises: LayoutError.
        """
        if self.secure is not None:
            homes = {node.name: node.home for node in self.nodes}
            self.secure.make(self.host, homes, self.bootstrap_server, self.bootstrap_controllers)
        for node in self.nodes:
            text = properties_text(self.properties(node))
            if "log.dirs" not in self.config and "," in str(node.data_directory.absolute()):
                raise LayoutError(f"{node.home}: directories of log.dirs cannot have a comma")
            node.home.mkdir(OWNER_ONLY_DIRECTORY, parents=True, exist_ok=True)
            close_to_others(str(node.home))
            with open(node.config_path, "wb", opener=owner_only) as file:
                file.write(text.encode(errors="surrogateescape"))

    def properties(self, node: NodeSpec) -> dict[str, str]:
        client = "PLAINTEXT" if self.secure is None else CLIENT_LISTENER
        ports = {
            client: node.broker_port,
            INTERNAL_LISTENER: node.internal_port,
            CONTROLLER_LISTENER: node.controller_port,
        }
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
            **({} if self.secure is None else secure_properties(node.home, self.secure)),
            **self._http_properties(node),
            **self.config,
        }

    def _http_properties(self, node: NodeSpec) -> dict[str, str]:
        if node.http_port is None:
            return {}
        own = {HTTP_LISTENER: host_and_port(self.host, node.http_port)}
        if self.has_console(node):
            own[CONSOLE] = "true"
        if self.secure is not None:
            own |= http_properties(node.home, self.secure)
        return own

    @property
    def is_near(self) -> bool:
        """Whether only this machine reaches the nodes."""
        return self.host.strip("[]") in LOOPBACK

    def has_console(self, node: NodeSpec) -> bool:
        """Whether a node serves the console: a broker that only this machine reaches does."""
        return self.is_near and node.http_port is not None and node.broker_port is not None

    @property
    def console_address(self) -> str | None:
        """Where the console's page is, if there is one."""
        scheme = "http" if self.secure is None else "https"
        for node in self.nodes:
            if self.has_console(node):
                return f"{scheme}://{host_and_port(self.host, node.http_port or 0)}/console/"
        return None

    def format(self, *, cluster_id: str | None = None) -> str:
        """Format every node's storage; returns the cluster id, a fresh one when None was given.
        Raises: LayoutError: a node's configuration or directory does not allow it
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
        users: tuple[UserScramCredentialRecord, ...] = ()
        if self.secure is not None:
            from moldau.node.initial_users import scram_records

            users = scram_records(self.secure.initial_users(), secrets.token_bytes)
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
                plan = FormatPlan.from_config(
                    config, cluster_id, initial_controllers=voters, users=users
                )
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


def replication_properties(broker_count: int) -> dict[str, str]:
    """Configuration with which topics outlive any broker; empty for fewer than three brokers."""
    outlives = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    return outlives if broker_count >= LEAST_FOR_DEFAULTS else {}


def check_counts(controllers: int, brokers: int) -> None:
    """Raises: LayoutError: no cluster has so many nodes."""
    for what, count, most in (
        ("controllers", controllers, MOST_CONTROLLERS),
        ("brokers", brokers, MOST_BROKERS),
    ):
        if type(count) is not int or not 1 <= count <= most:
            raise LayoutError(f"{what}={count!r}: from 1 to {most} can be laid out")


def serves_http() -> bool:
    """Whether nodes here can have an HTTP listener: its libraries are an extra."""
    from moldau.node.settings import HTTP_PACKAGES

    return all(find_spec(each) is not None for each in HTTP_PACKAGES)


def counting_from(port: int) -> NextPort:
    ports = iter(range(port, port + MOST_BROKERS + MOST_CONTROLLERS))
    return lambda: next(ports)


def _http_port(config: NodeConfig) -> int | None:
    """The port that `ClusterLayout.plan` gave the node; a listener of the user's own is none."""
    address: str = config[HTTP_LISTENER]
    is_secure = config["moldau.http.ssl.keystore.location"] is not None
    if not address or not (is_secure or config.get_boolean(CONSOLE)):
        return None
    return int(address.rpartition(":")[2]) or None


def _number_in(home: Path) -> int:
    digits = home.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


class NoFreePort(OSError):
    """No port could be found, or a wanted one cannot be used."""


class PortInUse(NoFreePort):
    """A wanted port is another process's."""


def ephemeral_range(path: Path = EPHEMERAL_RANGE_FILE) -> tuple[int, int]:
    """First and last port that the system gives to outgoing connections."""
    try:
        low, high = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return USUAL_EPHEMERAL
    return low, high


def candidates(ephemeral: tuple[int, int]) -> Sequence[int]:
    """The ports to choose from: outside of the ephemeral range wherever it leaves enough."""
    low, high = ephemeral
    below, above = range(LOWEST_PORT, low), range(max(high + 1, LOWEST_PORT), HIGHEST_PORT + 1)
    best = max(below, above, key=len)
    return best if len(best) >= FEW_PORTS else range(LOWEST_PORT, HIGHEST_PORT + 1)


class PortHolder:
    """Finds free ports of the address that nodes will listen on, and holds them until `close`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._random = random.Random()
        self._held: dict[int, contextlib.ExitStack] = {}

    def take(self, count: int = 1) -> list[int]:
        """Hold `count` free ports. Raises: NoFreePort."""
        choice = candidates(ephemeral_range())
        taken: list[int] = []
        for _ in range(MOST_TRIES):
            if len(taken) == count:
                return taken
            port = self._random.choice(choice)
            if port in self._held:
                continue
            try:
                self._bind(port, is_own=False)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise NoFreePort(f"{self.host}: {error.strerror or error}") from None
            else:
                taken.append(port)
        raise NoFreePort(f"no {count} free ports on {self.host}")

    def hold(self, port: int) -> None:
        """Hold a port that a node had before; what is left of its connections does not matter.
        Raises: PortInUse; NoFreePort: the host has no such address
        """
        if port in self._held:
            return
        try:
            self._bind(port, is_own=True)
        except OSError as error:
            where = host_and_port(self.host, port)
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"{where} is in use") from None
            why = error.strerror or error
            raise NoFreePort(f"{where} cannot be used: {why}") from None

    def close(self) -> None:
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _bind(self, port: int, *, is_own: bool) -> None:
        """Hold the port on every address of the host, as a node listens there. Raises: OSError."""
        addresses = socket.getaddrinfo(
            self.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with contextlib.ExitStack() as undo:
            for family, kind, protocol, _, address in dict.fromkeys(addresses):
                try:
                    bound = undo.enter_context(socket.socket(family, kind, protocol))
                except OSError:
                    continue  # a family that the machine lacks
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if is_own:
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                # Strictly, unless the node had it: not even remains of a connection may be there.
                bound.bind(address)
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if CAN_HOLD:
                self._held[port] = undo.pop_all()
