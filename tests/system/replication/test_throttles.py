"""A partition moves to a third broker under replication quotas, its leader's or the newcomer's."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from moldau.client import ConfigChange, ConfigOperation, ConfigResource, ConfigResourceType
from moldau.protocol.types import TopicPartition
from tests.interop.replication.three_brokers import DEADLINE_S, ThreeBrokers
from tests.kit.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

LEADER_ID, FOLLOWER_ID, NEW_ID = 1, 2, 3
FETCH_BYTES = 100_000
RATE = 400_000
RECORD_BYTES = 10_000
RECORD_COUNT = 250


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    # Small fetches, so that the quota has something to decide.
    with ThreeBrokers({"replica.fetch.max.bytes": str(FETCH_BYTES)}) as running:
        yield running


def write(brokers: ThreeBrokers, topic: str, count: int) -> None:
    """Acknowledged by all in sync."""
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": brokers.bootstrap, "batch.size": FETCH_BYTES // 2}
    )
    for _ in range(count):
        producer.produce(
            topic,
            bytes(RECORD_BYTES),
            partition=0,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failures == []


def set_config(
    brokers: ThreeBrokers, kind: ConfigResourceType, name: str, key: str, value: str | None
) -> None:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    change = ConfigChange(key, value, operation)
    brokers.ask(lambda admin: admin.alter_configs({ConfigResource(kind, name): [change]}))


def copied_bytes(brokers: ThreeBrokers, topic: str) -> int:
    """What the newcomer has of the partition."""
    directory = brokers.cluster.data_directory(NEW_ID) / f"{topic}-0"
    return sum(segment.stat().st_size for segment in directory.glob("*.log"))


def byte_rate(brokers: ThreeBrokers, side: str) -> float:
    broker_id = LEADER_ID if side == "leader" else NEW_ID
    return brokers.metrics(broker_id)[f"kafka_server_{side}replication_byte_rate"]


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_move_under_a_quota(brokers: ThreeBrokers, side: str) -> None:
    topic = f"moves-{side}"
    throttled_id = LEADER_ID if side == "leader" else NEW_ID
    rate_key = f"{side}.replication.throttled.rate"
    replicas_key = f"{side}.replication.throttled.replicas"
    brokers.create(topic, [[LEADER_ID, FOLLOWER_ID]])
    write(brokers, topic, RECORD_COUNT)

    def limit(rate: int | None) -> None:
        value = None if rate is None else str(rate)
        set_config(brokers, ConfigResourceType.BROKER, str(throttled_id), rate_key, value)

    # At a rate of zero the newcomer gets nothing, which is said; those in sync go on.
    limit(0)
    set_config(brokers, ConfigResourceType.TOPIC, topic, replicas_key, f"0:{throttled_id}")
    log = brokers.cluster.node(throttled_id).log_path
    warning = f"{rate_key}=0: replicas in {replicas_key} that are not in sync get no records"
    until(lambda: warning in log.read_text(), what="the warning of a standstill")
    brokers.ask(
        lambda admin: admin.alter_partition_reassignments(
            {TopicPartition(topic, 0): [LEADER_ID, FOLLOWER_ID, NEW_ID]}
        )
    )
    directory = brokers.cluster.data_directory(NEW_ID) / f"{topic}-0"
    until(directory.exists, what="the newcomer has begun")
    for _ in range(10):
        write(brokers, topic, 5)
        assert copied_bytes(brokers, topic) == 0
    assert set(brokers.described(topic)[0].isr) == {LEADER_ID, FOLLOWER_ID}
    assert log.read_text().count(warning) == 1

    # At another rate it arrives, and is never faster than one fetch beyond that rate.
    limit(RATE)
    rates = [byte_rate(brokers, side)]

    def has_arrived() -> bool:
        rates.append(byte_rate(brokers, side))
        return set(brokers.described(topic)[0].isr) == {LEADER_ID, FOLLOWER_ID, NEW_ID}

    until(has_arrived, what="the newcomer in sync", deadline_s=DEADLINE_S)
    assert 0 < max(rates) <= RATE + 2 * FETCH_BYTES
    assert copied_bytes(brokers, topic) > (RECORD_COUNT + 50) * RECORD_BYTES

    # In sync it is not held back any more, whatever the rate.
    limit(0)
    write(brokers, topic, 50)
    limit(None)
    set_config(brokers, ConfigResourceType.TOPIC, topic, replicas_key, None)
