"""confluent-kafka (librdkafka): producing and reading by assignment."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.interop.drivers import Confluent
from tests.interop.samples import BASE_TIMESTAMP_MS, Rec
from tests.interop.topics import TopicMaker, fresh_name
from tests.kit.waiting import until

WAIT_S = 20.0
DRIVER = Confluent()


def consumer_of(bootstrap: str, **config: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            **config,
        }
    )


def produce_one(bootstrap: str, topic: str, value: bytes, **config: object) -> Message | KafkaError:
    """What the delivery report of one record says."""
    reports: list[Message | KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **config})
    producer.produce(
        topic, value, on_delivery=lambda error, message: reports.append(error or message)
    )
    assert producer.flush(WAIT_S) == 0
    return reports[0]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_level(bootstrap: str, topic: str, acks: str) -> None:
    records = [Rec(b"k", b"%d" % number) for number in range(500)]
    DRIVER.write(bootstrap, topic, records, acks=acks)
    assert DRIVER.read(bootstrap, topic, len(records)) == records


def test_delivery_reports_say_offset_and_timestamp(bootstrap: str, topic: str) -> None:
    offsets = []
    for number in range(3):
        report = produce_one(bootstrap, topic, b"%d" % number)
        assert isinstance(report, Message)
        assert report.timestamp()[0] == TIMESTAMP_CREATE_TIME
        offsets.append(report.offset())
    assert offsets == [0, 1, 2]


def test_the_broker_may_stamp_the_time(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    DRIVER.write(bootstrap, topic, [Rec(b"k", b"v")] * 10, codec="lz4")
    after_ms = int(time.time() * 1000)
    consumer = consumer_of(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(10, WAIT_S)
        assert len(messages) == 10
        for message in messages:
            kind, timestamp_ms = message.timestamp()
            assert kind == TIMESTAMP_LOG_APPEND_TIME
            assert before_ms <= timestamp_ms <= after_ms
    finally:
        consumer.close()


def test_begin_end_and_seek_by_time(bootstrap: str, topic: str) -> None:
    records = [
        Rec(None, b"%d" % number, timestamp_ms=BASE_TIMESTAMP_MS + 1000 * number)
        for number in range(20)
    ]
    DRIVER.write(bootstrap, topic, records)
    consumer = consumer_of(bootstrap)
    try:
        where = TopicPartition(topic, 0)
        assert consumer.get_watermark_offsets(where, timeout=WAIT_S) == (0, 20)

        def offset_at(timestamp_ms: int) -> int:
            wanted = [TopicPartition(topic, 0, timestamp_ms)]
            return int(consumer.offsets_for_times(wanted, timeout=WAIT_S)[0].offset)

        assert offset_at(BASE_TIMESTAMP_MS - 1) == 0
        assert offset_at(BASE_TIMESTAMP_MS + 7000) == 7
        assert offset_at(BASE_TIMESTAMP_MS + 7001) == 8
        assert offset_at(BASE_TIMESTAMP_MS + 99_000) == OFFSET_END
        consumer.assign([TopicPartition(topic, 0, offset_at(BASE_TIMESTAMP_MS + 18_500))])
        assert [message.value() for message in consumer.consume(1, WAIT_S)] == [b"19"]
        consumer.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
        assert [message.value() for message in consumer.consume(2, WAIT_S)] == [b"0", b"1"]
    finally:
        consumer.close()


def test_reading_starts_in_the_middle_of_a_batch(bootstrap: str, topic: str) -> None:
    records = [Rec(b"k", b"%d" % number) for number in range(100)]
    DRIVER.write(bootstrap, topic, records, codec="zstd")
    assert DRIVER.read(bootstrap, topic, 10, offset=37) == records[37:47]


def test_an_offset_beyond_the_end_is_out_of_range(bootstrap: str, topic: str) -> None:
    DRIVER.write(bootstrap, topic, [Rec(b"k", b"v")])
    consumer = consumer_of(bootstrap, **{"auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(topic, 0, 99)])
        message = consumer.poll(WAIT_S)
        assert message is not None
        # librdkafka answers with its own code for "no offset to go to".
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        assert "out of range" in message.error().str().lower()
    finally:
        consumer.close()


def test_a_waiting_consumer_hears_of_new_records(bootstrap: str, topic: str) -> None:
    consumer = consumer_of(bootstrap, **{"fetch.wait.max.ms": 10_000, "fetch.min.bytes": 1})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0.3) is None
        produce_one(bootstrap, topic, b"news")
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.value() == b"news"
    finally:
        consumer.close()


def test_large_messages(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"max.message.bytes": "9000000"})
    records = [Rec(b"big", bytes([number]) * 8_000_000) for number in range(3)]
    DRIVER.write(bootstrap, topic, records)
    assert DRIVER.read(bootstrap, topic, 3) == records


def test_a_message_over_the_topics_limit_is_refused(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config={"max.message.bytes": "1000"})
    report = produce_one(bootstrap, topic, b"x" * 2000)
    assert isinstance(report, KafkaError)
    assert report.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert isinstance(produce_one(bootstrap, topic, b"x" * 500), Message)


def test_producing_creates_the_topic(bootstrap: str) -> None:
    topic = fresh_name("auto")
    DRIVER.write(bootstrap, topic, [Rec(b"k", b"v")])
    assert DRIVER.read(bootstrap, topic, 1) == [Rec(b"k", b"v")]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 1
    admin.delete_topics([topic])[topic].result(WAIT_S)


def test_a_partition_that_is_not_there(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 5000})
    codes: list[int] = []
    try:
        producer.produce(
            topic, b"v", partition=7, on_delivery=lambda error, _: codes.append(error.code())
        )
        producer.flush(WAIT_S)
    except KafkaException as error:
        codes.append(error.args[0].code())
    assert codes == [KafkaError._UNKNOWN_PARTITION]


def test_keys_spread_over_partitions_and_stay_there(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(partitions=4)
    placed: dict[bytes, set[int]] = {}
    producer = Producer({"bootstrap.servers": bootstrap})

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None
        placed.setdefault(message.key() or b"", set()).add(message.partition() or 0)

    for number in range(400):
        producer.produce(topic, b"v", b"key-%d" % (number % 40), on_delivery=report)
    assert producer.flush(WAIT_S) == 0
    assert all(len(partitions) == 1 for partitions in placed.values())
    assert {next(iter(partitions)) for partitions in placed.values()} == {0, 1, 2, 3}
    consumer = consumer_of(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
        seen: list[Message] = []

        def all_read() -> bool:
            seen.extend(consumer.consume(400, 0.2))
            return len(seen) >= 400

        until(all_read, what="400 records of four partitions", deadline_s=WAIT_S)
        assert len(seen) == 400
    finally:
        consumer.close()
