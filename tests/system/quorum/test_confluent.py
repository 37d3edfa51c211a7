"""What an unmodified client sees when the active controller is killed."""

from __future__ import annotations

import concurrent.futures

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Cluster
from tests.system.quorum.conftest import quorum, wait_for_topics, wait_until_caught_up

pytestmark = pytest.mark.timeout(300)

KILLS = 5
PARTITIONS = 6
RECORD_COUNT = 60
ANSWER_S = 30.0


def create(admin: AdminClient, name: str, factor: int) -> concurrent.futures.Future[None]:
    request = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=factor)]
    return admin.create_topics(request, request_timeout=ANSWER_S)[name]


def end_offsets(cluster: Cluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_server, "group.id": "none"})
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWER_S)[1]
            for number in range(PARTITIONS)
        )
    finally:
        consumer.close()


def test_topics_and_records_across_kills_of_the_active_controller(many: Cluster):
    """A creation that was in flight has happened or not; the next one succeeds."""
    admin = AdminClient({"bootstrap.servers": many.bootstrap_server})
    create(admin, "before", 1).result(ANSWER_S)
    create(admin, "metadata-only", 3).result(ANSWER_S)
    described = admin.list_topics("metadata-only", timeout=ANSWER_S).topics["metadata-only"]
    assert {len(each.replicas) for each in described.partitions.values()} == {3}
    assert {each.leader for each in described.partitions.values()} == {1, 2, 3}

    acknowledged, refused = ["before", "metadata-only"], []
    for number in range(KILLS):
        active = many.active_controller_id()
        in_flight = create(admin, f"in-flight-{number}", 1)
        many.kill(active)
        create(admin, f"next-{number}", 1).result(ANSWER_S)
        acknowledged.append(f"next-{number}")
        try:
            in_flight.result(ANSWER_S)
            acknowledged.append(f"in-flight-{number}")
        except KafkaException as error:
            refused.append(f"in-flight-{number}: {error}")
        many.restart(active)
        wait_until_caught_up(many, active)
    # Kafka's forwarding sends again what got no answer: it may find what it has created itself.
    assert all("exists" in reason or "ALREADY" in reason for reason in refused), refused
    wait_for_topics(many, *acknowledged)
    assert quorum(many).leader_epoch > KILLS

    producer = Producer({"bootstrap.servers": many.bootstrap_server, "enable.idempotence": True})
    for number in range(RECORD_COUNT):
        producer.produce("next-0", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(ANSWER_S) == 0
    assert end_offsets(many, "next-0") == RECORD_COUNT
