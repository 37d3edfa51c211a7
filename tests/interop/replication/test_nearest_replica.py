"""Consumers with a rack read from the follower there: what each broker has sent says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.interop.java.tools import missing
from tests.interop.replication.clients import (
    ConfluentWork,
    KafkaPythonWork,
    Work,
)
from tests.interop.replication.java_work import JavaWork
from tests.interop.replication.three_brokers import DEADLINE_S, ThreeBrokers
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(600),
]

LEADER_ID, NEAR_ID, FAR_ID = 1, 2, 3
RACKS = {LEADER_ID: "west", NEAR_ID: "east", FAR_ID: "north"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORD_COUNT = 200
VALUE_PADDING = 1_000


@pytest.fixture(scope="module")
def brokers() -> Iterator[ThreeBrokers]:
    with ThreeBrokers(
        {"replica.selector.class": SELECTOR},
        broker_config={broker_id: {"broker.rack": rack} for broker_id, rack in RACKS.items()},
    ) as running:
        yield running


@pytest.fixture
def topic(brokers: ThreeBrokers, request: pytest.FixtureRequest) -> str:
    """One partition, led from another rack than the consumers', with RECORD_COUNT records."""
    name = "near-" + "".join(each if each.isalnum() else "-" for each in request.node.name)
    brokers.create(name, [[LEADER_ID, NEAR_ID, FAR_ID]])
    write(brokers, name, 0)
    return name


def write(brokers: ThreeBrokers, topic: str, first: int) -> None:
    """Numbers, written out long enough to be seen in the figures."""
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(first, first + RECORD_COUNT):
        producer.produce(
            topic,
            b"%0*d" % (VALUE_PADDING, number),
            partition=0,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert failures == []


def check_reads_nearby(brokers: ThreeBrokers, topic: str, work: Work) -> None:
    """All records, and most of what is written later, come from the follower in the rack."""
    with work:
        work.wait_read({0: RECORD_COUNT})
        write(brokers, topic, RECORD_COUNT)
        work.wait_read({0: 2 * RECORD_COUNT})
    assert not work.failures, work.failures
    assert work.read[0] == [(number, number) for number in range(2 * RECORD_COUNT)]
    sent = {broker_id: brokers.bytes_out(broker_id, topic) for broker_id in RACKS}
    assert sent[NEAR_ID] > 2 * RECORD_COUNT * VALUE_PADDING, sent
    assert sent[LEADER_ID] == sent[FAR_ID] == 0, sent


@pytest.mark.parametrize("kind", [ConfluentWork, KafkaPythonWork])
def test_python_clients_read_from_their_rack(
    brokers: ThreeBrokers, topic: str, kind: type[Work]
) -> None:
    work = kind(brokers.bootstrap, topic, 1, rack=RACKS[NEAR_ID], is_writing=False)
    check_reads_nearby(brokers, topic, work)


@pytest.mark.java
def test_the_java_client_reads_from_its_rack(
    brokers: ThreeBrokers, topic: str, tmp_path: Path
) -> None:
    if missing():
        pytest.skip(missing())
    check_reads_nearby(
        brokers,
        topic,
        JavaWork(
            brokers.bootstrap, topic, 1, rack=RACKS[NEAR_ID], is_writing=False,
            log_path=tmp_path / "java.log",
        ),
    )  # fmt: skip


def test_a_consumer_of_another_rack_reads_from_the_leader(
    brokers: ThreeBrokers, topic: str
) -> None:
    with ConfluentWork(brokers.bootstrap, topic, 1, rack="south", is_writing=False) as work:
        work.wait_read({0: RECORD_COUNT})
    assert brokers.bytes_out(LEADER_ID, topic) > RECORD_COUNT * VALUE_PADDING
    assert brokers.bytes_out(NEAR_ID, topic) == brokers.bytes_out(FAR_ID, topic) == 0


def test_the_nearest_replica_dies_and_the_consumer_reads_on(
    brokers: ThreeBrokers, topic: str
) -> None:
    work = ConfluentWork(brokers.bootstrap, topic, 1, rack=RACKS[NEAR_ID], is_writing=False)
    with work:
        work.wait_read({0: RECORD_COUNT})
        brokers.cluster.kill(NEAR_ID)
        try:
            write(brokers, topic, RECORD_COUNT)
            work.wait_read({0: 2 * RECORD_COUNT})
        finally:
            brokers.cluster.restart(NEAR_ID)
        brokers.wait_in_sync(topic)
    assert work.read[0] == [(number, number) for number in range(2 * RECORD_COUNT)]
    until(
        lambda: brokers.bytes_out(LEADER_ID, topic) > RECORD_COUNT * VALUE_PADDING,
        what="the leader's figures",
    )
