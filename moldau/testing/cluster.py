"""`Cluster`: nodes as real processes on this machine, for tests, demos and notebooks.

Owns a directory with one sub-directory per node, and the processes. Must not reach into a node:
what a test does to the cluster, an operator could do. Invariant: leaving the context, or the death
of this process, ends every node and, unless told to keep it, removes the directory.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from moldau.testing.node_process import NodeFailed, NodeProcess
from moldau.testing.watchdog import Watchdog

__all__ = ["Cluster", "NodeFailed"]

HOST: Final = "127.0.0.1"
FIRST_NODE_ID: Final = 1


class Cluster:
    """One combined node (broker and controller) in a process of its own.

    Args:
        brokers: how many brokers; this release runs exactly one.
        config: Kafka keys that override the defaults, on every node.
        directory: where the nodes live; a fresh temporary directory when None.
        keep: leave the directory behind, to look into it or to start again on it.

    Raises:
        ValueError: `brokers` is not 1.
        NodeFailed: (on entering) a node did not become ready.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
        keep: bool = False,
    ) -> None:
        if brokers != 1:
            raise ValueError(
                f"brokers={brokers}: this release runs one combined node, so brokers must be 1"
            )
        self._config = dict(config or {})
        self._keep = keep or directory is not None
        self._given_directory = Path(directory) if directory is not None else None
        self.directory = Path()
        self._nodes: dict[int, NodeProcess] = {}
        self._addresses: dict[int, str] = {}
        self._watchdog: Watchdog | None = None

    @property
    def bootstrap_server(self) -> str:
        """`host:port` list for any Kafka client's `bootstrap.servers`."""
        return ",".join(self._addresses[node_id] for node_id in sorted(self._addresses))

    @property
    def node_ids(self) -> list[int]:
        """Ids of all nodes, running or not."""
        return sorted(self._nodes)

    def node(self, broker_id: int = FIRST_NODE_ID) -> NodeProcess:
        """The process behind a broker id."""
        return self._nodes[broker_id]

    def data_directory(self, broker_id: int = FIRST_NODE_ID) -> Path:
        """The node's `log.dirs`, with one directory per partition."""
        return self.directory / f"node-{broker_id}" / "data"

    def start(self) -> Self:
        """Start all nodes and wait until they serve.

        Raises:
            NodeFailed: one did not; then nothing is left running.
            RuntimeError: they run already.
        """
        if self._watchdog is not None:
            raise RuntimeError("the cluster runs already")
        self._addresses.clear()
        if self._given_directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="moldau-cluster-"))
        else:
            self.directory = self._given_directory
            self.directory.mkdir(parents=True, exist_ok=True)
        self._watchdog = Watchdog(None if self._keep else self.directory)
        try:
            self._create_node(FIRST_NODE_ID)
            self.restart(FIRST_NODE_ID)
        except BaseException:
            self.close()
            raise
        return self

    def kill(self, broker_id: int = FIRST_NODE_ID) -> None:
        """`kill -9` one node."""
        self._nodes[broker_id].kill()

    def stop(self, broker_id: int = FIRST_NODE_ID) -> int:
        """Controlled shutdown of one node; returns its exit status."""
        return self._nodes[broker_id].stop()

    def restart(self, broker_id: int = FIRST_NODE_ID) -> None:
        """Start a node that is down, on the address it had before, and wait until it serves.

        Raises:
            NodeFailed: it runs already, or does not come up (then it does not run); the text has
                the end of its log.
        """
        node = self._nodes[broker_id]
        node.start()
        try:
            address = node.wait_ready()
        except BaseException:
            node.kill()
            raise
        if broker_id not in self._addresses:
            self._addresses[broker_id] = address
            self._write_config(broker_id, address.rpartition(":")[2])

    def pause(self, broker_id: int = FIRST_NODE_ID) -> None:
        """SIGSTOP one node: it keeps its connections and answers nothing."""
        self._nodes[broker_id].pause()

    def resume(self, broker_id: int = FIRST_NODE_ID) -> None:
        """Let a paused node go on."""
        self._nodes[broker_id].resume()

    def close(self) -> None:
        """End all processes and remove the directory unless it is to be kept; idempotent."""
        for node in self._nodes.values():
            if self._keep:
                node.stop()
            else:
                node.kill()
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        watchdog.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def _create_node(self, node_id: int) -> None:
        home = self.directory / f"node-{node_id}"
        home.mkdir(exist_ok=True)
        config_path = home / "server.properties"
        self._nodes[node_id] = NodeProcess(
            config_path, home / "node.log", ["--format-if-needed"], watchdog=self._watchdog
        )
        self._write_config(node_id, "0")

    def _write_config(self, node_id: int, port: str) -> None:
        home = self.directory / f"node-{node_id}"
        values = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:0",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"{HOST}:9093",
            "log.dirs": str(self.data_directory(node_id)),
            **self._config,
        }
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        (home / "server.properties").write_text(text)
