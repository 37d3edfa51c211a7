"""Producers and consumers of four libraries at work, each with nothing but its defaults.

Owns the threads and what was handed over, acknowledged and read. Must not: retry, reconnect or seek
for a client. Every value is the number of its record within its partition, so that loss, disorder
and repetition show.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from types import TracebackType
from typing import Any, Final, Self

import aiokafka
import confluent_kafka

from tests.interop.kafka_python import kafka
from tests.kit.waiting import until

PAUSE_S: Final = 0.02
"""The pause between two records for each partition."""

PROGRESS_COUNT: Final = 20
"""So many records of each partition make us believe that a client goes on."""

DEADLINE_S: Final = 180.0
"""Longer than the longest timeout of a default configuration (aiokafka gives a batch 40 s,
librdkafka 300 s, the others 120 s), so that a client's own giving up shows as such."""


class Work(ABC):
    """One client's producer and consumer. Use as a context: it begins at once, from offset 0."""

    name: str
    is_idempotent: bool

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition_count: int,
        *,
        rack: str | None = None,
        is_writing: bool = True,
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = range(partition_count)
        self.rack = rack
        self.handed = dict.fromkeys(self.partitions, 0)
        self.acknowledged: dict[int, dict[int, int]] = {each: {} for each in self.partitions}
        """What was acknowledged by partition: number -> offset."""
        self.read: dict[int, list[tuple[int, int]]] = {each: [] for each in self.partitions}
        """What was read by partition: offset and number, as they came."""
        self.failures: list[str] = []
        self.stop_writing = threading.Event()
        self.stop_reading = threading.Event()
        self._threads = {
            work: threading.Thread(target=self._guard, args=(work,), name=f"{self.name}-{work}")
            for work in (["write", "consume"] if is_writing else ["consume"])
        }

    @abstractmethod
    def write(self) -> None:
        """Hand over a record for each partition every PAUSE_S until asked to stop, then flush."""

    @abstractmethod
    def consume(self) -> None:
        """Read all partitions from offset 0 until asked to stop."""

    def __enter__(self) -> Self:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop_writing.set()
        self.stop_reading.set()
        for thread in self._threads.values():
            thread.join(DEADLINE_S)

    def _guard(self, work: str) -> None:
        try:
            getattr(self, work)()
        except BaseException as failure:
            self.failures.append(f"{work}: {failure!r}")
            raise

    # -- what the clients report -----------------------------------------------------------------

    def next_value(self, partition: int) -> bytes:
        """The value to hand over next."""
        number = self.handed[partition]
        self.handed[partition] = number + 1
        return b"%d" % number

    def was_acknowledged(self, partition: int, number: int, offset: int) -> None:
        """The client says that it is written."""
        self.acknowledged[partition][number] = offset

    def was_read(self, partition: int, offset: int, value: bytes | None) -> None:
        """The client's application got it."""
        self.read[partition].append((offset, int(value or b"-1")))

    # -- what tests ask --------------------------------------------------------------------------

    def wait_progress(self, why: str) -> None:
        """Wait until more was acknowledged, and read, in every partition."""
        before = {each: len(self.acknowledged[each]) for each in self.partitions}
        ends = {
            each: max((offset for offset, _ in list(self.read[each])), default=-1)
            for each in self.partitions
        }

        def goes_on() -> bool:
            assert not self.failures, self.failures
            return all(
                len(self.acknowledged[each]) >= before[each] + PROGRESS_COUNT
                and bool(self.read[each])
                and self.read[each][-1][0] >= ends[each] + PROGRESS_COUNT
                for each in self.partitions
            )

        until(goes_on, what=f"{self.name} goes on {why}", deadline_s=DEADLINE_S)

    def finish_writing(self) -> None:
        """Send no more; everything handed over is decided when this returns."""
        self.stop_writing.set()
        self._threads["write"].join(DEADLINE_S)
        assert not self._threads["write"].is_alive(), f"{self.name} does not flush"

    def wait_read(self, ends: dict[int, int]) -> None:
        """Wait until the consumer has got to these offsets."""

        def done() -> bool:
            assert not self.failures, self.failures
            return all(
                bool(self.read[each]) and self.read[each][-1][0] >= end - 1
                for each, end in ends.items()
            )

        until(done, what=f"{self.name} reads to {ends}", deadline_s=DEADLINE_S)


