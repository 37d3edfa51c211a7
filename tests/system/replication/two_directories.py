"""The log directories of one broker, changed as an operator changes them.

Owns nothing. Must not be used while the broker runs.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from moldau.client import KafkaError
from moldau.config import read_properties_file
from moldau.testing import Cluster, wait_until
from tests.system.processes import run_cli


def set_directories(config: Path, *paths: Path) -> None:
    """Have a broker that is down start with these log directories; new ones get an identity.

    Args:
        config: the broker's `server.properties`.
    """
    value = ",".join(str(path) for path in paths)
    lines = [
        f"log.dirs={value}" if line.startswith("log.dirs=") else line
        for line in config.read_text().splitlines()
    ]
    config.write_text("\n".join(lines) + "\n")
    format_directories(config)


def format_directories(config: Path) -> None:
    """Give the broker's new directories an identity; one at least has one."""
    directories = read_properties_file(str(config))["log.dirs"].split(",")
    paths = [Path(each) / "meta.properties" for each in directories]
    [cluster_id] = {
        read_properties_file(str(each))["cluster.id"] for each in paths if each.exists()
    }
    ended = run_cli(
        *("storage", "format", "--config", config),
        *("--cluster-id", cluster_id, "--ignore-formatted"),
    )
    assert ended.status == 0, ended.errors


def is_told(cluster: Cluster, topic: str, path: Path) -> bool:
    """Whether the metadata says that the replica of partition 0 lies in this directory."""
    identity = read_properties_file(str(path / "meta.properties"))["directory.id"]
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
