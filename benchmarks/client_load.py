"""One client under load, in its own process: `python -m benchmarks.client_load JSON`.

Owns how each client library is driven and what is timed: a part of the records goes first, untimed,
so that connections, metadata and code are warm; then so many records until the last of them is
acknowledged, or handed to the application. CPU time is of the whole process, all its threads.
Every client gets the same guarantees (acks=all, idempotent) and the same linger; those whose batch
size can be compared get the same one, confluent-kafka keeps its own (1 MB), which helps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.processes import carry_out
from moldau.cli.bench.figures import payload, taken

PATIENCE_S: Final = 60.0
LINGER_MS: Final = 5
BATCH_BYTES: Final = 16 * 1024
TASK_COUNT: Final = 1_000
"""Tasks that each wait for their record's acknowledgement before they send the next."""
POLLED: Final = 10_000
"""Records per poll, where a call says how many."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What to do. `name` is one of `LOADS`."""

    name: str
    bootstrap: str
    topic: str
    record_count: int
    value_bytes: int
    warm_up_count: int

    @property
    def value(self) -> bytes:
        """What every record holds."""
        return payload(self.value_bytes)


@dataclass(slots=True)
class LoadOutcome:
    """What was measured over the timed records."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def timed(outcome: LoadOutcome) -> Iterator[None]:
    """Wall and CPU time of what is inside."""
    with taken() as cost:
        yield
    outcome.seconds, outcome.cpu_seconds = cost.seconds, cost.own_cpu_seconds


# -- Moldau ---------------------------------------------------------------------------------------


def _our_producer(order: LoadOrder) -> Any:
    from moldau.client import Producer

    return Producer(order.bootstrap, linger_ms=LINGER_MS, batch_size=BATCH_BYTES)


async def _moldau_send_nowait(order: LoadOrder, outcome: LoadOutcome) -> None:
    from moldau.client import BufferFull

    failures: list[object] = []
    async with _our_producer(order) as producer:

        async def send(count: int) -> None:
            topic, value = order.topic, order.value
            last: Any = None
            for _ in range(count):
                try:
                    last = producer.send_nowait(topic, value)
                except BufferFull:
                    await producer.wait_for_room()
                    last = producer.send_nowait(topic, value)
            await producer.flush()
            if last is not None and last.exception() is not None:
                failures.append(last.exception())

        await send(order.warm_up_count)
        with timed(outcome):
            await send(order.record_count)
    assert not failures, f"not delivered: {failures[0]}"


async def _moldau_await_send(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _our_producer(order) as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send(order.topic, order.value)

        async def send_all(count: int) -> None:
            await asyncio.gather(*(send(count // TASK_COUNT) for _ in range(TASK_COUNT)))

        await send_all(max(order.warm_up_count, TASK_COUNT))
        with timed(outcome):
            await send_all(max(order.record_count, TASK_COUNT))


async def _moldau_send_arrow(order: LoadOrder, outcome: LoadOutcome) -> None:
    import pyarrow as pa

    value = pa.scalar(order.value, pa.binary())
    async with _our_producer(order) as producer:
        await producer.send_arrow(
            order.topic, pa.table({"value": pa.repeat(value, order.warm_up_count)})
        )
        table = pa.table({"value": pa.repeat(value, order.record_count)})
        with timed(outcome):
            delivery = await producer.send_arrow(order.topic, table)
    assert delivery.row_count == order.record_count, delivery


def _our_consumer(order: LoadOrder) -> Any:
    from moldau.client import Consumer, TopicPartition

    consumer = Consumer(order.bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(order.topic, 0)])
    return consumer


async def _moldau_getmany(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _our_consumer(order) as consumer:

        async def read(count: int) -> None:
            while count > 0:
                found = await consumer.getmany(min(POLLED, count), timeout_ms=PATIENCE_S * 1000)
                assert found, "nothing more came"
                count -= sum(len(records) for records in found.values())

        await read(order.warm_up_count)
        with timed(outcome):
            await read(order.record_count)


async def _iterate(consumer: AsyncIterable[object], order: LoadOrder, outcome: LoadOutcome) -> None:
    """`async for`, one record at a time."""

    async def read(count: int) -> None:
        async for _ in consumer:
            count -= 1
            if not count:
                return

    await read(order.warm_up_count)
    with timed(outcome):
        await read(order.record_count)


async def _moldau_async_for(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _our_consumer(order) as consumer:
        await _iterate(consumer, order, outcome)


async def _moldau_poll_arrow(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _our_consumer(order) as consumer:

        async def read(count: int) -> None:
            while count > 0:
                batch = await consumer.poll_arrow(count, timeout_ms=PATIENCE_S * 1000)
                assert batch.num_rows, "nothing more came"
                count -= batch.num_rows

        await read(order.warm_up_count)
        with timed(outcome):
            await read(order.record_count)


# -- confluent-kafka ------------------------------------------------------------------------------


def _confluent_produce(order: LoadOrder, outcome: LoadOutcome) -> None:
    from confluent_kafka import Producer

    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": order.bootstrap,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            # Its own default number of messages, and as much memory as they need.
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )

    def send(count: int) -> None:
        topic, value = order.topic, order.value
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.01)
            if not number & 0xFF:
                producer.poll(0)
        left = producer.flush(PATIENCE_S)
        assert not left, f"{left} records were not delivered"

    send(order.warm_up_count)
    with timed(outcome):
        send(order.record_count)
    assert not failures, f"not delivered: {failures[0]}"


def _confluent_consume(order: LoadOrder, outcome: LoadOutcome) -> None:
    from confluent_kafka import Consumer, TopicPartition

    # It insists on the name of a group, and is given its partition without one.
    consumer = Consumer(
        {"bootstrap.servers": order.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(order.topic, 0, 0)])

    def read(count: int) -> None:
        while count > 0:
            messages = consumer.consume(min(POLLED, count), timeout=0.1)
            count -= sum(message.error() is None for message in messages)

    read(order.warm_up_count)
    with timed(outcome):
        read(order.record_count)
    consumer.close()


# -- aiokafka -------------------------------------------------------------------------------------


def _aiokafka_producer(order: LoadOrder) -> Any:
    from aiokafka import AIOKafkaProducer

    return AIOKafkaProducer(
        bootstrap_servers=order.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )


async def _aiokafka_produce(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _aiokafka_producer(order) as producer:

        async def send(count: int) -> None:
            topic, value = order.topic, order.value
            last: Any = None
            for _ in range(count):
                last = await producer.send(topic, value)
            await producer.flush()
            await last

        await send(order.warm_up_count)
        with timed(outcome):
            await send(order.record_count)


async def _aiokafka_await_send(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _aiokafka_producer(order) as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send_and_wait(order.topic, order.value)

        async def send_all(count: int) -> None:
            await asyncio.gather(*(send(count // TASK_COUNT) for _ in range(TASK_COUNT)))

        await send_all(max(order.warm_up_count, TASK_COUNT))
        with timed(outcome):
            await send_all(max(order.record_count, TASK_COUNT))


def _aiokafka_consumer(order: LoadOrder) -> Any:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=order.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(order.topic, 0)])
    return consumer


async def _aiokafka_getmany(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _aiokafka_consumer(order) as consumer:

        async def read(count: int) -> None:
            while count > 0:
                found = await consumer.getmany(timeout_ms=1000, max_records=min(POLLED, count))
                count -= sum(len(records) for records in found.values())

        await read(order.warm_up_count)
        with timed(outcome):
            await read(order.record_count)


async def _aiokafka_async_for(order: LoadOrder, outcome: LoadOutcome) -> None:
    async with _aiokafka_consumer(order) as consumer:
        await _iterate(consumer, order, outcome)


# -- kafka-python ---------------------------------------------------------------------------------


def _kafka_python_produce(order: LoadOrder, outcome: LoadOutcome) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=order.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )

    def send(count: int) -> None:
        topic, value = order.topic, order.value
        last: Any = None
        for _ in range(count):
            last = producer.send(topic, value)
        producer.flush(PATIENCE_S)
        last.get(PATIENCE_S)

    send(order.warm_up_count)
    with timed(outcome):
        send(order.record_count)
    producer.close()


def _kafka_python_consume(order: LoadOrder, outcome: LoadOutcome) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=order.bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([TopicPartition(order.topic, 0)])

    def read(count: int) -> None:
        while count > 0:
            found = consumer.poll(1000, max_records=min(POLLED, count))
            count -= sum(len(records) for records in found.values())

    read(order.warm_up_count)
    with timed(outcome):
        read(order.record_count)
    consumer.close()


# -- the bytes alone -------------------------------------------------------------------------------


def _send_bytes(order: LoadOrder, outcome: LoadOutcome) -> None:
    from benchmarks.bare_client import send_bytes

    counts = order.warm_up_count, order.record_count
    times = partial(timed, outcome)
    send_bytes(order.bootstrap, order.topic, order.value_bytes, BATCH_BYTES, counts, times)


def _receive_bytes(order: LoadOrder, outcome: LoadOutcome) -> None:
    from benchmarks.bare_client import receive_bytes

    counts = order.warm_up_count, order.record_count
    receive_bytes(order.bootstrap, order.topic, counts, partial(timed, outcome))


Load = Callable[[LoadOrder, LoadOutcome], Any]
LOADS: Final[dict[str, Load]] = {
    "moldau send_nowait": _moldau_send_nowait,
    "moldau await send": _moldau_await_send,
    "moldau send_arrow": _moldau_send_arrow,
    "moldau getmany": _moldau_getmany,
    "moldau async for": _moldau_async_for,
    "moldau poll_arrow": _moldau_poll_arrow,
    "confluent-kafka produce": _confluent_produce,
    "confluent-kafka consume": _confluent_consume,
    "aiokafka send": _aiokafka_produce,
    "aiokafka await send": _aiokafka_await_send,
    "aiokafka getmany": _aiokafka_getmany,
    "aiokafka async for": _aiokafka_async_for,
    "kafka-python send": _kafka_python_produce,
    "kafka-python poll": _kafka_python_consume,
    "bytes alone: send": _send_bytes,
    "bytes alone: receive": _receive_bytes,
}


def run(order: LoadOrder) -> LoadOutcome:
    """Carry it out."""
    outcome = LoadOutcome()
    left = LOADS[order.name](order, outcome)
    if left is not None:
        import uvloop

        uvloop.run(left)
    return outcome


if __name__ == "__main__":
    carry_out(LoadOrder, run)
