"""What unmodified Python clients see: the same load to Moldau and to Apache Kafka. For information.

Each client sends 1 KB records with acks=all and its own defaults otherwise (confluent-kafka with
idempotence, as it recommends), then reads the partition from its start. Clients and brokers share
the machine, and with aiokafka and kafka-python the client is the slower one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.figures import Effort, Report, Spread, Table
from benchmarks.nodes import HOST, BrokerNode
from benchmarks.produce_load import brokers
from benchmarks.replicated_load import confluent_seconds
from moldau.cli.bench.figures import payload

TOPIC: Final = "clients"
VALUE: Final = payload(1024)
PATIENCE_S: Final = 30.0

Load = Callable[[str, int], tuple[float, float]]
"""Bootstrap server and record count → seconds of producing and of consuming."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client library and how many records it gets."""

    name: str
    load: Load
    record_count: int


def run(effort: Effort) -> Report:
    """Every client to every broker, by turns."""
    report = Report("Throughput that Python clients see")
    table = Table(
        (
            "client",
            "what",
            "Moldau, thousand records/s",
            "Apache Kafka, thousand records/s",
            "ratio",
        ),
        "Records of 1 KB, one partition, minimum / median / maximum:",
    )
    with brokers(effort) as (ours, theirs):
        for client in CLIENTS:
            count = effort.count(client.record_count, 200)
            _once(ours, client, count)
            rates: list[list[tuple[float, float]]] = [[], []]
            for _ in range(effort.rounds):
                for node, found in zip((ours, theirs), rates, strict=True):
                    if node is not None:
                        found.append(_once(node, client, count))
            for number, what in enumerate(("produce", "consume")):
                ours_spread = Spread.of([rate[number] for rate in rates[0]])
                cells = [client.name, what, ours_spread.text(0), "", ""]
                if rates[1]:
                    peer = Spread.of([rate[number] for rate in rates[1]])
                    cells[3:] = [peer.text(0), ours_spread.per(peer).text()]
                table.add(*cells)
    report.tables.append(table)
    if theirs is None:
        report.notes.append(WITHOUT_KAFKA)
    return report


def _once(node: BrokerNode, client: Client, count: int) -> tuple[float, float]:
    """Thousand records per second produced and consumed, on a fresh topic."""
    with node.connect() as wire:
        wire.create_topic(TOPIC)
        produce_s, consume_s = client.load(f"{HOST}:{node.port}", count)
        node.delete_topic(wire, TOPIC)
    return count / produce_s / 1e3, count / consume_s / 1e3


def _confluent(bootstrap: str, count: int) -> tuple[float, float]:
    from confluent_kafka import Consumer, TopicPartition

    produce_s = confluent_seconds(bootstrap, TOPIC, 1, VALUE, count)
    # It insists on the name of a group, and is given its partition without one.
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    begin = time.perf_counter()
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    got = 0
    while got < count:
        messages = consumer.consume(min(10_000, count - got), timeout=PATIENCE_S)
        assert messages, f"nothing more after {got} records"
        got += sum(message.error() is None for message in messages)
    consume_s = time.perf_counter() - begin
    consumer.close()
    return produce_s, consume_s


def _aiokafka(bootstrap: str, count: int) -> tuple[float, float]:
    return asyncio.run(_aiokafka_load(bootstrap, count))


async def _aiokafka_load(bootstrap: str, count: int) -> tuple[float, float]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        begin = time.perf_counter()
        sent: Any = None
        for _ in range(count):
            sent = await producer.send(TOPIC, VALUE, partition=0)
        await producer.flush()
        await sent
        produce_s = time.perf_counter() - begin
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = TopicPartition(TOPIC, 0)
        begin = time.perf_counter()
        consumer.assign([partition])
        consumer.seek(partition, 0)
        got = 0
        async with asyncio.timeout(PATIENCE_S):
            while got < count:
                found = await consumer.getmany(partition, timeout_ms=1000)
                got += sum(len(records) for records in found.values())
        consume_s = time.perf_counter() - begin
    return produce_s, consume_s


def _kafka_python(bootstrap: str, count: int) -> tuple[float, float]:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    begin = time.perf_counter()
    sent: Any = None
    for _ in range(count):
        sent = producer.send(TOPIC, VALUE, partition=0)
    producer.flush(PATIENCE_S)
    sent.get(PATIENCE_S)
    produce_s = time.perf_counter() - begin
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    partition = TopicPartition(TOPIC, 0)
    begin = time.perf_counter()
    consumer.assign([partition])
    consumer.seek(partition, 0)
    got = 0
    while got < count:
        found = consumer.poll(int(PATIENCE_S * 1000), max_records=10_000)
        assert found, f"nothing more after {got} records"
        got += sum(len(records) for records in found.values())
    consume_s = time.perf_counter() - begin
    consumer.close()
    return produce_s, consume_s


CLIENTS: Final = (
    Client("confluent-kafka", _confluent, 100_000),
    Client("aiokafka", _aiokafka, 30_000),
    Client("kafka-python", _kafka_python, 20_000),
)
