"""Compacted topics with every client: keys are needed; what compaction leaves is read by all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.interop.drivers import DRIVERS
from tests.interop.raw.probe import stored_headers
from tests.interop.samples import CODECS, Rec
from tests.interop.topics import ADMIN_TIMEOUT_S, TopicMaker
from tests.kit.waiting import until

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
}
VALUE = bytes(range(250)) * 40


@pytest.fixture
def eager_cleaner(bootstrap: str) -> Iterator[None]:
    """The cleaner looks ten times a second: a change while the broker runs."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def change(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
        for broker_id in admin.list_topics(timeout=ADMIN_TIMEOUT_S).brokers:
            resource = ConfigResource(
                ResourceType.BROKER, str(broker_id), incremental_configs=[entry]
            )
            for future in admin.incremental_alter_configs([resource]).values():
                future.result(ADMIN_TIMEOUT_S)

    change(AlterConfigOpType.SET, "100")
    yield
    change(AlterConfigOpType.DELETE, None)


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_without_a_key_is_refused(bootstrap: str, topics: TopicMaker, codec: str) -> None:
    topic = topics.create(config=COMPACTED)
    # A flush would end the lingering, and on a busy machine cut one batch into several: the three
    # records are one batch because the producer knows the partition before and waits for its time.
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 1000}
    )
    errors: list[object] = []

    def produce(key: bytes | None) -> None:
        producer.produce(
            topic,
            VALUE[:1000],
            key,
            partition=0,
            on_delivery=lambda error, _: errors.append(error and error.name()),
        )

    produce(b"first")
    assert producer.flush(ADMIN_TIMEOUT_S) == 0
    assert errors.pop() is None
    for key in (b"k", None, b"k"):
        produce(key)
    until(lambda: producer.poll(0.1) >= 0 and len(errors) == 3, what="three answers")
    # librdkafka fails the whole batch, or, since KIP-467 names the records at fault, the others
    # by another name.
    assert "INVALID_RECORD" in errors
    assert None not in errors
    DRIVERS[0].write(bootstrap, topic, [Rec(b"k", b"v")], codec=codec)
    assert [rec.value for rec in DRIVERS[1].read(bootstrap, topic, 2)] == [VALUE[:1000], b"v"]


@pytest.mark.usefixtures("eager_cleaner")
def test_what_compaction_leaves_is_read_by_every_client(bootstrap: str, topics: TopicMaker) -> None:
    topic = topics.create(config=COMPACTED)
    for number in range(4):
        values = [b"%d:%d:" % (number, each) + VALUE for each in range(50)]
        DRIVERS[0].write(
            bootstrap,
            topic,
            [Rec(b"key-%d" % (each % 9), value) for each, value in enumerate(values)],
            **{"enable.idempotence": True},
        )
    DRIVERS[0].write(bootstrap, topic, [Rec(b"last", b"of all")])
    # Idempotent producers' last batches stay as headers without records. There is one closed
    # segment, so this is all there is to clean.
    until(
        lambda: any(
            not header.record_count for header in asyncio.run(stored_headers(bootstrap, topic))
        ),
        what="compaction",
    )
    left = count_of(bootstrap, topic)
    assert left < 150
    found = DRIVERS[0].read(bootstrap, topic, left)
    assert (found[-1].key, found[-1].value) == (b"last", b"of all")
    newest = {rec.key: rec.value or b"" for rec in found}
    assert len(newest) == 10
    assert all(value.startswith(b"3:") for key, value in newest.items() if key != b"last")
    for reader in DRIVERS[1:]:
        assert reader.read(bootstrap, topic, left) == found, reader.name


def count_of(bootstrap: str, topic: str) -> int:
    """How many records a consumer gets up to the end."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True,
         "enable.auto.commit": False}
    )  # fmt: skip
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        count = 0
        while True:
            message = consumer.poll(ADMIN_TIMEOUT_S)
            assert message is not None, "neither a record nor the end"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return count
            count += 1
    finally:
        consumer.close()
