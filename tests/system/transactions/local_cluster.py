"""The cluster of the soak where there are no hosts of their own: `moldau.testing.Cluster`.

Owns the translation of what the nemesis asks for; nothing can be cut here and no disk is small.
Must not: be given faults that it cannot make (FAULTS are those it can). Invariant: as of Cluster,
leaving the context ends every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.wire import Wire
from moldau.testing import Cluster
from tests.system.replication.chaos_cluster import BROKER_IDS, CONFIG, CONTROLLER_IDS, ChaosCluster
from tests.system.replication.load import here

FAULTS: Final = frozenset(
    {
        *("kill", "power-loss", "lost-replicas", "stop", "pause-short", "pause-long"),
        *("controller-kill", "controller-pause"),
    }
)


class _Here:
    """Stands in place of Hosts: everything is on this one."""

    def from_hub(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return here(function, *arguments)


class LocalCluster(ChaosCluster):
    """The face of ChaosCluster over a Cluster that runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.hosts = _Here()  # type: ignore[assignment]
        self.disks = {}
        self.broker_ids = list(cluster.broker_ids)
        self.controller_ids = list(cluster.controller_ids)
        self._addresses = dict(
            zip(
                (*self.broker_ids, *self.controller_ids),
                (
                    *cluster.bootstrap_server.split(","),
                    *cluster.bootstrap_controllers.split(","),
                ),
                strict=True,
            )
        )

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap_server

    def launch(self, node_id: int) -> None:
        self._cluster.node(node_id).start()

    def kill(self, node_id: int) -> None:
        self._cluster.kill(node_id)

    def stop(self, node_id: int) -> int:
        return self._cluster.stop(node_id)

    def pause(self, node_id: int) -> None:
        self._cluster.pause(node_id)

    def resume(self, node_id: int) -> None:
        self._cluster.resume(node_id)

    def is_running(self, node_id: int) -> bool:
        return self._cluster.node(node_id).running

    def exit_status(self, node_id: int) -> int | None:
        return self._cluster.node(node_id).exit_code

    def home(self, node_id: int) -> Path:
        return self._cluster.node(node_id).log_path.parent

    def log_tail(self, node_id: int) -> str:
        return self._cluster.node(node_id).log_tail()

    def data_directories(self, node_id: int) -> list[Path]:
        return [self._cluster.data_directory(node_id)]

    def wire(self, node_id: int) -> Wire:
        host, _, port = self._addresses[node_id].rpartition(":")
        return Wire(host, int(port))


@contextmanager
def running_here(
    directory: Path, config: Mapping[str, str] | None = None
) -> Iterator[LocalCluster]:
    """The cluster on this machine's own network."""
    with Cluster(
        brokers=len(BROKER_IDS),
        controllers=len(CONTROLLER_IDS),
        config={**CONFIG, **dict(config or {})},
        directory=directory,
    ) as cluster:
        yield LocalCluster(cluster)
