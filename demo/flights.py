"""`make demo`: one node, real flights, real clients, and a `kill -9` in the middle.

An idempotent confluent-kafka producer (lz4) sends 336,776 flights as JSON keyed by carrier; half
way the node is killed with SIGKILL and started again while the producer goes on. aiokafka and
kafka-python then read everything back, and what they got is compared with what was sent, record by
record. Ends with status 1 when anything was lost, duplicated, altered or reordered within a key.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as ConfluentNewTopic
from flights_data import FLIGHT_COUNT, flights
from rich.console import Console
from rich.table import Table

from moldau.testing import Cluster

TOPIC = "flights"
PARTITION_COUNT = 4
KILL_AT = FLIGHT_COUNT // 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RATIO_SAMPLE_COUNT = 50_000

console = Console()


@dataclass(slots=True)
class Sent:
    """What the producer did."""

    sent_count: int = 0
    acknowledged: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    sent_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Read:
    """What one consumer got."""

    client: str
    numbers: Counter[int] = field(default_factory=Counter)
    altered_count: int = 0
    reordered_count: int = 0
    read_bytes: int = 0
    seconds: float = 0.0


def main() -> int:
    """Run the demo and return the exit status."""
    records = list(flights())
    assert len(records) == FLIGHT_COUNT, "the data set is complete"
    begin = time.perf_counter()
    with Cluster(config={"num.partitions": str(PARTITION_COUNT)}) as cluster:
        start_up_ms = (time.perf_counter() - begin) * 1000
        console.print(f"node ready on {cluster.bootstrap_server} after {start_up_ms:.0f} ms")
        create_topics(cluster.bootstrap_server, [TOPIC, *(f"ratio-{codec}" for codec in CODECS)])
        outage = Outage(cluster)
        sent = produce(cluster.bootstrap_server, records, outage)
        console.print(
            f"sent {sent.sent_count:,} records; the node was killed at {KILL_AT:,} and "
            f"served again {outage.recovery_ms:.0f} ms after its restart began"
        )
        reads = [
            asyncio.run(read_with_aiokafka(cluster.bootstrap_server, records)),
            read_with_kafka_python(cluster.bootstrap_server, records),
        ]
        ratios = compression_ratios(cluster, records[:RATIO_SAMPLE_COUNT])
        memory_mb = resident_mb(cluster.node().pid)
    return report(sent, reads, ratios, start_up_ms, outage.recovery_ms, memory_mb)


class Outage:
    """Kills the node once and starts it again, while another process goes on producing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._executor = ThreadPoolExecutor(1)
        self._restarted: Future[float] | None = None
        self.recovery_ms = 0.0

    def strike(self) -> None:
        """`kill -9` now; the restart runs beside the caller."""
        console.print("kill -9 …")
        self._cluster.kill()
        self._restarted = self._executor.submit(self._restart)

    def wait(self) -> None:
        """Return when the node serves again; raises what the restart raised."""
        assert self._restarted is not None, "struck"
        self.recovery_ms = self._restarted.result()
        self._executor.shutdown()

    def _restart(self) -> float:
        begin = time.perf_counter()
        self._cluster.restart()
        return (time.perf_counter() - begin) * 1000


def create_topics(bootstrap_server: str, names: Iterable[str]) -> None:
    """Create the demo's topics with confluent-kafka's admin client."""
    admin = AdminClient({"bootstrap.servers": bootstrap_server})
    created = admin.create_topics(
        [ConfluentNewTopic(name, PARTITION_COUNT, 1) for name in names], operation_timeout=30
    )
    for future in created.values():
        future.result(30)


def producer_config(bootstrap_server: str, codec: str) -> dict[str, object]:
    """An idempotent producer, with librdkafka's names."""
    return {
        "bootstrap.servers": bootstrap_server,
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": codec,
        "linger.ms": 20,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "message.timeout.ms": 120_000,
        "reconnect.backoff.max.ms": 500,
        "log_level": 2,
    }


def produce(bootstrap_server: str, records: list[tuple[bytes, bytes]], outage: Outage) -> Sent:
    """Send everything, with the outage in the middle."""
    sent = Sent()
    producer = confluent_kafka.Producer(producer_config(bootstrap_server, "lz4"))

    def acknowledge(number: int) -> object:
        def on_delivery(error: object, _message: object) -> None:
            if error is None:
                sent.acknowledged.add(number)
            else:
                sent.failures.append(f"record {number}: {error}")

        return on_delivery

    begin = time.perf_counter()
    for number, (key, value) in enumerate(records):
        if number == KILL_AT:
            outage.strike()
        while True:
            try:
                producer.produce(TOPIC, value=value, key=key, on_delivery=acknowledge(number))
                break
            except BufferError:
                producer.poll(0.1)
        sent.sent_count += 1
        sent.sent_bytes += len(key) + len(value)
        producer.poll(0)
    outage.wait()
    remaining = producer.flush(120)
    if remaining:
        sent.failures.append(f"{remaining} records were never answered")
    sent.seconds = time.perf_counter() - begin
    return sent


