"""`Cluster`: nodes as real processes on this machine, for tests, demos and notebooks.

Owns a directory with one sub-directory per node, the ports, and the processes, which tests kill,
pause and restart. Must not reach into a node: what a test does to the cluster, an operator could
do. Invariant: leaving the context, or the death of this process, ends every node and, unless asked
to keep it, removes the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from moldau.local.layout import (
    FIRST_BROKER_ID,
    HOMES,
    PROPERTIES,
    QUICK_GROUPS,
    ClusterLayout,
    NoFreePort,
    PortHolder,
    check_counts,
    replication_properties,
)
from moldau.local.node_process import NodeFailed, NodeProcess, wait_ready_together
from moldau.local.secure_files import LayoutError
from moldau.local.watchdog import Watchdog
from moldau.testing.node_settings import node_settings

__all__ = ["Cluster", "NodeFailed"]

HOST: Final = "127.0.0.1"
ANSWER_MS: Final = 1_000
MOST_SHOWN: Final = 6
"""Logs of so many nodes are in a cluster's `repr`."""


class Cluster:
    """Brokers 1, 2, … and controllers 101, 102, …, each in its own process.

    One broker and one controller (the default) are a single combined node, number 1.

    Args:
        brokers, controllers: how many of each.
        config: Kafka keys that override the defaults, on every node, with values as Kafka writes
            them or as Python does. One default is not Kafka's:
            `group.initial.rebalance.delay.ms=0`, so that a group's first member reads at once. With
            three or more brokers, topics get three replicas, two of which must be in sync
            (`default.replication.factor=3`, `min.insync.replicas=2`), as in `moldau dev`.
        directory: where the nodes live; a fresh temporary directory when None. What an earlier
            cluster of the same size left there is taken over, with its ports.
        keep: leave the directory behind, to look into it or to start again on it.
        secure: with TLS, SCRAM users and ACLs for clients, and certificates between the nodes, as
            `moldau dev --secure` has it: `client_properties` are the super user's. Needs the extra
            `moldau[tls]`.

    Raises:
        ValueError: there are no clusters of that size, a key of `config` is unknown (the text has
            the one that it resembles) or cannot have its value, or another cluster lies in
            `directory`.
        NodeFailed: (on entering) a node did not become ready.
    """

    def __init__(
        self,
        brokers: int = 1,
        controllers: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
        secure: bool = False,
    ) -> None:
        __tracebackhide__ = True
        check_counts(controllers, brokers)
        self._is_secure = secure
        self._counts = (controllers, brokers)
        own = node_settings(config or {})
        self._config = {**QUICK_GROUPS, **replication_properties(brokers), **own}
        self._keep = keep or directory is not None
        self._given_directory = Path(directory) if directory is not None else None
        self.directory = Path()
        self._layout: ClusterLayout | None = None
        self._nodes: dict[int, NodeProcess] = {}
        self._ports: PortHolder | None = None
        self._watchdog: Watchdog | None = None

    # -- what it is ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Where it serves and where its nodes log: pytest shows it with a test that fails."""
        controllers, brokers = self._counts
        shape = f"brokers={brokers} controllers={controllers}"
        if self._layout is None:
            return f"<Cluster {shape}, not started>"
        logs = ", ".join(str(node.log_path) for node in self._layout.nodes[:MOST_SHOWN])
        more = ", …" if len(self._layout.nodes) > MOST_SHOWN else ""
        state = "" if self._watchdog is not None else ", closed"
        return f"<Cluster {shape} on {self.bootstrap_server}{state}, logs {logs}{more}>"

    @property
    def bootstrap_server(self) -> str:
        """`host:port` list of the brokers, for any Kafka client's `bootstrap.servers`. Raises:
        RuntimeError: the cluster has not been started
        """
        __tracebackhide__ = True
        return self._planned.bootstrap_server

    @property
    def bootstrap_controllers(self) -> str:
        """`host:port` list of the controllers, for `--bootstrap-controller`."""
        return self._planned.bootstrap_controllers

    @property
    def client_properties(self) -> dict[str, str]:
        """What Moldau's and Java's clients need, by Kafka's names (`bootstrap.servers`, …): a
        secured cluster's super user, else the address alone.
        """
        return self._planned.client_properties()

    @property
    def librdkafka_properties(self) -> dict[str, str]:
        """The same by librdkafka's names, for confluent-kafka: the user and the password are
        `sasl.username` and `sasl.password`, the authority's certificate is `ssl.ca.location`.
        """
        return self._planned.librdkafka_properties()

    @property
    def node_ids(self) -> list[int]:
        """Ids of all nodes, running or not."""
        return sorted(self._nodes)

    @property
    def broker_ids(self) -> list[int]:
        """Ids of the nodes that serve clients."""
        return [node.node_id for node in self._planned.brokers]

    @property
    def controller_ids(self) -> list[int]:
        """Ids of the nodes that vote."""
        return [node.node_id for node in self._planned.controllers]

    def active_controller_id(self) -> int:
        """The leader of the quorum, by DescribeQuorum at the controllers.

        Raises:
            KafkaError: no leader is known within the client's time limit.
            RuntimeError: the cluster is closed.
        """
        __tracebackhide__ = True
        self._refuse_closed()
        from moldau.client import Admin

        async def ask() -> int:
            async with Admin(
                config=self._planned.controller_properties(),
                # A controller that is paused accepts connections and says nothing: ask another.
                request_timeout_ms=ANSWER_MS,
                socket_connection_setup_timeout_ms=ANSWER_MS,
            ) as admin:
                return (await admin.describe_metadata_quorum()).leader_id

        # In its own thread, so that it works while the caller's loop runs.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, ask()).result()

    def node(self, node_id: int = FIRST_BROKER_ID) -> NodeProcess:
        """The process behind a node id. Raises: ValueError: there is none."""
        __tracebackhide__ = True
        found = self._nodes.get(node_id)
        if found is None:
            _ = self._planned  # raises, when there are no nodes yet
            known = ", ".join(map(str, self.node_ids))
            raise ValueError(f"there is no node {node_id}; there are {known}")
        return found

    def data_directory(self, node_id: int = FIRST_BROKER_ID) -> Path:
        """The node's `log.dirs`, with one directory per partition. Raises: ValueError: as `node`"""
        __tracebackhide__ = True
        self.node(node_id)
        found = {node.node_id: node for node in self._planned.nodes}
        return found[node_id].data_directory

    # -- what can be done to it ------------------------------------------------------------------

    def start(self) -> Self:
        """Start all nodes and wait until they serve.

        Raises:
            NodeFailed: one did not; then nothing is left running.
            RuntimeError: they run already.
        """
        __tracebackhide__ = True
        if self._watchdog is not None:
            raise RuntimeError("the cluster runs already")
        if self._given_directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="moldau-cluster-"))
        else:
            self.directory = self._given_directory
            self.directory.mkdir(parents=True, exist_ok=True)
        self._watchdog = Watchdog(None if self._keep else self.directory)
        try:
            self._lay_out()
            for node in self._nodes.values():
                node.start()
            wait_ready_together(self._nodes.values())
        except (LayoutError, NoFreePort) as error:
            self.close()
            raise NodeFailed(str(error)) from None
        except BaseException:
            self.close()
            raise
        return self

    def kill(self, node_id: int = FIRST_BROKER_ID) -> None:
        """`kill -9` one node."""
        __tracebackhide__ = True
        self.node(node_id).kill()

    def stop(self, node_id: int = FIRST_BROKER_ID) -> int:
        """Controlled shutdown of one node; returns its exit status."""
        __tracebackhide__ = True
        return self.node(node_id).stop()

    def restart(self, node_id: int = FIRST_BROKER_ID) -> None:
        """Start a node that is down, on the address it had before, and wait until it serves.

        Raises:
            NodeFailed: it runs already, or does not come up (then it does not run); the text has
                the end of its log.
            RuntimeError: the cluster is closed.
        """
        __tracebackhide__ = True
        node = self.node(node_id)
        self._refuse_closed()
        node.start()
        try:
            node.wait_ready()
        except BaseException:
            node.kill()
            raise

    def pause(self, node_id: int = FIRST_BROKER_ID) -> None:
        """SIGSTOP one node: it keeps its connections and answers nothing."""
        __tracebackhide__ = True
        self.node(node_id).pause()

    def resume(self, node_id: int = FIRST_BROKER_ID) -> None:
        """Let a paused node go on."""
        __tracebackhide__ = True
        self.node(node_id).resume()

    def close(self) -> None:
        """End all processes and remove the directory unless it is to be kept; idempotent."""
        if self._keep and self._layout is not None:
            # Brokers first: their controlled shutdown needs the controllers.
            self._stop_together(node.node_id for node in self._layout.brokers)
            self._stop_together(node.node_id for node in self._layout.controllers)
        for node in self._nodes.values():
            node.kill()
        ports, self._ports = self._ports, None
        if ports is not None:
            ports.close()
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        watchdog.close()

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # -- how -------------------------------------------------------------------------------------

    @property
    def _planned(self) -> ClusterLayout:
        __tracebackhide__ = True
        if self._layout is None:
            raise RuntimeError("the cluster is not started: use `with Cluster() as …`, or start()")
        return self._layout

    def _refuse_closed(self) -> None:
        __tracebackhide__ = True
        if self._layout is not None and self._watchdog is None:
            raise RuntimeError("the cluster is closed; start() starts it again")

    def _lay_out(self) -> None:
        """Plan the nodes, or take over those of an earlier run, and write what they need."""
        ports = self._ports = PortHolder(HOST)
        earlier = self._earlier(ports)
        if earlier is not None:
            self._layout = earlier
        else:
            controllers, brokers = self._counts
            self._layout = ClusterLayout.plan(
                self.directory,
                controllers=controllers,
                brokers=brokers,
                host=HOST,
                broker_port=lambda: ports.take()[0],
                controller_port=lambda: ports.take()[0],
                internal_port=(lambda: ports.take()[0]) if self._is_secure else None,
                combined=True,
                config=self._config,
            )
        layout = self._layout
        layout.write_configs()
        if earlier is None and not layout.formats_itself:
            layout.format()
        arguments = ["--format-if-needed"] if layout.formats_itself else []
        self._nodes = {
            node.node_id: NodeProcess(
                node.config_path, node.log_path, arguments, watchdog=self._watchdog
            )
            for node in layout.nodes
        }

    def _earlier(self, ports: PortHolder) -> ClusterLayout | None:
        """The nodes of a cluster that was kept, None in a directory without any."""
        if not [path for home in HOMES for path in self.directory.glob(f"{home}/{PROPERTIES}")]:
            return None
        found = ClusterLayout.found(self.directory, self._config)
        found.refuse_other_size(self.directory, self._counts)
        if self._is_secure != (found.secure is not None):
            kind = "is not secured" if self._is_secure else "is secured"
            raise ValueError(f"the cluster in {self.directory} {kind}")
        try:
            found.hold_ports(ports)
        except NoFreePort as error:
            if len(found.nodes) > 1 or self._is_secure:
                raise NodeFailed(f"{error}; the nodes in {self.directory} had it") from None
            return None  # a lone node may move
        return found

    def _stop_together(self, node_ids: Iterable[int]) -> None:
        nodes = [self._nodes[node_id] for node_id in node_ids if node_id in self._nodes]
        for node in nodes:
            with contextlib.suppress(NodeFailed):  # it may just have ended by itself
                node.ask_to_stop()
        for node in nodes:
            node.stop()
