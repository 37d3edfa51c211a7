"""The log directories of one broker, changed as an operator changes them.

Owns nothing. Must not be used while the broker runs.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from moldau.client import KafkaError
from moldau.testing import Cluster, wait_until
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


def is_told(cluster: Cluster, topic: str, path: Path) -> bool:
    """Whether the metadata says that the replica of partition 0 lies in this directory."""
    [identity] = [
        line.partition("=")[2]
        for line in (path / "meta.properties").read_text().splitlines()
        if line.startswith("directory.id=")
    ]
    metadata = cluster.data_directory(cluster.controller_ids[0])
    shown = run_cli("metadata", "shell", metadata, "cat", f"/topics/byName/{topic}/0/data")
    return identity in shown.output


def move_controller(cluster: Cluster, *, at: str) -> None:
    """Another controller becomes active: it looks at once for leaders of all partitions that have
    none. Returns when it has, and has made a topic, asked for at the broker with this address.
    """
    before = cluster.active_controller_id()
    cluster.kill(before)

    def is_another_active() -> bool:
        try:
            return cluster.active_controller_id() not in (before, -1)
        except KafkaError:
            return False  # none was elected within the client's time

    wait_until(is_another_active, what="another active controller", deadline_s=60)
    cluster.restart(before)
    # A client of its own: an older one may still ask a broker that is paused.
    admin = AdminClient({"bootstrap.servers": at, "log_level": 0})
    made = admin.create_topics([NewTopic("made-by-another-controller", 1)])
    made["made-by-another-controller"].result(60)
