"""The three Python clients (and kcat elsewhere) behind one pair of functions each: write, read.

Owns how each client is set up in tests. Must not hide a client's behaviour: no retries, no fix-ups.
Every driver closes what it opened, also after a failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import aiokafka
import confluent_kafka

from tests.interop.kafka_python import kafka
from tests.interop.samples import Rec

READ_DEADLINE_S = 20.0
MAX_REQUEST_BYTES = 30_000_000


class Driver(Protocol):
    """One client library."""

    name: str

    def can_write(self, rec: Rec) -> bool:
        """Whether the library lets its user send such a record at all."""
        ...

    def write(
        self, bootstrap: str, topic: str, records: Sequence[Rec], *, codec: str = "none"
    ) -> None:
        """Write to partition 0 and wait until all are acknowledged."""
        ...

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Rec]:
        """The first `count` records of partition 0 from an offset on."""
        ...


class Confluent:
    """confluent-kafka: librdkafka."""

    name = "confluent"

    def can_write(self, rec: Rec) -> bool:
        return True

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        **config: Any,
    ) -> None:
        failures: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "message.max.bytes": MAX_REQUEST_BYTES,
                "linger.ms": 50,
                **config,
            }
        )
        for rec in records:
            producer.produce(
                topic,
                rec.value,
                rec.key,
                partition=0,
                timestamp=rec.timestamp_ms,
                headers=list(rec.headers),
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert producer.flush(READ_DEADLINE_S) == 0
        assert failures == []

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Rec]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": MAX_REQUEST_BYTES,
                "check.crcs": True,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
            found: list[Rec] = []
            end = time.monotonic() + READ_DEADLINE_S
            while len(found) < count and time.monotonic() < end:
                for message in consumer.consume(count - len(found), timeout=1.0):
                    assert message.error() is None, message.error()
                    found.append(_from_confluent(message))
            return found
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python 3."""

    name = "kafka_python"

    def can_write(self, rec: Rec) -> bool:
        return _has_key_or_value(rec) and _has_header_values(rec)

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        **config: Any,
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=50,
            max_request_size=MAX_REQUEST_BYTES,
            **config,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=rec.value,
                    key=rec.key,
                    headers=list(rec.headers),
                    partition=0,
                    timestamp_ms=rec.timestamp_ms,
                )
                for rec in records
            ]
            producer.flush(READ_DEADLINE_S)
            for future in futures:
                future.get(READ_DEADLINE_S)
        finally:
            producer.close(READ_DEADLINE_S)

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Rec]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            max_partition_fetch_bytes=MAX_REQUEST_BYTES,
        )
        try:
            partition = kafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            found: list[Rec] = []
            end = time.monotonic() + READ_DEADLINE_S
            while len(found) < count and time.monotonic() < end:
                batches = consumer.poll(timeout_ms=1000, max_records=count - len(found))
                found += [_from_object(record) for record in batches.get(partition, ())]
            return found
        finally:
            consumer.close()


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def can_write(self, rec: Rec) -> bool:
        return _has_key_or_value(rec) and _has_header_values(rec)

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        **config: Any,
    ) -> None:
        asyncio.run(self._write(bootstrap, topic, records, codec, config))

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Rec]:
        return asyncio.run(self._read(bootstrap, topic, count, offset))

    async def _write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Rec],
        codec: str,
        config: dict[str, Any],
    ) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=50,
            max_request_size=MAX_REQUEST_BYTES,
            **config,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=rec.value,
                    key=rec.key,
                    headers=list(rec.headers),
                    partition=0,
                    timestamp_ms=rec.timestamp_ms,
                )
                for rec in records
            ]
            await asyncio.wait_for(asyncio.gather(*futures), READ_DEADLINE_S)
        finally:
            await producer.stop()

    async def _read(self, bootstrap: str, topic: str, count: int, offset: int) -> list[Rec]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            max_partition_fetch_bytes=MAX_REQUEST_BYTES,
        )
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            found: list[Rec] = []
            end = time.monotonic() + READ_DEADLINE_S
            while len(found) < count and time.monotonic() < end:
                batches = await consumer.getmany(timeout_ms=1000, max_records=count - len(found))
                found += [_from_object(record) for record in batches.get(partition, ())]
            return found
        finally:
            await consumer.stop()


def _has_key_or_value(rec: Rec) -> bool:
    return rec.key is not None or rec.value is not None


def _has_header_values(rec: Rec) -> bool:
    return all(value is not None for _, value in rec.headers)


def _from_confluent(message: confluent_kafka.Message) -> Rec:
    _kind, timestamp_ms = message.timestamp()
    return Rec(message.key(), message.value(), tuple(message.headers() or ()), timestamp_ms)


def _from_object(record: Any) -> Rec:
    return Rec(record.key, record.value, tuple(record.headers), record.timestamp)


DRIVERS: tuple[Driver, ...] = (Confluent(), KafkaPython(), AioKafka())
