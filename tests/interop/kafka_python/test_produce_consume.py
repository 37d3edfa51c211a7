"""kafka-python: producing and reading by assignment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from tests.interop.drivers import KafkaPython
from tests.interop.samples import BASE_TIMESTAMP_MS, Rec
from tests.interop.topics import TopicMaker, fresh_name

WAIT_S = 20.0
LOG_APPEND_TIME = 1


@contextmanager
def producing(bootstrap: str, **config: Any) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **config)
    try:
        yield producer
    finally:
        producer.close(WAIT_S)


@contextmanager
def consuming(bootstrap: str, **config: Any) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, **config)
    try:
        yield consumer
    finally:
        consumer.close()


def first(consumer: KafkaConsumer, partition: TopicPartition) -> Any:
    """The next record, waited for."""
    return consumer.poll(timeout_ms=WAIT_S * 1000, max_records=1)[partition][0]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_level(bootstrap: str, topic: str, acks: int | str) -> None:
    driver = KafkaPython()
    records = [Rec(b"k", b"%d" % number) for number in range(300)]
    driver.write(bootstrap, topic, records, acks=acks, enable_idempotence=False)
    assert driver.read(bootstrap, topic, len(records)) == records


def test_acknowledgements_say_where_a_record_is(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(partitions=2)
    with producing(bootstrap) as producer:
        for number in range(3):
            future = producer.send(topic, b"v", partition=1, timestamp_ms=BASE_TIMESTAMP_MS)
            placed = future.get(WAIT_S)
            assert (placed.topic, placed.partition, placed.offset) == (topic, 1, number)
            assert placed.timestamp == BASE_TIMESTAMP_MS


def test_the_broker_may_stamp_the_time(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"message.timestamp.type": "LogAppendTime"})
    partition = TopicPartition(topic, 0)
    before_ms = int(time.time() * 1000)
    with producing(bootstrap) as producer:
        placed = producer.send(topic, b"v", timestamp_ms=BASE_TIMESTAMP_MS).get(WAIT_S)
    after_ms = int(time.time() * 1000)
    assert before_ms <= placed.timestamp <= after_ms
    with consuming(bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        record = first(consumer, partition)
        assert record.timestamp_type == LOG_APPEND_TIME
        assert record.timestamp == placed.timestamp


def test_begin_end_and_seek_by_time(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    records = [
        Rec(None, b"%d" % number, timestamp_ms=BASE_TIMESTAMP_MS + 1000 * number)
        for number in range(20)
    ]
    KafkaPython().write(bootstrap, topic, records, codec="gzip")
    with consuming(bootstrap) as consumer:
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 20}
        found = consumer.offsets_for_times({partition: BASE_TIMESTAMP_MS + 7001})[partition]
        assert (found.offset, found.timestamp) == (8, BASE_TIMESTAMP_MS + 8000)
        later = consumer.offsets_for_times({partition: BASE_TIMESTAMP_MS + 99_000})
        assert later[partition] is None
        consumer.seek(partition, found.offset)
        assert first(consumer, partition).value == b"8"
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 20


def test_an_offset_beyond_the_end_is_out_of_range(bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with consuming(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 99)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll(timeout_ms=WAIT_S * 1000)


def test_large_messages(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"max.message.bytes": "9000000"})
    driver = KafkaPython()
    records = [Rec(b"big", bytes([number]) * 6_000_000) for number in range(2)]
    driver.write(bootstrap, topic, records)
    assert driver.read(bootstrap, topic, 2) == records


def test_a_message_over_the_topics_limit_is_refused(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"max.message.bytes": "1000"})
    # With idempotence this client gives up altogether after such an error.
    with producing(bootstrap, enable_idempotence=False) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"x" * 2000).get(WAIT_S)
        assert producer.send(topic, b"x" * 500).get(WAIT_S).offset == 0


def test_idempotent_batches_arrive_once_and_in_order(bootstrap: str, topic: str) -> None:
    values = [b"%d" % number for number in range(1000)]
    with producing(bootstrap, enable_idempotence=True, batch_size=500) as producer:
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(WAIT_S)
        assert [future.get(WAIT_S).offset for future in futures] == list(range(1000))
    read = KafkaPython().read(bootstrap, topic, 1000)
    assert [rec.value for rec in read] == values


def test_producing_creates_the_topic(bootstrap: str) -> None:
    topic = fresh_name("auto")
    with producing(bootstrap) as producer:
        assert producer.send(topic, b"v").get(WAIT_S).offset == 0
    with consuming(bootstrap) as consumer:
        assert consumer.partitions_for_topic(topic) == {0}
        assert topic in consumer.topics()