class Checker:
    """Compares what comes back with what was sent, record by record."""

    def __init__(self, read: Read, records: list[tuple[bytes, bytes]]) -> None:
        self._read = read
        self._records = records
        self._last_of_key: dict[tuple[int, bytes], int] = {}

    def take(self, partition: int, key: bytes, value: bytes) -> None:
        """One record as the consumer got it."""
        read = self._read
        number = int(value[5 : value.index(b",", 5)])
        read.read_bytes += len(key) + len(value)
        read.numbers[number] += 1
        if self._records[number] != (key, value):
            read.altered_count += 1
        if self._last_of_key.get((partition, key), -1) > number:
            read.reordered_count += 1
        self._last_of_key[partition, key] = number


async def read_with_aiokafka(bootstrap_server: str, records: list[tuple[bytes, bytes]]) -> Read:
    """Everything in the topic, through aiokafka."""
    read = Read("aiokafka")
    checker = Checker(read, records)
    begin = time.perf_counter()
    # Not seek_to_beginning: right after assign it races with aiokafka's own reset to the end.
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap_server, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        partitions = [aiokafka.TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            for partition, messages in (await consumer.getmany(timeout_ms=1000)).items():
                for message in messages:
                    checker.take(partition.partition, message.key, message.value)
    finally:
        await consumer.stop()
    read.seconds = time.perf_counter() - begin
    return read


def read_with_kafka_python(bootstrap_server: str, records: list[tuple[bytes, bytes]]) -> Read:
    """Everything in the topic, through kafka-python."""
    read = Read("kafka-python")
    checker = Checker(read, records)
    begin = time.perf_counter()
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap_server)
    try:
        partitions = [kafka.TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        while any(consumer.position(p) < ends[p] for p in partitions):
            for partition, messages in consumer.poll(timeout_ms=1000).items():
                for message in messages:
                    checker.take(partition.partition, message.key, message.value)
    finally:
        consumer.close()
    read.seconds = time.perf_counter() - begin
    return read


def compression_ratios(cluster: Cluster, sample: list[tuple[bytes, bytes]]) -> dict[str, float]:
    """Bytes on disk per codec, as uncompressed / compressed."""
    sizes: dict[str, int] = {}
    for codec in CODECS:
        topic = f"ratio-{codec}"
        producer = confluent_kafka.Producer(producer_config(cluster.bootstrap_server, codec))
        for key, value in sample:
            while True:
                try:
                    producer.produce(topic, value=value, key=key)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60):
            raise SystemExit(f"the sample for {codec} was not acknowledged in time")
        sizes[codec] = log_bytes(cluster.data_directory(), topic)
    return {codec: sizes["none"] / sizes[codec] for codec in CODECS}


def log_bytes(data_directory: Path, topic: str) -> int:
    """Size of a topic's segments on disk."""
    return sum(path.stat().st_size for path in data_directory.glob(f"{topic}-*/*.log"))


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def report(
    sent: Sent,
    reads: list[Read],
    ratios: dict[str, float],
    start_up_ms: float,
    recovery_ms: float,
    memory_mb: float,
) -> int:
    """Print the table; 0 when every number is as it must be."""
    table = Table(title="336,776 flights through one Moldau node", title_justify="left")
    table.add_column("what")
    for read in reads:
        table.add_column(f"read by {read.client}", justify="right")
    wrong = len(sent.failures)
    rows: list[tuple[str, list[int]]] = [
        ("sent", [sent.sent_count] * len(reads)),
        ("acknowledged", [len(sent.acknowledged)] * len(reads)),
        ("read", [sum(read.numbers.values()) for read in reads]),
        ("lost", [len(sent.acknowledged - read.numbers.keys()) for read in reads]),
        ("duplicated", [sum(n - 1 for n in read.numbers.values()) for read in reads]),
        ("altered", [read.altered_count for read in reads]),
        ("out of order within a key", [read.reordered_count for read in reads]),
    ]
    for name, values in rows:
        table.add_row(name, *(f"{value:,}" for value in values))
        if name not in ("sent", "acknowledged", "read"):
            wrong += sum(values)
        elif set(values) != {FLIGHT_COUNT}:
            wrong += 1
    table.add_row("read MB/s", *(f"{read.read_bytes / read.seconds / 1e6:.1f}" for read in reads))
    console.print(table)
    for failure in sent.failures[:5]:
        console.print(f"[red]{failure}")
    console.print(
        f"produced {sent.sent_bytes / 1e6:.1f} MB in {sent.seconds:.1f} s "
        f"({sent.sent_bytes / sent.seconds / 1e6:.1f} MB/s, the outage included)"
    )
    console.print(
        f"start-up {start_up_ms:.0f} ms, recovery after kill -9 {recovery_ms:.0f} ms, "
        f"resident memory {memory_mb:.0f} MB"
    )
    shown = ", ".join(f"{codec} {ratio:.2f}" for codec, ratio in ratios.items())
    console.print(f"compression ratio of this JSON: {shown}")
    if wrong:
        console.print("[red]not every number is as it must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
