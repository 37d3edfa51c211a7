"""Replication with real processes: what was acknowledged is stored whichever broker is lost, and
the replicas hold the same bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from moldau.protocol.errors import ErrorCode
from moldau.testing import Cluster
from tests.kit import judging
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all
from tests.system.replication.three_brokers import QUICK, Trio


@pytest.fixture(scope="module")
def trio() -> Iterator[Trio]:
    """A cluster for this module; every test leaves its brokers running."""
    config = {**QUICK, "moldau.http.listener": "127.0.0.1:0"}
    with Cluster(brokers=3, controllers=3, config=config) as cluster:
        yield Trio(cluster)


@pytest.fixture
def topic(trio: Trio) -> str:
    """A fresh topic on all three brokers, led by broker 1."""
    return trio.create(f"t-{uuid.uuid4().hex}")


def acknowledged_and_read(trio: Trio, topic: str, writer: Writer) -> None:
    """What was acknowledged is stored once and in order, at the offset of its report."""
    values = read_all(trio.bootstrap, topic)
    assert not writer.refused, writer.refused[:3]
    with judging():
        assert len(values) == len(set(values)) == writer.sent_count
        assert [values[each] for each in writer.acknowledged.values()] == list(writer.acknowledged)
        assert values == sorted(values, key=lambda value: int(value.partition(b":")[0]))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_way_to_acknowledge_reaches_all_replicas(trio: Trio, topic: str, acks: str) -> None:
    writer = Writer(
        trio.bootstrap, topic, **{"acks": acks, "enable.idempotence": False, "linger.ms": 5}
    )
    writer.send(2_000)
    writer.flush()
    assert not writer.refused
    until(lambda: len(read_all(trio.bootstrap, topic)) == 2_000, what="all records to be visible")
    trio.wait_equal(topic)
    trio.wait_isr(topic, {1, 2, 3})


def test_the_leader_is_killed_while_records_come(trio: Trio, topic: str) -> None:
    writer = Writer(trio.bootstrap, topic, acks="all")
    writer.send(500)
    until(lambda: writer.poll() >= 100, what="the first acknowledgements")
    killed = trio.leader(topic)
    trio.cluster.kill(killed)
    try:
        for _ in range(20):
            writer.send(100)
            writer.poll()
        writer.flush()
        assert trio.wait_leader(topic, other_than=killed) != killed
        acknowledged_and_read(trio, topic, writer)
        until(lambda: killed not in trio.isr(topic), what="every broker knows of it")
    finally:
        trio.cluster.restart(killed)
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
    acknowledged_and_read(trio, topic, writer)


def test_a_follower_is_killed_and_catches_up(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    follower = next(each for each in (1, 2, 3) if each != leader)
    writer = Writer(trio.bootstrap, topic, acks="all")
    writer.send(500)
    writer.flush()
    trio.cluster.kill(follower)
    try:
        writer.send(500)
        writer.flush()
        trio.wait_isr(topic, {1, 2, 3} - {follower})
        writer.send(500)
        writer.flush()
    finally:
        trio.cluster.restart(follower)
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
    assert trio.leader(topic) == leader
    acknowledged_and_read(trio, topic, writer)


def test_a_paused_follower_leaves_the_isr_and_comes_back(trio: Trio, topic: str) -> None:
    leader = trio.leader(topic)
    follower = next(each for each in (1, 2, 3) if each != leader)
    writer = Writer(trio.bootstrap, topic, acks="all")
    trio.cluster.pause(follower)
    try:
        writer.send(100)
        writer.flush()
        trio.wait_isr(topic, {1, 2, 3} - {follower})
    finally:
        trio.cluster.resume(follower)
    # Nothing is written: it comes back without being asked for anything.
    trio.wait_isr(topic, {1, 2, 3})
    trio.wait_equal(topic)
    assert trio.leader(topic) == leader


def test_what_an_operator_sees_of_a_follower_that_lags(trio: Trio, topic: str) -> None:
    name = "kafka_server_replicamanager_underreplicatedpartitions"
    writer = Writer(trio.bootstrap, topic, **{"acks": "1", "enable.idempotence": False})
    writer.send(100)
    writer.flush()

    def states() -> dict[int, Any]:
        [partition] = trio.document(1, f"/api/v1/topics/{topic}")["partitions"]
        return {each["broker_id"]: each for each in partition["replica_states"]}

    def is_level(replica_id: int) -> bool:
        return bool(states()[replica_id]["log_end_offset"] == writer.sent_count)

    until(lambda: all(map(is_level, (1, 2, 3))), what="all replicas to be level")
    assert all(each["lag"] == 0 and each["in_sync"] for each in states().values())
    [elsewhere] = trio.document(2, f"/api/v1/topics/{topic}")["partitions"]
    assert "replica_states" not in elsewhere, "only the leader knows"
    until(lambda: trio.metrics(1)[name] == 0, what="nothing to be under-replicated")
    before = trio.metrics(1)
    trio.cluster.pause(3)
    try:
        writer.send(50)
        writer.flush()
        trio.wait_isr(topic, {1, 2})
        until(lambda: not states()[3]["in_sync"], what="the leader to have heard of it")
        assert (states()[3]["log_end_offset"], states()[3]["lag"]) == (100, 50)
        assert (states()[2]["log_end_offset"], states()[2]["in_sync"]) == (150, True)
        assert trio.metrics(1)[name] > 0
    finally:
        trio.cluster.resume(3)
    trio.wait_isr(topic, {1, 2, 3})
    until(lambda: trio.metrics(1)[name] == 0, what="nothing to be under-replicated")
    after = trio.metrics(1)
    for name in (
        "kafka_server_brokertopicmetrics_replicationbytesout_total",
        "kafka_server_replicamanager_isrexpands_total",
    ):
        assert after[name] > before[name]


def test_too_few_in_sync(trio: Trio) -> None:
    topic = trio.create(
        f"t-{uuid.uuid4().hex}", replicas=(1, 2, 3), config={"min.insync.replicas": "3"}
    )
    assert trio.put(topic, acks=-1).error_code == ErrorCode.NONE
    trio.cluster.kill(3)
    try:
        trio.wait_isr(topic, {1, 2})
        until(
            lambda: trio.put(topic, acks=-1).error_code == ErrorCode.NOT_ENOUGH_REPLICAS,
            what="acks=all to be refused",
        )
        assert trio.put(topic, acks=1).error_code == ErrorCode.NONE
        # Consumers read on, up to what all of three had.
        assert len(read_all(trio.bootstrap, topic)) >= 1
    finally:
        trio.cluster.restart(3)
    trio.wait_isr(topic, {1, 2, 3})
    until(
        lambda: trio.put(topic, acks=-1).error_code == ErrorCode.NONE,
        what="acks=all to be taken again",
    )
    trio.wait_equal(topic)


def test_a_controlled_shutdown_costs_producers_nothing(trio: Trio, topic: str) -> None:
    writer = Writer(trio.bootstrap, topic, acks="all")
    writer.send(300)
    until(lambda: writer.poll() >= 100, what="the first acknowledgements")
    leader = trio.leader(topic)
    writer.send(300)
    assert trio.cluster.stop(leader) == 0
    try:
        assert trio.wait_leader(topic, other_than=leader) != leader
        trio.wait_isr(topic, {1, 2, 3} - {leader})
        assert not trio.said(leader, "stopping anyway")
        writer.send(300)
        writer.flush()
    finally:
        trio.cluster.restart(leader)
    trio.wait_isr(topic, {1, 2, 3})
    acknowledged_and_read(trio, topic, writer)
    trio.wait_equal(topic)


def test_the_end_of_a_log_is_listed_while_a_transaction_is_open(trio: Trio, topic: str) -> None:
    """A new leader knows the last stable offset once it knows what is committed, however long the
    transaction goes on."""
    producer = Producer(
        {"bootstrap.servers": trio.bootstrap, "transactional.id": topic, "log_level": 0}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(10):
        producer.produce(topic, b"%d" % number)
    producer.flush(60)

    def latest(isolation_level: IsolationLevel) -> int | None:
        asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
        [found] = trio.admin.list_offsets(
            asked, isolation_level=isolation_level, request_timeout=20
        ).values()
        try:
            return int(found.result(30).offset)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.OFFSET_NOT_AVAILABLE:
                raise
            return None

    leader = trio.leader(topic)
    assert trio.cluster.stop(leader) == 0
    try:
        trio.wait_leader(topic, other_than=leader)
        until(
            lambda: latest(IsolationLevel.READ_UNCOMMITTED) == 10,
            what="the new leader to know what is committed",
        )
        assert latest(IsolationLevel.READ_COMMITTED) == 0
        producer.commit_transaction(60)
        until(
            lambda: latest(IsolationLevel.READ_COMMITTED) == 11,
            what="the records and their marker to be stable",
        )
    finally:
        trio.cluster.restart(leader)
    trio.wait_isr(topic, {1, 2, 3})


def test_deleted_records_are_gone_from_all_replicas(trio: Trio) -> None:
    topic = trio.create(f"t-{uuid.uuid4().hex}", config={"segment.bytes": "1048576"})
    writer = Writer(trio.bootstrap, topic, acks="all")
    for _ in range(4):
        writer.send(1_000, size_bytes=1_000)
        writer.flush()
    where = TopicPartition(topic, 0, 3_500)
    [deleted] = trio.admin.delete_records([where]).values()
    assert deleted.result(30).low_watermark == 3_500
    earliest = trio.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()})
    [found] = earliest.values()
    assert found.result(20).offset == 3_500
    assert len(read_all(trio.bootstrap, topic)) == 500
    for broker_id in (1, 2, 3):
        directory = trio.log_directory(topic, broker_id)
        until(
            lambda directory=directory: not (directory / "00000000000000000000.log").exists(),
            what=f"the first segment to leave {directory}",
        )
    # The next leader begins there, too.
    leader = trio.leader(topic)
    assert trio.cluster.stop(leader) == 0
    try:
        trio.wait_leader(topic, other_than=leader)
        assert len(read_all(trio.bootstrap, topic)) == 500
    finally:
        trio.cluster.restart(leader)
    trio.wait_isr(topic, {1, 2, 3})
