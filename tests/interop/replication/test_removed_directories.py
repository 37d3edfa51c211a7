"""A log directory taken out of `log.dirs` in a cluster with an Apache Kafka broker: ours has the
directory and Apache Kafka leads, or the other way round. The controllers are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau.testing import Cluster, wait_until
from tests.interop.java.tools import missing
from tests.interop.replication.kafka_nodes import KafkaNodes
from tests.interop.replication.three_brokers import CONFIG, DEADLINE_S
from tests.system.processes import Writer, read_all, run_cli
from tests.system.replication.three_brokers import Trio
from tests.system.replication.two_directories import set_directories

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

LEADER, FOLLOWER = 1, 2
RECORDS = 900


class Mixed:
    """Three of our brokers and a controller, one broker of which makes place for Apache Kafka's;
    broker 2 has a second log directory.
    """

    def __init__(self, cluster: Cluster, home: Path, second: Path) -> None:
        self.cluster = cluster
        self.trio = Trio(cluster)
        self._home = home
        self.first, self.second = cluster.data_directory(FOLLOWER), second
        assert cluster.stop(FOLLOWER) == 0
        self.configure(self.first, self.second)
        cluster.restart(FOLLOWER)

    @contextmanager
    def kafka(self, broker_id: int) -> Iterator[KafkaNodes]:
        assert self.cluster.stop(broker_id) == 0
        with KafkaNodes(self._home, self.trio.bootstrap, [f"broker-{broker_id}"]) as nodes:
            yield nodes

    def configure(self, *paths: Path) -> None:
        set_directories(self.cluster, FOLLOWER, *paths)

    def fill(self) -> tuple[str, Writer]:
        """A topic whose replica on broker 2 lies in the second directory, with its records."""
        for number in range(2):
            topic = self.trio.create(f"kept-{number}", replicas=(LEADER, FOLLOWER))
            place = wait_until(lambda topic=topic: self.place(topic), what="the replica's log")  # type: ignore[misc]
            if place == self.second:
                break
        assert place == self.second, "partitions are spread over the directories"
        writer = Writer(self.trio.bootstrap, topic, acks="all")
        writer.send(RECORDS)
        writer.flush()
        assert len(writer.acknowledged) == RECORDS
        assert self.trio.leader(topic) == LEADER
        return topic, writer

    def place(self, topic: str) -> Path | None:
        """The directory in which broker 2 has the topic's log; None while there is none."""
        places = (self.first, self.second)
        return next((each for each in places if (each / f"{topic}-0").exists()), None)

    def is_told(self, topic: str) -> bool:
        """Whether the controller takes the replica on broker 2 to be in the first directory."""
        [identity] = [
            line.partition("=")[2]
            for line in (self.first / "meta.properties").read_text().splitlines()
            if line.startswith("directory.id=")
        ]
        metadata = self.cluster.data_directory(self.cluster.controller_ids[0])
        shown = run_cli("metadata", "shell", metadata, "cat", f"/topics/byName/{topic}/0/data")
        return identity in shown.output

    def check(self, topic: str, writer: Writer) -> None:
        """Broker 1 leads again, and both have everything."""
        trio = self.trio
        assert trio.wait_leader(topic, other_than=FOLLOWER) == LEADER
        trio.wait_isr(topic, {LEADER, FOLLOWER})
        assert read_all(trio.bootstrap, topic) == list(writer.acknowledged)


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    home = tmp_path / "cluster"
    with Cluster(brokers=3, config=CONFIG, directory=home) as cluster:
        yield Mixed(cluster, home, tmp_path / "second")


def test_apache_kafka_leads_and_ours_loses_a_directory(mixed: Mixed) -> None:
    trio, cluster = mixed.trio, mixed.cluster
    with mixed.kafka(LEADER) as kafka:
        topic, writer = mixed.fill()
        assert cluster.stop(FOLLOWER) == 0
        kafka.pause(LEADER)
        mixed.configure(mixed.first)
        cluster.restart(FOLLOWER)
        wait_until(
            lambda: (
                trio.leader(topic) == FOLLOWER
                or trio.said(FOLLOWER, f"{topic}-0", "which is not one of this broker")
            ),
            what="broker 2 leads, or says why it cannot",
            deadline_s=DEADLINE_S,
        )
        assert trio.leader(topic) != FOLLOWER
        kafka.resume(LEADER)
        mixed.check(topic, writer)


def test_ours_leads_and_apache_kafka_loses_a_directory(mixed: Mixed) -> None:
    """Apache Kafka makes an empty log and tells the controller where: that counts as a loss."""
    trio, cluster = mixed.trio, mixed.cluster
    with mixed.kafka(FOLLOWER) as kafka:
        topic, writer = mixed.fill()
        kafka.stop()
        cluster.pause(LEADER)
        mixed.configure(mixed.first)
        kafka.start(FOLLOWER)
        wait_until(
            lambda: mixed.is_told(topic),
            what="the controller hears of the replica's new directory",
            deadline_s=DEADLINE_S,
        )
        assert (mixed.first / f"{topic}-0").exists()
        assert trio.leader(topic) != FOLLOWER
        cluster.resume(LEADER)
        mixed.check(topic, writer)
