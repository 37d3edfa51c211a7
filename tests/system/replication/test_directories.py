"""Replicas on damaged files and failed directories: the others go on, and nothing is lost."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Cluster, NodeFailed
from tests.kit.waiting import until
from tests.system.processes import Writer, check_read
from tests.system.replication.three_brokers import QUICK, Trio
from tests.system.replication.two_directories import format_directories, set_directories

BROKER = 2


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Cluster(brokers=3, controllers=3, config=QUICK) as cluster:
        yield Trio(cluster)


def fresh(trio: Trio, **config: str) -> str:
    """A topic that broker 2 leads."""
    return trio.create(f"t-{uuid.uuid4().hex}", replicas=(2, 1, 3), config=config)


def fill(trio: Trio, topic: str) -> Writer:
    writer = Writer(trio.bootstrap, topic, acks="all")
    for _ in range(3):
        writer.send(300)
        writer.flush()
    return writer


def garble(path: Path) -> None:
    """Change a byte in the second batch of a segment."""
    data = bytearray(path.read_bytes())
    first_batch_bytes = int.from_bytes(data[8:12], "big") + 12
    assert first_batch_bytes + 200 < len(data)
    data[first_batch_bytes + 200] ^= 0xFF
    path.write_bytes(data)


def test_a_damaged_follower_is_replicated_from_its_leader_again(trio: Trio) -> None:
    topic = fresh(trio)
    writer = fill(trio, topic)
    # An orderly stop, so that all of it lies below the recovery point, then an unclean start.
    assert trio.cluster.stop(BROKER) == 0
    trio.cluster.restart(BROKER)
    trio.wait_isr(topic, {1, 2, 3})
    trio.cluster.kill(BROKER)
    trio.wait_leader(topic, other_than=BROKER)
    directory = trio.log_directory(topic, BROKER)
    garble(directory / "00000000000000000000.log")
    trio.cluster.restart(BROKER)
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
    assert trio.said(BROKER, f"{topic}-0", "damaged and put aside", "replicated anew")
    assert len(list(directory.parent.glob(f"{topic}-0.*-stray"))) == 1
    check_read(trio.bootstrap, topic, writer.acknowledged)
    # It may lead again, from what it copied.
    for other in (1, 3):
        trio.cluster.kill(other)
    trio.cluster.restart(1)
    trio.cluster.restart(3)
    trio.wait_isr(topic, {1, 2, 3})
    check_read(trio.bootstrap, topic, writer.acknowledged)


def test_damage_found_after_a_clean_shutdown(trio: Trio) -> None:
    """The broker does not look at the bytes at such a start: they are found out when they are
    read.
    """
    topic = fresh(trio)
    writer = fill(trio, topic)
    assert trio.cluster.stop(BROKER) == 0
    directory = trio.log_directory(topic, BROKER)
    garble(directory / "00000000000000000000.log")
    trio.cluster.restart(BROKER)
    trio.wait_isr(topic, {1, 2, 3})
    # It leads, and a consumer comes upon the damage: the next leader serves what was written.
    where = TopicPartition(topic, 0)
    trio.admin.elect_leaders(ElectionType.PREFERRED, [where]).result(20)
    trio.wait_leader(topic, other_than=1)
    assert trio.leader(topic) == BROKER
    check_read(trio.bootstrap, topic, writer.acknowledged)
    assert trio.wait_leader(topic, other_than=BROKER) != BROKER
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
    assert trio.said(BROKER, f"{topic}-0", "damaged and put aside", "replicated anew")


def with_second_directory(trio: Trio, path: Path) -> None:
    """Give broker 2 another log directory, as an operator does."""
    assert trio.cluster.stop(BROKER) == 0
    config = trio.cluster.node(BROKER).config_path
    set_directories(config, trio.cluster.data_directory(BROKER), path)
    trio.cluster.restart(BROKER)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """Where the second directory of broker 2 will be."""
    return tmp_path / "second"


def test_a_failed_directory_costs_its_own_replicas_alone(trio: Trio, second: Path) -> None:
    with_second_directory(trio, second)
    first = trio.cluster.data_directory(BROKER)
    topics = [fresh(trio) for _ in range(4)]
    writers = {topic: fill(trio, topic) for topic in topics}
    in_second = [topic for topic in topics if (second / f"{topic}-0").exists()]
    in_first = [topic for topic in topics if (first / f"{topic}-0").exists()]
    assert len(in_second) == len(in_first) == 2, "partitions are spread over the directories"
    away = second.with_name("away")
    second.rename(away)  # as a disk that is unmounted
    for topic in in_second:
        # Open files go on being written: what notices is the next checkpoint of what has changed.
        writers[topic].send(1)
        writers[topic].flush()
    for topic in in_second:
        trio.wait_isr(topic, {1, 3})
        assert trio.leader(topic) != BROKER
    for topic in topics:
        writers[topic].send(100)
        writers[topic].flush()
    for topic in in_first:
        trio.wait_isr(topic, {1, 2, 3})
        assert trio.leader(topic) == BROKER
    for topic, writer in writers.items():
        assert not writer.refused
        check_read(trio.bootstrap, topic, writer.acknowledged)
    # The disk is repaired, the broker started again: its replicas come back.
    assert trio.cluster.stop(BROKER) == 0
    away.rename(second)
    trio.cluster.restart(BROKER)
    for topic in topics:
        trio.wait_isr(topic, {1, 2, 3})
        place = second if topic in in_second else first
        replicas = [place / f"{topic}-0", *(trio.log_directory(topic, each) for each in (1, 3))]
        trio.wait_equal(topic, replicas)


def test_a_directory_that_is_missing_at_the_start(trio: Trio, second: Path) -> None:
    """Its replicas are not begun again elsewhere: they may come back with it."""
    with_second_directory(trio, second)
    topics = [fresh(trio) for _ in range(2)]
    for topic in topics:
        fill(trio, topic)
    [missing] = [topic for topic in topics if (second / f"{topic}-0").exists()]
    [present] = [topic for topic in topics if topic != missing]
    assert trio.cluster.stop(BROKER) == 0
    away = second.with_name("away")
    second.rename(away)
    trio.cluster.restart(BROKER)
    trio.wait_isr(present, {1, 2, 3})
    trio.wait_isr(missing, {1, 3})
    assert not (trio.cluster.data_directory(BROKER) / f"{missing}-0").exists()
    assert trio.cluster.stop(BROKER) == 0
    away.rename(second)
    trio.cluster.restart(BROKER)
    trio.wait_isr(missing, {1, 2, 3})


def test_without_the_directory_of_its_metadata_log_a_node_stops(tmp_path: Path) -> None:
    """Also when the log's open files could still be written (docs/operations.md)."""
    first, second = tmp_path / "first", tmp_path / "second"
    with Cluster(config={"log.dirs": f"{first},{second}"}) as cluster:
        first.rename(tmp_path / "away")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_server, "log_level": 0})
        admin.create_topics([NewTopic("t", 1)])  # perhaps not answered
        node = cluster.node()
        until(lambda: not node.running, what="the node stops")
        assert node.exit_code == 1
        assert f"the metadata log's directory {first} has failed" in node.log_tail()


def test_a_replaced_disk_is_filled_again(trio: Trio, second: Path) -> None:
    with_second_directory(trio, second)
    topics = [fresh(trio) for _ in range(2)]
    writers = {topic: fill(trio, topic) for topic in topics}
    [topic] = [each for each in topics if (second / f"{each}-0").exists()]
    trio.cluster.kill(BROKER)
    shutil.rmtree(second)
    second.mkdir()
    with pytest.raises(NodeFailed, match="not formatted"):
        trio.cluster.restart(BROKER)
    format_directories(trio.cluster.node(BROKER).config_path)
    trio.cluster.restart(BROKER)
    for each, writer in writers.items():
        trio.wait_isr(each, {1, 2, 3})
        check_read(trio.bootstrap, each, writer.acknowledged)
    places = (second, trio.cluster.data_directory(BROKER))
    [place] = [each / f"{topic}-0" for each in places if (each / f"{topic}-0").exists()]
    trio.wait_equal(topic, [place, *(trio.log_directory(topic, each) for each in (1, 3))])
