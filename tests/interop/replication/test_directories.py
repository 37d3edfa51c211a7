"""Directories of three replicated brokers, ours and Apache Kafka's in turn, contents equal.

Ours write (several leader epochs, idempotent producers, every codec, several segments, deleted
records), Kafka opens each replica, goes on in the same partition and in one of its own, and ours
open what Kafka left. Every replica is read by a consumer in its own rack.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from moldau.client import ProducerState
from moldau.local.layout import ClusterLayout, PortHolder
from moldau.protocol.types import TopicPartition
from tests.interop.drivers import DRIVERS
from tests.interop.java.tools import JavaTools, missing
from tests.interop.replication.kafka_nodes import KafkaNodes
from tests.interop.replication.test_nearest_replica import SELECTOR
from tests.interop.replication.three_brokers import CONFIG, DEADLINE_S, ThreeBrokers
from tests.interop.samples import CODECS, sample_records
from tests.kit import judging
from tests.kit.waiting import until
from tests.system.processes import watermarks

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

HOST = "127.0.0.1"
OURS, THEIRS = "written-by-us", "written-by-kafka"
RACKS = {1: "rack-1", 2: "rack-2", 3: "rack-3"}
ASSIGNMENT = [[1, 2, 3]]
TOPIC_CONFIG = {"segment.bytes": "1048576", "index.interval.bytes": "512"}
DELETED_BEFORE = 25
READ_S = 30.0


class Read(NamedTuple):
    """One record as a consumer gets it."""

    offset: int
    leader_epoch: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Writer:
    """One idempotent producer that lives through leader changes."""

    def __init__(self, bootstrap: str) -> None:
        self._failures: list[Any] = []
        self._number = 0
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def write(self, topic: str, count: int) -> None:
        for _ in range(count):
            self._producer.produce(
                topic, b"steady-%d" % self._number, b"steady", partition=0, on_delivery=self._told
            )
            self._number += 1
        assert self._producer.flush(DEADLINE_S) == 0
        assert self._failures == []

    def _told(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(error)


def write_all_codecs(bootstrap: str, topic: str) -> None:
    for codec in CODECS:
        DRIVERS[0].write(
            bootstrap, topic, sample_records(), codec=codec, **{"enable.idempotence": True}
        )


def read(bootstrap: str, topic: str, broker_id: int) -> list[Read]:
    """Everything that the broker's replica serves, from its start to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "client.rack": RACKS[broker_id],
            "log_level": 0,
        }
    )
    try:
        first = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
        consumer.assign([first])
        found: list[Read] = []
        while True:
            message = consumer.poll(READ_S)
            assert message is not None, "neither a record nor the end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(
                Read(
                    message.offset(),
                    message.leader_epoch(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                    message.timestamp()[1],
                )
            )
    finally:
        consumer.close()


def read_each_replica(bootstrap: str, topic: str) -> list[Read]:
    """What all three serve. They must agree, once each has heard what is committed."""
    longest = read(bootstrap, topic, 1)
    for broker_id in RACKS:
        replica = until(
            lambda broker_id=broker_id: same(read(bootstrap, topic, broker_id), longest),  # type: ignore[misc]
            what=f"{topic}-0 of broker {broker_id} as that of broker 1",
            deadline_s=DEADLINE_S,
        )
        assert replica
    return longest


def same(one: list[Read], other: list[Read]) -> bool:
    """Whether both are equal; a difference within what both have is final."""
    common = min(len(one), len(other))
    assert one[:common] == other[:common]
    return len(one) == len(other)


def log_bytes(home: Path, topic: str) -> dict[int, bytes]:
    """Each replica's log, all segments in order."""
    return {
        broker_id: b"".join(
            segment.read_bytes()
            for segment in sorted((home / f"broker-{broker_id}/data/{topic}-0").glob("*.log"))
        )
        for broker_id in RACKS
    }


def epochs(home: Path, topic: str, end_offset: int) -> dict[int, list[tuple[int, int]]]:
    """Each replica's leader-epoch-checkpoint: epochs and first offsets, but for epochs without
    records, of which only those know that led in them.
    """
    found = {}
    for broker_id in RACKS:
        directory = home / f"broker-{broker_id}/data/{topic}-0"
        _, _, *lines = (directory / "leader-epoch-checkpoint").read_text().splitlines()
        entries = [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]
        found[broker_id] = [entry for entry in entries if entry[1] < end_offset]
    return found


