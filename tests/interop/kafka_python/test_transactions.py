"""kafka-python: the transactional producer and its admin client's view of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import (
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka.errors import KafkaError, ProducerFencedError

from tests.interop.topics import TopicMaker, fresh_name, wait_decided
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
PARTITIONS = 3


@contextmanager
def transactional(bootstrap: str, transactional_id: str, **config: Any) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), transactional_id=transactional_id, **config
    )
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close(WAIT_S)


def write(producer: KafkaProducer, topic: str, values: list[bytes]) -> None:
    for number, value in enumerate(values):
        producer.send(topic, value, partition=number % PARTITIONS)
    producer.flush(WAIT_S)


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All that can be read from the beginning on, sorted, once every transaction has ended."""
    wait_decided(bootstrap, topic)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), isolation_level=isolation)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    try:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: list[bytes] = []

        def is_at_the_end() -> bool:
            for records in consumer.poll(timeout_ms=50).values():
                found.extend(record.value for record in records)
            return all(consumer.position(each) >= end for each, end in ends.items())

        until(is_at_the_end, what="the ends", deadline_s=WAIT_S)
        return sorted(found)
    finally:
        consumer.close()


def test_commit_and_abort(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    with transactional(trio, fresh_name("kafka-python")) as producer:
        for number in range(4):
            producer.begin_transaction()
            write(producer, topic, [b"%d" % number] * PARTITIONS)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert read(trio, topic) == [b"0"] * 3 + [b"2"] * 3
    assert len(read(trio, topic, "read_uncommitted")) == 12


def test_a_newer_producer_fences_the_old_one(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    transactional_id = fresh_name("kafka-python")
    with transactional(trio, transactional_id) as zombie:
        zombie.begin_transaction()
        write(zombie, topic, [b"zombie"] * PARTITIONS)
        with transactional(trio, transactional_id) as new:
            new.begin_transaction()
            write(new, topic, [b"new"] * PARTITIONS)
            new.commit_transaction()
        with pytest.raises(KafkaError) as fenced:
            zombie.commit_transaction()
        assert (
            isinstance(fenced.value, ProducerFencedError) or "fence" in repr(fenced.value).lower()
        )
    assert read(trio, topic) == [b"new"] * PARTITIONS


def test_consume_transform_produce(trio: str, trio_topics: TopicMaker) -> None:
    """An aborted round is done again by the group's next member, a committed one is not."""
    source = trio_topics.create(partitions=PARTITIONS)
    target = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("kafka-python")
    values = [b"%04d" % number for number in range(90)]
    with transactional(trio, fresh_name("kafka-python")) as producer:
        producer.begin_transaction()
        write(producer, source, values)
        producer.commit_transaction()
        for is_committed in (False, True, False, True):
            consumer = KafkaConsumer(
                source,
                bootstrap_servers=trio.split(","),
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                heartbeat_interval_ms=200,
            )
            try:
                records = next_records(consumer, len(values) // 2)
                producer.begin_transaction()
                write(producer, target, [record.value for record in records])
                offsets = {
                    TopicPartition(record.topic, record.partition): OffsetAndMetadata(
                        record.offset + 1, "", -1
                    )
                    for record in records
                }
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                if is_committed:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
            finally:
                consumer.close()
    assert read(trio, target) == values


def next_records(consumer: KafkaConsumer, count: int) -> list[Any]:
    """Exactly so many."""
    found: list[Any] = []

    def is_read() -> bool:
        for records in consumer.poll(timeout_ms=100, max_records=count - len(found)).values():
            found.extend(records)
        return len(found) >= count

    until(is_read, what=f"{count} records", deadline_s=WAIT_S)
    return found


def test_the_admin_client_s_view(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    transactional_id = fresh_name("kafka-python")
    admin = KafkaAdminClient(bootstrap_servers=trio.split(","))
    try:
        with transactional(trio, transactional_id) as producer:
            producer.begin_transaction()
            write(producer, topic, [b"v"])
            [listed] = [
                each
                for some in admin.list_transactions(
                    state_filters=["Ongoing"], transactional_id_pattern=f"{transactional_id[:-3]}.*"
                ).values()
                for each in some
            ]
            assert listed.transactional_id == transactional_id
            described = admin.describe_transactions([transactional_id])[transactional_id]
            assert described.producer_id == listed.producer_id
            assert list(described.topic_partitions) == [TopicPartition(topic, 0)]
            partition = TopicPartition(topic, 0)
            [writer] = admin.describe_producers([partition])[partition].active_producers
            assert writer.producer_id == listed.producer_id
            assert writer.current_transaction_start_offset == 0
            assert transactional_id not in [
                each["transactional_id"] for each in admin.find_hanging_transactions()
            ]
            producer.commit_transaction()
    finally:
        admin.close()
    assert read(trio, topic) == [b"v"]
