"""Three brokers and three controllers as processes, with links between brokers that can be cut.

Owns two ways to have such links. As root on Linux each node has a network namespace, and a cut link
drops packets. Anywhere else brokers reach one another through a relay per broker, which they
advertise for the listener REPLICATION; a cut way holds back what a leader sends to one follower.
Must not know what is shown. Invariant: only the way from one broker to another is cut; clients and
controllers are never affected.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from moldau.local.layout import ClusterLayout, PortHolder
from moldau.local.node_process import NodeProcess, wait_ready_together
from moldau.local.watchdog import Watchdog
from tests.system.quorum.hosts import Hosts, why_not
from tests.system.quorum.spread_cluster import BROKER_PORT, SpreadCluster, host_name

BROKER_IDS: Final = (1, 2, 3)
CONTROLLER_IDS: Final = (101, 102, 103)
HOST: Final = "127.0.0.1"
FRAME_HEAD: Final = struct.Struct(">ihhih")
CHUNK_BYTES: Final = 65_536

Result = TypeVar("Result")


class Stage(Protocol):
    """A running cluster, and what can be done to it."""

    links: str
    """How links are cut here, for people."""

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function where its clients reach the brokers."""

    def cut(self, sender: int, receiver: int) -> None:
        """What a broker sends to another one does not arrive any more."""

    def mend(self, sender: int, receiver: int) -> None:
        """It arrives again."""

    def kill(self, broker_id: int) -> None:
        """`kill -9`."""

    def restart(self, broker_id: int) -> None:
        """Start a broker that was killed."""

    def log_lines(self, broker_id: int) -> list[str]:
        """What the broker has logged."""


@contextmanager
def stage(directory: Path, config: Mapping[str, str], *, relayed: bool) -> Iterator[Stage]:
    """The cluster, in namespaces if that is possible and not `relayed`."""
    if relayed or why_not():
        with _relayed(directory, config) as made:
            yield made
        return
    names = [host_name(node_id) for node_id in (*CONTROLLER_IDS, *BROKER_IDS)]
    with (
        Hosts(names) as hosts,
        SpreadCluster(hosts, directory, CONTROLLER_IDS, BROKER_IDS, config) as cluster,
    ):
        yield _NamespaceStage(cluster)


class _NamespaceStage:
    links = "a network namespace per node; a cut link drops packets"

    def __init__(self, cluster: SpreadCluster) -> None:
        self._cluster = cluster

    @property
    def bootstrap(self) -> str:
        hosts = [self._cluster.hosts.address(host_name(each)) for each in BROKER_IDS]
        return ",".join(f"{host}:{BROKER_PORT}" for host in hosts)

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return self._cluster.hosts.from_hub(function, *arguments)

    def cut(self, sender: int, receiver: int) -> None:
        self._cluster.hosts.cut_one_way(host_name(sender), host_name(receiver))

    def mend(self, sender: int, receiver: int) -> None:
        self._cluster.hosts.mend_one_way(host_name(sender), host_name(receiver))

    def kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)

    def restart(self, broker_id: int) -> None:
        self._cluster.launch(broker_id)

    def log_lines(self, broker_id: int) -> list[str]:
        path = self._cluster.home(broker_id) / "node.log"
        return path.read_text(errors="replace").splitlines()