@judging()
def assert_replicas_equal(home: Path, topic: str, end_offset: int) -> int:
    """Byte by byte; returns how many leader epochs have records."""
    one, *others = log_bytes(home, topic).values()
    assert one
    assert all(other == one for other in others)
    history, *histories = epochs(home, topic, end_offset).values()
    assert all(other == history for other in histories), histories
    return len(history)


def wait_for_leader(admin: AdminClient, topic: str, wanted: Callable[[Any], bool]) -> None:
    def holds() -> bool:
        partition = admin.list_topics(topic, timeout=READ_S).topics[topic].partitions.get(0)
        return partition is not None and wanted(partition)

    until(holds, what=f"{topic}-0 as wanted", deadline_s=DEADLINE_S)


def wait_in_sync(admin: AdminClient, topic: str) -> None:
    wait_for_leader(admin, topic, lambda partition: sorted(partition.isrs) == sorted(RACKS))


def open_ours(home: Path) -> ThreeBrokers:
    return ThreeBrokers(
        {"replica.selector.class": SELECTOR},
        broker_config={broker_id: {"broker.rack": rack} for broker_id, rack in RACKS.items()},
        directory=home,
    )


def producers(ours: ThreeBrokers, topic: str) -> set[tuple[int, int, int]]:
    """Id, epoch and last sequence of each producer that the leader remembers."""

    def states() -> list[ProducerState]:
        return ours.ask(lambda admin: admin.describe_producers(TopicPartition(topic, 0)))

    return {(state.producer_id, state.producer_epoch, state.last_sequence) for state in states()}


def write_ours(home: Path) -> tuple[list[Read], str]:
    """A partition with a past; what it holds, and the bootstrap servers."""
    with open_ours(home) as ours:
        ours.create(OURS, ASSIGNMENT, TOPIC_CONFIG)
        writer = Writer(ours.bootstrap)
        for move in (ours.kill_leader, ours.shut_leader_down, ours.reassign):
            write_all_codecs(ours.bootstrap, OURS)
            writer.write(OURS, 10)
            move(OURS, lambda: writer.write(OURS, 10))
        before = confluent_kafka.TopicPartition(OURS, 0, DELETED_BEFORE)
        ours.admin.delete_records([before])[before].result(DEADLINE_S)
        ours.wait_in_sync(OURS)
        assert len(producers(ours, OURS)) == 1 + 3 * len(CODECS)
        records = read_each_replica(ours.bootstrap, OURS)
        for broker_id in RACKS:
            assert ours.bytes_out(broker_id, OURS) > 0, "each was read itself"
        bootstrap = ours.bootstrap
    assert records[0].offset == DELETED_BEFORE
    assert len(records) > 3 * len(CODECS) * len(sample_records())
    assert assert_replicas_equal(home, OURS, records[-1].offset + 1) >= 4
    return records, bootstrap


def go_on_in_kafka(home: Path, bootstrap: str, expected: list[Read]) -> dict[str, list[Read]]:
    """Kafka serves what we wrote, goes on, and writes its own partition."""
    with KafkaNodes(home, bootstrap) as kafka:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        wait_in_sync(admin, OURS)
        assert read_each_replica(bootstrap, OURS) == expected
        new = confluent_kafka.admin.NewTopic(
            THEIRS, 1, replica_assignment=ASSIGNMENT, config=TOPIC_CONFIG
        )
        admin.create_topics([new])[THEIRS].result(DEADLINE_S)
        wait_in_sync(admin, THEIRS)
        writer = Writer(bootstrap)
        for _ in range(2):
            write_all_codecs(bootstrap, THEIRS)
            writer.write(THEIRS, 10)
            writer.write(OURS, 10)
            leader_id = (
                admin.list_topics(THEIRS, timeout=READ_S).topics[THEIRS].partitions[0].leader
            )
            kafka.restart(leader_id)
            wait_for_leader(admin, THEIRS, lambda found, old=leader_id: found.leader != old)  # type: ignore[misc]
            writer.write(THEIRS, 10)
            for topic in (OURS, THEIRS):
                wait_in_sync(admin, topic)
        held = {topic: read_each_replica(bootstrap, topic) for topic in (OURS, THEIRS)}
        kafka.stop()
    assert held[OURS][: len(expected)] == expected
    assert len(held[OURS]) == len(expected) + 20
    assert_replicas_equal(home, OURS, held[OURS][-1].offset + 1)
    assert assert_replicas_equal(home, THEIRS, held[THEIRS][-1].offset + 1) >= 2
    return held


