"""An application as a type checker sees it: `make type` checks this file, nothing runs it.

A wrong use stands with its `type: ignore`, which mypy refuses when there is nothing to ignore.
"""

from __future__ import annotations

import json
from typing import Any, assert_type

from moldau.client import Consumer, ConsumerRecord, Producer, TopicPartition, sync
from moldau.client.serialization import (
    JsonDeserializer,
    LongDeserializer,
    StringDeserializer,
    StringSerializer,
)


async def what_deserializers_return_is_the_type_of_keys_and_values() -> None:
    consumer = Consumer(
        "localhost:9092",
        key_deserializer=StringDeserializer(),
        value_deserializer=LongDeserializer(),
    )
    assert_type(consumer, Consumer[str, int])
    record = await consumer.getone()
    assert_type(record, ConsumerRecord[str, int])
    assert_type(record.key, str | None)
    assert_type(record.value, int | None)
    assert_type(await consumer.getmany(), dict[TopicPartition, list[ConsumerRecord[str, int]]])
    async for each in consumer:
        assert_type(each, ConsumerRecord[str, int])
    delays: Consumer[Any, dict[str, int]] = Consumer(
        "localhost:9092", value_deserializer=JsonDeserializer()
    )
    assert_type((await delays.getone()).value, dict[str, int] | None)
    Consumer[str, int](
        "localhost:9092",
        value_deserializer=StringDeserializer(),  # type: ignore[arg-type]
    )


async def what_serializers_take_is_what_is_sent() -> None:
    producer = Producer("localhost:9092", key_serializer=StringSerializer())
    assert_type(producer, Producer[str, Any])
    await producer.send("t", b"value", key="key")
    await producer.send("t", b"value", key=3)  # type: ignore[arg-type]
    producer.send_nowait("t", None)
    functions = Producer(
        "localhost:9092", value_serializer=lambda value: json.dumps(value).encode()
    )
    functions.send_nowait("t", {"delay": 2})


def the_blocking_face_is_the_same() -> None:
    consumer = sync.Consumer("localhost:9092", value_deserializer=StringDeserializer())
    assert_type(consumer, sync.Consumer[Any, str])
    for record in consumer:
        assert_type(record.value, str | None)
    producer = sync.Producer[str, int]("localhost:9092", key_serializer=StringSerializer())
    producer.send("t", "value")  # type: ignore[arg-type]


def classes_without_types_take_any(consumer: Consumer, producer: sync.Producer) -> None:
    producer.send("t", 1)
    assert_type(consumer, Consumer[Any, Any])
