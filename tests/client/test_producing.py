"""Records sent by every way there is, and what is found in the topic afterwards."""

from __future__ import annotations

import asyncio

import pytest

from moldau.client import (
    BufferFull,
    Consumer,
    Producer,
    RecordTooLarge,
    SerializationError,
    TopicPartition,
    UnknownTopicOrPartition,
)
from moldau.client.serialization import JsonSerializer, StringSerializer
from tests.client.conftest import MakeTopic
from tests.client.reading import read_topic
from tests.kit.waiting import until_async

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
async def test_records_come_back_as_they_were_sent(
    bootstrap: str, make_topic: MakeTopic, codec: str
):
    topic = await make_topic()
    sent = [
        (None, b"no key", ()),
        (b"key", None, ()),
        (b"", b"", ()),
        (b"k" * 300, b"v" * 100_000, (("a", b"1"), ("a", None), ("", b""))),
    ]
    async with Producer(bootstrap, compression_type=codec) as producer:
        for number, (key, value, headers) in enumerate(sent):
            metadata = await producer.send(
                topic, value, key=key, headers=headers, timestamp_ms=1_700_000_000_000 + number
            )
            assert (metadata.topic, metadata.partition, metadata.offset) == (topic, 0, number)
    found = await read_topic(bootstrap, topic)
    assert [(each.key, each.value, tuple(each.headers)) for each in found] == sent
    assert [each.timestamp_ms for each in found] == [1_700_000_000_000 + n for n in range(4)]


async def test_a_stream_keeps_its_order_and_every_callback_comes_once(
    bootstrap: str, make_topic: MakeTopic
):
    topic = await make_topic(partitions=3)
    calls: list[tuple[int, int]] = []
    count = 20_000
    async with Producer(bootstrap, linger_ms=2, compression_type="lz4") as producer:
        for number in range(count):
            await producer.wait_for_room()
            producer.send_nowait(
                topic,
                b"%d" % number,
                partition=number % 3,
                on_delivery=lambda metadata, error: calls.append(
                    (metadata.partition, metadata.offset)
                ),
            )
        await producer.flush()
        assert len(calls) == count == len(set(calls))
    found = await read_topic(bootstrap, topic)
    for partition in range(3):
        values = [int(each.value or b"") for each in found if each.partition == partition]
        assert values == list(range(partition, count, 3))


async def all_appended(bootstrap: str, topic: str, count: int) -> None:
    """Return when the leader has them: without acknowledgements that may be after the flush."""
    place = TopicPartition(topic, 0)
    async with Consumer(bootstrap) as consumer:

        async def has_all() -> bool:
            return (await consumer.end_offsets([place]))[place] >= count

        await until_async(has_all, what=f"{count} records in {topic}")


@pytest.mark.parametrize(
    ("acks", "is_idempotent"), [("all", True), ("all", False), ("1", False), ("0", False)]
)
async def test_every_kind_of_acknowledgement(
    bootstrap: str, make_topic: MakeTopic, acks: str, is_idempotent: bool
):
    topic = await make_topic()
    async with Producer(bootstrap, acks=acks, enable_idempotence=is_idempotent) as producer:
        deliveries = [producer.send_nowait(topic, b"%d" % number) for number in range(500)]
        await producer.flush()
        assert all(each.done() and each.exception() is None for each in deliveries)
        offset = deliveries[-1].result().offset
        assert offset == (-1 if acks == "0" else 499)
    await all_appended(bootstrap, topic, 500)
    assert [each.value for each in await read_topic(bootstrap, topic)] == [
        b"%d" % number for number in range(500)
    ]


async def test_keys_decide_partitions_as_in_java(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic(partitions=7)
    # toPositive(murmur2(key)) % 7, as Apache Kafka's Java client computes it.
    async with Producer(bootstrap) as producer:
        places = {
            key: (await producer.send(topic, b"", key=key)).partition
            for key in (b"UA", b"AA", b"B6", b"DL", b"EV")
        }
        again = {key: (await producer.send(topic, b"", key=key)).partition for key in places}
    assert again == places
    from moldau.protocol.records._implementation import murmur2

    assert places == {key: (murmur2(key) & 0x7FFFFFFF) % 7 for key in places}


async def test_serializers_and_what_they_refuse(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic()
    async with Producer(
        bootstrap, key_serializer=StringSerializer(), value_serializer=JsonSerializer()
    ) as producer:
        await producer.send(topic, {"delay": 2}, key="UA")
        with pytest.raises(SerializationError):
            await producer.send(topic, object(), key="UA")
    (record,) = await read_topic(bootstrap, topic)
    assert (record.key, record.value) == (b"UA", b'{"delay":2}')


async def test_a_record_that_is_too_large_for_the_topic_fails_alone(
    bootstrap: str, make_topic: MakeTopic
):
    topic = await make_topic(max_message_bytes="20000")
    async with Producer(bootstrap, linger_ms=50) as producer:
        small = [producer.send_nowait(topic, b"%d" % number) for number in range(10)]
        large = producer.send_nowait(topic, b"x" * 30_000)
        after = producer.send_nowait(topic, b"after")
        await producer.flush()
        with pytest.raises(RecordTooLarge):
            large.result()
        assert all(each.exception() is None for each in [*small, after])
    assert len(await read_topic(bootstrap, topic)) == 11


async def test_a_batch_that_is_too_large_for_the_topic_is_split(
    bootstrap: str, make_topic: MakeTopic
):
    topic = await make_topic(max_message_bytes="20000")
    async with Producer(bootstrap, linger_ms=200, batch_size=200_000) as producer:
        deliveries = [producer.send_nowait(topic, b"x" * 1_000) for _ in range(100)]
        await producer.flush()
        assert [each.result().offset for each in deliveries] == list(range(100))
    assert len(await read_topic(bootstrap, topic)) == 100


async def test_a_full_buffer_waits_or_refuses(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic()
    async with Producer(bootstrap, buffer_memory=200_000, linger_ms=5) as producer:

        def fill() -> None:
            for _ in range(10_000):
                producer.send_nowait(topic, b"x" * 1_000)

        with pytest.raises(BufferFull):
            fill()
        await asyncio.gather(*(producer.send(topic, b"y" * 1_000) for _ in range(500)))
    found = await read_topic(bootstrap, topic)
    assert sum(each.value == b"y" * 1_000 for each in found) == 500


async def test_a_partition_that_does_not_exist(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic(partitions=2)
    async with Producer(bootstrap, max_block_ms=1_000) as producer:
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send(topic, b"", partition=2)
        assert list(await producer.partitions_for(topic)) == [0, 1]


async def test_a_cancelled_send_is_delivered_or_not_at_all(bootstrap: str, make_topic: MakeTopic):
    topic = await make_topic()
    async with Producer(bootstrap, linger_ms=0) as producer:
        for number in range(100):
            sending = asyncio.create_task(producer.send(topic, b"%d" % number))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        last = await producer.send(topic, b"last")
    values = [each.value for each in await read_topic(bootstrap, topic)]
    assert len(values) == len(set(values)) == last.offset + 1
    numbers = [int(value or b"") for value in values[:-1]]
    assert numbers == sorted(numbers)
    assert values[-1] == b"last"
