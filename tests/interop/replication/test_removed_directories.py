"""A log directory taken out of `log.dirs` in a cluster with an Apache Kafka broker: ours has the
directory and Apache Kafka leads, or the other way round. The controllers are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau.testing import Cluster
from tests.interop.java.tools import missing
from tests.interop.replication.kafka_nodes import KafkaNodes
from tests.interop.replication.three_brokers import CONFIG, DEADLINE_S
from tests.kit.waiting import until
from tests.system.processes import Writer, check_read
from tests.system.replication.three_brokers import Trio
from tests.system.replication.two_directories import (
    BROKER,
    Disks,
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

LEADER = 1


@contextmanager
def apache_kafka(disks: Disks, broker_id: int) -> Iterator[KafkaNodes]:
    """Apache Kafka's broker in the place of one of ours, with its directories."""
    cluster = disks.trio.cluster
    assert cluster.stop(broker_id) == 0
    home = cluster.data_directory(broker_id).parent.parent
    with KafkaNodes(home, disks.trio.bootstrap, [f"broker-{broker_id}"]) as nodes:
        yield nodes


def check_not_elected(disks: Disks, topic: str) -> None:
    """Broker 2 does not lead, although a new controller looks for a leader."""
    move_controller(disks.trio.cluster, at=disks.trio.addresses[3])
    assert disks.trio.leader(topic) != BROKER


def check_both_have_all(trio: Trio, topic: str, writer: Writer) -> None:
    """Broker 1 leads again, and both have everything."""
    assert trio.wait_leader(topic, other_than=BROKER) == LEADER
    trio.wait_isr(topic, {LEADER, BROKER})
    check_read(trio.bootstrap, topic, writer.acknowledged)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    home = tmp_path / "cluster"
    with Cluster(brokers=3, controllers=3, config=CONFIG, directory=home) as cluster:
        yield Disks(Trio(cluster), tmp_path / "second")


def test_apache_kafka_leads_and_ours_loses_a_directory(disks: Disks) -> None:
    trio = disks.trio
    with apache_kafka(disks, LEADER) as kafka:
        topic, writer = disks.topic_in_second(LEADER, BROKER)
        assert trio.leader(topic) == LEADER
        disks.stop()
        kafka.pause(LEADER)
        disks.start(disks.first)
        # It begins empty if it starts while Apache Kafka's session lasts and still names a leader.
        until(
            lambda: (
                trio.leader(topic) == BROKER
                or disks.place(topic) == disks.first
                or trio.said(BROKER, f"{topic}-0", "which is not one of this broker")
            ),
            what="broker 2 leads, begins empty, or says why it cannot",
            deadline_s=DEADLINE_S,
        )
        check_not_elected(disks, topic)
        kafka.resume(LEADER)
        check_both_have_all(trio, topic, writer)


def test_ours_leads_and_apache_kafka_loses_a_directory(disks: Disks) -> None:
    """Apache Kafka makes an empty log and reports to the controller where: that counts as a
    loss.
    """
    cluster = disks.trio.cluster
    with apache_kafka(disks, BROKER) as kafka:
        topic, writer = disks.topic_in_second(LEADER, BROKER)
        assert disks.trio.leader(topic) == LEADER
        kafka.stop()
        cluster.pause(LEADER)
        set_directories(cluster.node(BROKER).config_path, disks.first)
        kafka.start(BROKER)
        until(
            lambda: is_told(cluster, topic, disks.first),
            what="the controller hears of the replica's new directory",
            deadline_s=DEADLINE_S,
        )
        assert (disks.first / f"{topic}-0").exists()
        check_not_elected(disks, topic)
        cluster.resume(LEADER)
        check_both_have_all(disks.trio, topic, writer)