class ConfluentWork(Work):
    """confluent-kafka: acks=all is its default."""

    name = "confluent"
    is_idempotent = False

    def write(self) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(f"delivery: {error}")
            else:
                self.was_acknowledged(message.partition(), int(message.value()), message.offset())

        while not self.stop_writing.wait(PAUSE_S):
            for partition in self.partitions:
                value = self.next_value(partition)
                producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0

    def consume(self) -> None:
        # It insists on a group's name, which assigned partitions have no use for.
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap, "group.id": "unused", "log_level": 0
        }  # fmt: skip
        if self.rack is not None:
            config["client.rack"] = self.rack
        consumer = confluent_kafka.Consumer(config)
        try:
            consumer.assign(
                [confluent_kafka.TopicPartition(self.topic, each, 0) for each in self.partitions]
            )
            while not self.stop_reading.is_set():
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is None:
                        self.was_read(message.partition(), message.offset(), message.value())
                    elif error.fatal():
                        self.failures.append(f"consumer: {error}")
        finally:
            consumer.close()


class KafkaPythonWork(Work):
    """kafka-python 3: idempotent and acks=all by default."""

    name = "kafka_python"
    is_idempotent = True

    def write(self) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap)
        try:
            while not self.stop_writing.wait(PAUSE_S):
                for partition in self.partitions:
                    value = self.next_value(partition)
                    future = producer.send(self.topic, value, partition=partition)
                    future.add_callback(self._delivered, int(value))
                    future.add_errback(lambda error: self.failures.append(f"delivery: {error!r}"))
            producer.flush(DEADLINE_S)
        finally:
            producer.close(DEADLINE_S)

    def _delivered(self, number: int, metadata: Any) -> None:
        self.was_acknowledged(metadata.partition, number, metadata.offset)

    def consume(self) -> None:
        racks = {} if self.rack is None else {"client_rack": self.rack}
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.bootstrap, **racks)
        try:
            partitions = [kafka.TopicPartition(self.topic, each) for each in self.partitions]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while not self.stop_reading.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    for record in records:
                        self.was_read(record.partition, record.offset, record.value)
        finally:
            consumer.close()


class AioKafkaWork(Work):
    """aiokafka: its acks=1 is the one default that the promise needs changed."""

    name = "aiokafka"
    is_idempotent = False

    def write(self) -> None:
        asyncio.run(self._write())

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _write(self) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
        await producer.start()
        sent: set[asyncio.Future[Any]] = set()
        try:
            while not await asyncio.to_thread(self.stop_writing.wait, PAUSE_S):
                for partition in self.partitions:
                    value = self.next_value(partition)
                    future = await producer.send(self.topic, value, partition=partition)
                    sent.add(future)
                    future.add_done_callback(sent.discard)
                    future.add_done_callback(self._delivered(int(value)))
            await producer.flush()
            if sent:
                await asyncio.wait(sent, timeout=DEADLINE_S)
        finally:
            await producer.stop()

    def _delivered(self, number: int) -> Any:
        def told(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                self.failures.append(f"delivery: {error!r}")
            else:
                metadata = future.result()
                self.was_acknowledged(metadata.partition, number, metadata.offset)

        return told

    async def _consume(self) -> None:
        assert self.rack is None, "aiokafka knows no racks"
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(self.topic, each) for each in self.partitions]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while not self.stop_reading.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        self.was_read(record.partition, record.offset, record.value)
        finally:
            await consumer.stop()


def duplicates(numbers: list[int]) -> list[int]:
    """What was read more than once."""
    counts: defaultdict[int, int] = defaultdict(int)
    for number in numbers:
        counts[number] += 1
    return [number for number, count in counts.items() if count > 1]
