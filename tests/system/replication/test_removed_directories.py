"""A log directory taken out of `log.dirs`: what was acknowledged is kept, or is not served at all.

Broker 2 has two directories and loses the second; of its replicas there, the other copies stay, and
without other copies the partition waits for the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition

from moldau.testing import Cluster
from tests.kit import judging
from tests.kit.waiting import until
from tests.system.processes import Writer, check_read, read_all
from tests.system.replication.three_brokers import QUICK, Trio
from tests.system.replication.two_directories import BROKER, Disks, is_told, move_controller

pytestmark = pytest.mark.timeout(600)

NOT_HERE = ("is offline", "which is not one of this broker")


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    with Cluster(brokers=3, controllers=3, config=QUICK) as cluster:
        yield Disks(Trio(cluster), tmp_path / "second")


@judging()
def check_has_all(disks: Disks, topic: str, writer: Writer) -> None:
    """What was acknowledged is stored, once and in order; what a failing disk refused may be."""
    values = read_all(disks.trio.bootstrap, topic)
    acknowledged = list(writer.acknowledged)
    assert values[: len(acknowledged)] == acknowledged, (
        f"{len(values)} were read, {len(acknowledged)} acknowledged"
    )
    assert len(values) - len(acknowledged) in (0, disks.probe_count)


def check_nothing_is_lost(disks: Disks, topic: str, writer: Writer) -> None:
    """Broker 2 starts without the directory, before it can copy anything: it must not lead."""
    trio = disks.trio
    trio.cluster.pause(1)
    disks.start(disks.first)
    until(
        lambda: (
            trio.said(BROKER, f"{topic}-0", *NOT_HERE) or is_told(trio.cluster, topic, disks.first)
        ),
        what="broker 2 has begun the replica elsewhere, or says why it cannot",
        deadline_s=60,
    )
    move_controller(trio.cluster, at=trio.addresses[3])
    assert trio.leader(topic) != BROKER
    trio.cluster.resume(1)
    assert trio.wait_leader(topic, other_than=BROKER) == 1
    trio.wait_isr(topic, {1, BROKER})
    assert (disks.first / f"{topic}-0").exists(), "it was copied to the directory that is left"
    check_has_all(disks, topic, writer)
    trio.wait_equal(topic, [trio.log_directory(topic, 1), disks.first / f"{topic}-0"])


def test_a_directory_taken_out_costs_no_acknowledged_record(disks: Disks) -> None:
    topic, writer = disks.topic_in_second(1, BROKER)
    disks.stop()
    check_nothing_is_lost(disks, topic, writer)


def test_a_directory_that_failed_and_was_then_taken_out(disks: Disks) -> None:
    topic, writer = disks.topic_in_second(1, BROKER)
    disks.fail_second(topic)
    disks.trio.wait_isr(topic, {1})
    disks.stop()
    check_nothing_is_lost(disks, topic, writer)


@pytest.mark.parametrize("has_failed", [False, True], ids=["clean", "failed"])
def test_the_only_replica_waits_for_its_directory(disks: Disks, has_failed: bool) -> None:
    trio = disks.trio
    topic, writer = disks.topic_in_second(BROKER)
    away = disks.fail_second(topic) if has_failed else None
    for _ in range(2):
        disks.restart(disks.first)
        assert trio.said(BROKER, f"{topic}-0", *NOT_HERE)
        assert trio.leader(topic) == -1
        with pytest.raises((KafkaException, AssertionError)):
            read_all(trio.bootstrap, topic)
        assert not (disks.first / f"{topic}-0").exists()
    if away is not None:
        away.rename(disks.second)
    disks.restart(disks.first, disks.second)
    trio.wait_isr(topic, {BROKER})
    assert trio.leader(topic) == BROKER
    check_has_all(disks, topic, writer)


def test_an_only_replica_that_is_given_up_goes_on_empty(disks: Disks) -> None:
    """As docs/operations.md says: an operator makes its directory and asks for the election."""
    trio = disks.trio
    topic, _writer = disks.topic_in_second(BROKER)
    disks.restart(disks.first)
    disks.stop()
    (disks.first / f"{topic}-0").mkdir()
    disks.start(disks.first)
    assert trio.leader(topic) == -1
    where = TopicPartition(topic, 0)

    def elected() -> bool:
        # Refused until the broker has reported to the controller where the replica lies now.
        found = trio.admin.elect_leaders(ElectionType.UNCLEAN, [where]).result(20)
        return found[where] is None

    until(elected, what="the unclean election")
    again = Writer(trio.bootstrap, topic, acks="all")
    again.send(5)
    again.flush()
    assert (len(again.acknowledged), again.refused) == (5, [])
    check_read(trio.bootstrap, topic, again.acknowledged)


def test_a_topic_made_again_while_its_old_directory_is_failed(disks: Disks) -> None:
    trio = disks.trio
    topic, _writer = disks.topic_in_second(BROKER)
    away = disks.fail_second(topic)
    trio.admin.delete_topics([topic])[topic].result(20)
    until(
        lambda: topic not in trio.admin.list_topics(timeout=20).topics, what="the topic is deleted"
    )
    trio.create(topic, replicas=[BROKER])
    again = Writer(trio.bootstrap, topic, acks="all")
    again.send(5)
    again.flush()
    assert (len(again.acknowledged), again.refused) == (5, [])
    # The old disk comes back with the old topic's log: it is put aside.
    disks.stop()
    away.rename(disks.second)
    disks.start(disks.first, disks.second)
    trio.wait_isr(topic, {BROKER})
    check_read(trio.bootstrap, topic, again.acknowledged)
    assert len(list(disks.second.glob(f"{topic}-0.*-stray"))) == 1
