"""confluent-kafka (librdkafka): the transactional producer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.interop.confluent.clients import (
    WAIT_S,
    Reading,
    consumer_config,
    consuming,
    numbers,
    positions,
    write_numbers,
)
from tests.interop.topics import TopicMaker, fresh_name, wait_decided
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3


def transactional(bootstrap: str, transactional_id: str, **config: Any) -> Producer:
    """A producer that has its id and epoch."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "log_level": 0,
            **config,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, topic: str, values: list[bytes]) -> None:
    """Spread over the partitions, within the running transaction."""
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)


@contextmanager
def reading_all(bootstrap: str, topic: str, isolation: str) -> Iterator[Consumer]:
    config = {"isolation.level": isolation, "enable.partition.eof": True, "check.crcs": True}
    with consuming(bootstrap, fresh_name("reader"), **config) as consumer:
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        )
        yield consumer


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All values up to the end of every partition, sorted."""
    ended: set[int] = set()
    found: list[bytes] = []
    with reading_all(bootstrap, topic, isolation) as consumer:
        while len(ended) < PARTITIONS:
            message = consumer.poll(WAIT_S)
            assert message is not None, "neither a record nor the end"
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition() or 0)
    return sorted(found)


def read_decided(bootstrap: str, topic: str) -> list[bytes]:
    """What is committed, once every transaction has ended."""
    wait_decided(bootstrap, topic)
    return read(bootstrap, topic)


def test_commit_and_abort_over_several_partitions(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    producer = transactional(trio, fresh_name("t"))
    for number in range(6):
        producer.begin_transaction()
        write(producer, topic, [b"%d-%d" % (number, each) for each in range(9)])
        if number % 2:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    committed, every = (
        sorted(b"%d-%d" % (number, each) for number in range(0, 6, step) for each in range(9))
        for step in (2, 1)
    )
    assert read_decided(trio, topic) == committed
    assert read(trio, topic, "read_uncommitted") == every


def test_an_open_transaction_hides_what_comes_after_it(trio: str, trio_topics: TopicMaker) -> None:
    topic = trio_topics.create(partitions=PARTITIONS)
    producer = transactional(trio, fresh_name("t"))
    producer.begin_transaction()
    write(producer, topic, [b"a", b"b", b"c"])
    assert producer.flush(WAIT_S) == 0
    write_numbers(trio, topic, range(3), PARTITIONS)
    assert read(trio, topic) == []
    assert read(trio, topic, "read_uncommitted") == [*numbers(3), b"a", b"b", b"c"]
    producer.commit_transaction(WAIT_S)
    assert read_decided(trio, topic) == [*numbers(3), b"a", b"b", b"c"]


def test_a_newer_producer_fences_the_old_one(trio: str, trio_topics: TopicMaker) -> None:
    """The zombie's open transaction is aborted, and it cannot write or commit any more."""
    topic = trio_topics.create(partitions=PARTITIONS)
    transactional_id = fresh_name("t")
    zombie = transactional(trio, transactional_id)
    zombie.begin_transaction()
    write(zombie, topic, [b"zombie"] * 3)
    assert zombie.flush(WAIT_S) == 0
    new = transactional(trio, transactional_id)
    new.begin_transaction()
    write(new, topic, [b"new"] * 3)
    new.commit_transaction(WAIT_S)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(WAIT_S)
    error = fenced.value.args[0]
    assert error.fatal()
    assert error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    with pytest.raises(KafkaException):
        zombie.begin_transaction()
    assert read_decided(trio, topic) == [b"new"] * 3


def test_a_transaction_that_takes_too_long_is_aborted(trio: str, trio_topics: TopicMaker) -> None:
    """The coordinator aborts it; the producer hears of it when it goes on."""
    topic = trio_topics.create(partitions=PARTITIONS)
    producer = transactional(trio, fresh_name("t"), **{"transaction.timeout.ms": 1000})
    producer.begin_transaction()
    write(producer, topic, [b"late"] * 3)
    assert producer.flush(WAIT_S) == 0
    write_numbers(trio, topic, range(3), PARTITIONS)
    until(
        lambda: read(trio, topic) == numbers(3), what="the open one is aborted", deadline_s=WAIT_S
    )
    with pytest.raises(KafkaException) as told:
        producer.commit_transaction(WAIT_S)
    assert told.value.args[0].fatal() or told.value.args[0].txn_requires_abort()
    assert read(trio, topic) == numbers(3)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_transform_produce(trio: str, trio_topics: TopicMaker, protocol: str) -> None:
    """Every input gives one output, also where a transaction was aborted and done again."""
    source = trio_topics.create(partitions=PARTITIONS)
    target = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("transform")
    count = 300
    write_numbers(trio, source, range(count), PARTITIONS)
    producer = transactional(trio, fresh_name("t"))
    config = {"group.protocol": protocol, "isolation.level": "read_committed"}
    with consuming(trio, group, **config) as consumer:
        consumer.subscribe([source])
        Reading(consumer).until_shared(source, [PARTITIONS])
    # What it read while it waited for its partitions was not committed: the first round has it all.
    for round_number in range(6):
        with consuming(trio, group, **config) as consumer:
            consumer.subscribe([source])
            messages = []
            while len(messages) < count // 3:
                found = consumer.consume(count // 3 - len(messages), WAIT_S)
                assert found, "nothing comes"
                messages.extend(found)
            producer.begin_transaction()
            write(producer, target, [b"of " + (each.value() or b"") for each in messages])
            producer.send_offsets_to_transaction(
                positions(consumer), consumer.consumer_group_metadata(), WAIT_S
            )
            if round_number % 2:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
    assert read_decided(trio, target) == [b"of " + each for each in numbers(count)]
    with consuming(trio, group, **config) as consumer:
        ends = [TopicPartition(source, number) for number in range(PARTITIONS)]
        assert [each.offset for each in consumer.committed(ends, timeout=WAIT_S)] == [
            count // PARTITIONS
        ] * PARTITIONS


def test_offsets_of_a_member_that_left_the_group_are_refused(
    trio: str, trio_topics: TopicMaker
) -> None:
    """KIP-447: the group's generation fences, whatever the transactional id."""
    source = trio_topics.create(partitions=PARTITIONS)
    group = fresh_name("left")
    producer = transactional(trio, fresh_name("t"))
    consumer = Consumer(consumer_config(trio, group))
    try:
        consumer.subscribe([source])
        Reading(consumer).until_shared(source, [PARTITIONS])
        metadata = consumer.consumer_group_metadata()
    finally:
        consumer.close()
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(source, 0, 1)], metadata, WAIT_S)
    error = refused.value.args[0]
    assert error.code() == KafkaError.UNKNOWN_MEMBER_ID
    assert error.txn_requires_abort()
    producer.abort_transaction(WAIT_S)