def log_end_offset(bootstrap: str, topic: str) -> int:
    """Where the next record will be, behind markers too."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        partition = confluent_kafka.TopicPartition(topic, 0)
        _low, high = watermarks(consumer, partition)
        return int(high)
    finally:
        consumer.close()


def go_on_in_ours(home: Path, held: dict[str, list[Read]]) -> None:
    """Ours serve what Kafka left, and go on."""
    ends = {}
    with open_ours(home) as ours:
        writer = Writer(ours.bootstrap)
        for topic, records in held.items():
            ours.wait_in_sync(topic)
            assert read_each_replica(ours.bootstrap, topic) == records
            assert producers(ours, topic)
            end_offset = log_end_offset(ours.bootstrap, topic)
            assert end_offset > records[-1].offset, "markers of transactions may lie behind it"
            writer.write(topic, 10)
            again = read_each_replica(ours.bootstrap, topic)
            assert again[: len(records)] == records
            assert [each.offset for each in again[len(records) :]] == list(
                range(end_offset, end_offset + 10)
            )
            ends[topic] = again[-1].offset + 1
    for topic, end_offset in ends.items():
        assert_replicas_equal(home, topic, end_offset)


def test_directories_go_to_kafka_and_come_back(tmp_path: Path) -> None:
    expected, bootstrap = write_ours(tmp_path)
    go_on_in_ours(tmp_path, go_on_in_kafka(tmp_path, bootstrap, expected))


def format_by_kafka(home: Path) -> str:
    """Three brokers and a controller, formatted by kafka-storage; the bootstrap servers."""
    holder = PortHolder(HOST)
    layout = ClusterLayout.plan(
        home,
        controllers=1,
        brokers=len(RACKS),
        host=HOST,
        broker_port=lambda: holder.take()[0],
        controller_port=lambda: holder.take()[0],
        config={
            **CONFIG,
            "replica.selector.class": SELECTOR,
            "transaction.state.log.num.partitions": "1",
        },
    )
    holder.close()
    layout.write_configs()
    for node in layout.brokers:
        with node.config_path.open("a") as file:
            file.write(f"broker.rack={RACKS[node.node_id]}\n")
    with (home / "jvm.log").open("wb") as errors, JavaTools(errors) as java:
        cluster_id = java.check("kafka-storage", "random-uuid").output.strip()
        for node in layout.nodes:
            kind = "--standalone" if node in layout.controllers else "--no-initial-controllers"
            java.check("kafka-storage", "format", kind, "-t", cluster_id, "-c", node.config_path)
    return layout.bootstrap_server


def write_transactions(bootstrap: str) -> None:
    """Committed and aborted ones."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0}
    )
    producer.init_transactions(DEADLINE_S)
    for number in range(6):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(THEIRS, b"transaction %d" % number, partition=0)
        if number % 2:
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)


def test_a_whole_cluster_of_kafkas_is_taken_over(tmp_path: Path) -> None:
    """Its metadata log, its replicas after an unclean end of their leader, its transactions."""
    bootstrap = format_by_kafka(tmp_path)
    with KafkaNodes(tmp_path, bootstrap) as kafka:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        new = confluent_kafka.admin.NewTopic(
            THEIRS, 1, replica_assignment=ASSIGNMENT, config=TOPIC_CONFIG
        )
        admin.create_topics([new])[THEIRS].result(DEADLINE_S)
        wait_in_sync(admin, THEIRS)
        writer = Writer(bootstrap)
        writer.write(THEIRS, 10)
        kafka.kill(1)
        wait_for_leader(admin, THEIRS, lambda found: found.leader in (2, 3))
        write_all_codecs(bootstrap, THEIRS)
        writer.write(THEIRS, 10)
        kafka.start(1)
        wait_in_sync(admin, THEIRS)
        write_transactions(bootstrap)
        writer.write(THEIRS, 10)
        held = read_each_replica(bootstrap, THEIRS)
        kafka.stop()
    values = [each.value for each in held]
    assert values.count(b"transaction 0") == values.count(b"transaction 4") == 5
    assert b"transaction 1" not in values
    assert assert_replicas_equal(tmp_path, THEIRS, held[-1].offset + 1) >= 2
    go_on_in_ours(tmp_path, {THEIRS: held})
