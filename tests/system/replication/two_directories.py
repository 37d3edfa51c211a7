"""The log directories of one broker, changed as an operator changes them.

Owns nothing. Must not be used while the broker runs.
"""

from __future__ import annotations

from pathlib import Path

from moldau.testing import Cluster
from tests.system.processes import run_cli


def set_directories(cluster: Cluster, broker_id: int, *paths: Path) -> None:
    """Have a broker that is down start with these log directories; new ones get an identity."""
    home = cluster.data_directory(broker_id).parent
    config = home / "server.properties"
    value = ",".join(str(path) for path in paths)
    lines = [
        f"log.dirs={value}" if line.startswith("log.dirs=") else line
        for line in config.read_text().splitlines()
    ]
    config.write_text("\n".join(lines) + "\n")
    format_directories(cluster, broker_id)


def format_directories(cluster: Cluster, broker_id: int) -> None:
    """Give the broker's new directories an identity."""
    home = cluster.data_directory(broker_id).parent
    cluster_id = next(
        line.partition("=")[2]
        for line in (home / "data" / "meta.properties").read_text().splitlines()
        if line.startswith("cluster.id=")
    )
    ended = run_cli(
        "storage",
        "format",
        "--config",
        home / "server.properties",
        "--cluster-id",
        cluster_id,
        "--ignore-formatted",
    )
    assert ended.status == 0, ended.errors
