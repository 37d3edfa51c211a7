"""The log directories of one broker, changed as an operator changes them while it is down."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from moldau.client import KafkaError
from moldau.config import read_properties_file
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.processes import Writer, format_apart, run_cli
from tests.system.replication.three_brokers import Trio

BROKER: Final = 2
RECORDS: Final = 900


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
    format_apart(config, "--cluster-id", cluster_id, "--ignore-formatted")


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

    until(is_another_active, what="another active controller", deadline_s=60)
    cluster.restart(before)
    # A separate client: an older one may still ask a broker that is paused.
    admin = AdminClient({"bootstrap.servers": at, "log_level": 0})
    made = admin.create_topics([NewTopic("made-by-another-controller", 1)])
    made["made-by-another-controller"].result(60)


class Disks:
    """Broker 2 on its own directory and a second one."""

    def __init__(self, trio: Trio, second: Path) -> None:
        self.trio = trio
        self.first = trio.cluster.data_directory(BROKER)
        self.second = second
        self.probe_count = 0
        """Records sent to a partition whose directory had gone; none is sure to be in it."""
        self.restart(self.first, self.second)

    def restart(self, *paths: Path) -> None:
        """An orderly stop, then a start with these directories."""
        self.stop()
        self.start(*paths)

    def stop(self) -> None:
        assert self.trio.cluster.stop(BROKER) == 0

    def start(self, *paths: Path) -> None:
        set_directories(self.trio.cluster.node(BROKER).config_path, *paths)
        self.trio.cluster.restart(BROKER)

    def topic_in_second(self, *replicas: int) -> tuple[str, Writer]:
        """A topic whose replica on broker 2 lies in the second directory, with its records."""
        config = {"min.insync.replicas": str(len(replicas))}
        for _ in range(2):
            topic = self.trio.create(f"t-{uuid.uuid4().hex}", replicas=replicas, config=config)
            place = until(lambda topic=topic: self.place(topic), what="the replica's log")  # type: ignore[misc]
            if place == self.second:
                break
        assert place == self.second, "partitions are spread over the directories"
        writer = Writer(self.trio.bootstrap, topic, acks="all")
        writer.send(RECORDS)
        writer.flush()
        assert len(writer.acknowledged) == RECORDS
        return topic, writer

    def place(self, topic: str) -> Path | None:
        """The directory in which broker 2 has the topic's log; None while there is none."""
        places = (self.first, self.second)
        return next((each for each in places if (each / f"{topic}-0").exists()), None)

    def fail_second(self, topic: str) -> Path:
        """The second directory's disk goes away under the running broker, which finds out by a
        record. Without this replica too few are in sync: the record is refused.
        """
        away = self.second.with_name("away")
        self.second.rename(away)
        probe = Writer(self.trio.bootstrap, topic, **{"acks": "all", "message.timeout.ms": 5_000})
        probe.send(1)
        probe.flush()
        self.probe_count += 1
        assert len(probe.refused) == 1
        until(
            lambda: self.trio.said(BROKER, "log directory", str(self.second), "is offline"),
            what="the directory fails",
            deadline_s=90,
        )
        return away
