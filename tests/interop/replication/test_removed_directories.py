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
from tests.system.processes import Writer, read_all
from tests.system.replication.three_brokers import Trio
from tests.system.replication.two_directories import (
    is_told,
    move_controller,
    set_directories,
)

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
        set_directories(self.cluster.node(FOLLOWER).config_path, *paths)

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

    def check_not_elected(self, topic: str) -> None:
        """Broker 2 does not lead, although a new controller looks for a leader."""
        move_controller(self.cluster, at=self.trio.addresses[3])
        assert self.trio.leader(topic) != FOLLOWER

    def check(self, topic: str, writer: Writer) -> None:
        """Broker 1 leads again, and both have everything."""
        trio = self.trio
        assert trio.wait_leader(topic, other_than=FOLLOWER) == LEADER
        trio.wait_isr(topic, {LEADER, FOLLOWER})
        assert read_all(trio.bootstrap, topic) == list(writer.acknowledged)


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    home = tmp_path / "cluster"
    with Cluster(brokers=3, controllers=3, config=CONFIG, directory=home) as cluster:
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
        mixed.check_not_elected(topic)
        kafka.resume(LEADER)
        mixed.check(topic, writer)


def test_ours_leads_and_apache_kafka_loses_a_directory(mixed: Mixed) -> None:
    """Apache Kafka makes an empty log and tells the controller where: that counts as a loss."""
    cluster = mixed.cluster
    with mixed.kafka(FOLLOWER) as kafka:
        topic, writer = mixed.fill()
        kafka.stop()
        cluster.pause(LEADER)
        mixed.configure(mixed.first)
        kafka.start(FOLLOWER)
        wait_until(
            lambda: is_told(cluster, topic, mixed.first),
            what="the controller hears of the replica's new directory",
            deadline_s=DEADLINE_S,
        )
        assert (mixed.first / f"{topic}-0").exists()
        mixed.check_not_elected(topic)
        cluster.resume(LEADER)
        mixed.check(topic, writer)