class Relay:
    """Stands before one broker's REPLICATION listener; distinguishes its followers by the client id
    in their first request.
    """

    def __init__(self, target_port: int) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._target_port = target_port
        self._changed = threading.Condition()
        self._cut_off: set[int] = set()
        self._is_closed = False
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, follower_id: int) -> None:
        """Hold back everything that goes to a follower."""
        with self._changed:
            self._cut_off.add(follower_id)

    def mend(self, follower_id: int) -> None:
        """Let it through, what was held back first."""
        with self._changed:
            self._cut_off.discard(follower_id)
            self._changed.notify_all()

    def close(self) -> None:
        """End every connection."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for each in self._sockets:
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                follower, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(follower,), daemon=True).start()

    def _join(self, follower: socket.socket) -> None:
        try:
            first = follower.recv(CHUNK_BYTES)
            follower_id = follower_in(first)
            leader = socket.create_connection((HOST, self._target_port))
        except (OSError, ValueError):
            _end(follower)
            return
        self._sockets += [follower, leader]
        backward = threading.Thread(
            target=self._forward, args=(leader, follower, follower_id), daemon=True
        )
        backward.start()
        with contextlib.suppress(OSError):
            leader.sendall(first)
        self._forward(follower, leader, None)

    def _forward(
        self, source: socket.socket, target: socket.socket, follower_id: int | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._is_closed or follower_id not in self._cut_off
                    )
                target.sendall(data)
        _end(source)
        _end(target)


def follower_in(first: bytes) -> int:
    """The broker behind a connection's first request: `broker-N-…` is its client id.

    Raises:
        ValueError: a request of another client.
    """
    if len(first) < FRAME_HEAD.size:
        raise ValueError("no request")
    *_, length = FRAME_HEAD.unpack_from(first)
    client_id = first[FRAME_HEAD.size : FRAME_HEAD.size + max(length, 0)].decode()
    name, broker_id, *_ = client_id.split("-")
    if name != "broker":
        raise ValueError(client_id)
    return int(broker_id)


class _RelayedStage:
    links = "a relay before each broker; a cut way is held back there"

    def __init__(
        self, layout: ClusterLayout, nodes: dict[int, NodeProcess], relays: dict[int, Relay]
    ) -> None:
        self._layout = layout
        self._nodes = nodes
        self._relays = relays

    @property
    def bootstrap(self) -> str:
        return self._layout.bootstrap_server

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return function(*arguments)

    def cut(self, sender: int, receiver: int) -> None:
        self._relays[sender].cut(receiver)

    def mend(self, sender: int, receiver: int) -> None:
        self._relays[sender].mend(receiver)

    def kill(self, broker_id: int) -> None:
        self._nodes[broker_id].kill()

    def restart(self, broker_id: int) -> None:
        self._nodes[broker_id].start()

    def log_lines(self, broker_id: int) -> list[str]:
        return self._nodes[broker_id].log_path.read_text(errors="replace").splitlines()


@contextmanager
def _relayed(directory: Path, config: Mapping[str, str]) -> Iterator[Stage]:
    with contextlib.ExitStack() as undo:
        ports = PortHolder(HOST)
        undo.callback(ports.close)
        layout = ClusterLayout.plan(
            directory,
            controllers=len(CONTROLLER_IDS),
            brokers=len(BROKER_IDS),
            host=HOST,
            broker_port=lambda: ports.take()[0],
            controller_port=lambda: ports.take()[0],
            config=config,
        )
        layout.write_configs()
        relays = {}
        for node in layout.brokers:
            [own_port] = ports.take()
            relay = relays[node.node_id] = Relay(own_port)
            undo.callback(relay.close)
            values = {
                **layout.properties(node),
                "listeners": f"PLAINTEXT://{HOST}:{node.broker_port},"
                f"REPLICATION://{HOST}:{own_port}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{node.broker_port},"
                f"REPLICATION://{HOST}:{relay.port}",
                "inter.broker.listener.name": "REPLICATION",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,"
                "CONTROLLER:PLAINTEXT",
            }
            text = "".join(f"{key}={value}\n" for key, value in values.items())
            node.config_path.write_text(text)
        layout.format()
        watchdog = Watchdog(None)
        undo.callback(watchdog.close)
        nodes = {
            node.node_id: NodeProcess(node.config_path, node.log_path, watchdog=watchdog)
            for node in layout.nodes
        }
        for process in nodes.values():
            undo.callback(process.kill)
            process.start()
        wait_ready_together(nodes.values())
        yield _RelayedStage(layout, nodes, relays)


def _end(ended: socket.socket) -> None:
    with contextlib.suppress(OSError):
        ended.shutdown(socket.SHUT_RDWR)
    ended.close()
