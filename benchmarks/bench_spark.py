"""Spark: our source and sink beside Spark's own Kafka source and sink, and a row-based reader.

One node, one local Spark with two cores, the same topic for all, by turns in changing order; ratios
are taken within a round. Read is everything with all columns into Spark's `noop`; written are rows
that Spark makes. Micro-batches: a backlog in small batches, the median time of a whole trigger.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import Effort, Report, Spread, Table, at_least
from benchmarks.machine import ROOT
from benchmarks.nodes import temporary_directory
from moldau.client import NewTopic, OffsetSpec
from moldau.client.sync import Admin, Producer
from moldau.protocol.types import TopicPartition
from moldau.testing import Cluster, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

JARS: Final = sorted((ROOT / ".cache").glob("spark-kafka-*/*.jar"))
ROW_BYTES: Final = 100
READ_ROWS: Final = 2_000_000
WRITTEN_ROWS: Final = 1_000_000
BATCH_COUNT: Final = 30
BATCH_ROWS: Final = 1_000
PARTITIONS: Final = 4

OWN_READ: Final = "format(kafka)"
OUR_READ: Final = "format(moldau)"
ROW_READ: Final = "Python, row by row"
OWN_WRITE: Final = "format(kafka), at least once"
OUR_WRITE: Final = "format(moldau), exactly once"
OUR_PLAIN_WRITE: Final = "format(moldau), at least once"


class Bench:
    """One Spark, one cluster, and what is in it."""

    def __init__(self, spark: SparkSession, cluster: Cluster, admin: Admin, home: Path) -> None:
        self.spark = spark
        self.admin = admin
        self.home = home
        self.servers = cluster.bootstrap_server

    def topic(self) -> str:
        """A fresh topic."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, partition_count=PARTITIONS)])
        return name

    def fill(self, row_count: int) -> str:
        """A topic with that many rows."""
        name = self.topic()
        rows = _rows(10_000)
        with Producer(self.servers) as producer:
            for first in range(0, row_count, 10_000):
                producer.send_arrow(name, rows.slice(0, min(10_000, row_count - first)))
        return name

    def offset_count(self, topic: str) -> int:
        """How many offsets a topic has."""
        specs = {TopicPartition(topic, each): OffsetSpec.LATEST for each in range(PARTITIONS)}
        return sum(each.offset for each in self.admin.list_offsets(specs).values())

    def read(self, source: str, topic: str) -> None:
        """Everything, once."""
        reader = self.spark.read.format(source)
        if source == "rows":
            reader = reader.options(servers=self.servers, topic=topic)
        else:
            reader = reader.options(subscribe=topic).option("kafka.bootstrap.servers", self.servers)
        reader.load().write.format("noop").mode("overwrite").save()

    def write(self, sink: str, row_count: int, **options: str) -> None:
        """Rows that cost Spark next to nothing, to a fresh topic."""
        topic = self.topic()
        frame = self.spark.range(0, row_count, 1, PARTITIONS).selectExpr(
            "cast(cast(id as string) as binary) as key",
            f"cast(repeat('x', {ROW_BYTES}) as binary) as value",
        )
        writer = frame.write.format(sink).mode("append").options(topic=topic, **options)
        writer.option("kafka.bootstrap.servers", self.servers).save()
        assert self.offset_count(topic) >= row_count, f"{sink} has lost rows"

    def trigger_ms(self, source: str, sink: str, batch_count: int) -> float:
        """The median time of a trigger, of rows that come when those before have been read."""
        topic = self.topic()
        reader = self.spark.readStream.format(source)
        reader = reader.options(subscribe=topic, startingOffsets="earliest")
        reader = reader.option("kafka.bootstrap.servers", self.servers)
        writer = reader.load().select("key", "value").writeStream.format(sink)
        if sink != "noop":
            writer = writer.option("kafka.bootstrap.servers", self.servers)
            writer = writer.option("topic", self.topic())
        writer = writer.option("checkpointLocation", str(self.home / uuid.uuid4().hex))
        query = writer.trigger(processingTime="0 seconds").start()
        rows = _rows(BATCH_ROWS)
        try:
            with Producer(self.servers) as producer:
                for number in range(1, batch_count + 1):
                    producer.send_arrow(topic, rows)
                    wait_until(
                        partial(_has_read, query, number * BATCH_ROWS),
                        what=f"{source} → {sink}: batch {number}",
                        deadline_s=120,
                    )
            times = [
                each["durationMs"]["triggerExecution"]
                for each in query.recentProgress
                if each["numInputRows"]
            ]
        finally:
            query.stop()
        # The first ones start processes.
        return float(statistics.median(times[len(times) // 4 :]))


def _rows(count: int) -> Any:
    """Rows to be read, on all partitions."""
    import pyarrow as pa

    return pa.table(
        {
            "key": [b"%d" % row for row in range(count)],
            "value": [b"x" * ROW_BYTES] * count,
            "partition": pa.array([row % PARTITIONS for row in range(count)], "int32"),
        }
    )


def _has_read(query: StreamingQuery, row_count: int) -> bool:
    """Whether a query has read so many rows of its topic."""
    assert query.isActive, query.exception()
    progress = query.lastProgress
    if progress is None:
        return False
    offsets = json.loads(progress.json)["sources"][0]["endOffset"] or {}
    return sum(sum(each.values()) for each in offsets.values()) >= row_count


def run(effort: Effort) -> Report:
    """Reading, writing, micro-batches."""
    spark_version = version("pyspark")
    report = Report("Spark beside its own Kafka source and sink")
    report.notes.append(f"PySpark {spark_version}.")
    with_own = effort.with_kafka and bool(JARS)
    streams = with_own and _is_for(spark_version, JARS)
    with _bench() as bench:
        _measure_reads(report, bench, effort, with_own)
        _measure_writes(report, bench, effort, with_own)
        _measure_triggers(report, bench, effort, streams)
    if with_own and not streams:
        report.notes.append(
            "Spark's own source streams in the Spark that it was made for only: its micro-batches "
            "are left out (`make bench-spark` takes a PySpark that fits)."
        )
    if not with_own:
        report.notes.append(
            "Spark's own source and sink are left out (`make setup-all` fetches them with Maven)."
        )
    return report


def _is_for(spark_version: str, jars: list[Path]) -> bool:
    """Whether Spark's own Kafka source is of the same release line as the Spark."""
    line = ".".join(spark_version.split(".")[:2])
    return any(
        each.name.startswith("spark-sql-kafka") and f"-{line}." in each.name for each in jars
    )


def _measure_reads(report: Report, bench: Bench, effort: Effort, with_own: bool) -> None:
    row_count = effort.count(READ_ROWS, 1_000)
    topic = bench.fill(row_count)
    ways: dict[str, Callable[[], None]] = {
        OUR_READ: lambda: bench.read("moldau", topic),
        ROW_READ: lambda: bench.read("rows", topic),
    }
    if with_own:
        ways[OWN_READ] = lambda: bench.read("kafka", topic)
    rates = _rates(ways, row_count, effort.rounds)
    report.tables.append(
        _table(f"Reading {row_count:,} rows of {ROW_BYTES} bytes, thousand rows/s", rates)
    )
    report.targets.append(
        at_least("Spark: our source, × a row-based one", rates[OUR_READ].per(rates[ROW_READ]), 2.0)
    )
    if with_own:
        ratio = rates[OUR_READ].per(rates[OWN_READ])
        report.targets.append(at_least("Spark: our source, × Spark's own", ratio, 1.0))


def _measure_writes(report: Report, bench: Bench, effort: Effort, with_own: bool) -> None:
    row_count = effort.count(WRITTEN_ROWS, 1_000)
    ways: dict[str, Callable[[], None]] = {
        OUR_WRITE: lambda: bench.write("moldau", row_count, sinkId="bench", txnId=uuid.uuid4().hex),
        OUR_PLAIN_WRITE: lambda: bench.write("moldau", row_count, semantics="at-least-once"),
    }
    if with_own:
        ways[OWN_WRITE] = lambda: bench.write("kafka", row_count)
    rates = _rates(ways, row_count, effort.rounds)
    report.tables.append(
        _table(f"Writing {row_count:,} rows of {ROW_BYTES} bytes, thousand rows/s", rates)
    )
    if with_own:
        ratio = rates[OUR_WRITE].per(rates[OWN_WRITE])
        report.targets.append(
            at_least("Spark: our exactly-once sink, × Spark's at-least-once one", ratio, 0.8)
        )


def _measure_triggers(report: Report, bench: Bench, effort: Effort, with_own: bool) -> None:
    batch_count = effort.count(BATCH_COUNT, 4)
    table = Table(
        ("from → to", "ms, minimum / median / maximum"),
        f"Micro-batches of {BATCH_ROWS:,} rows, median time of a trigger:",
    )
    ways = [("moldau", "noop"), ("moldau", "moldau")]
    if with_own:
        ways += [("kafka", "noop"), ("kafka", "kafka")]
    found: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for number in range(effort.rounds):
        for way in _turned(ways, number):
            found[way].append(bench.trigger_ms(*way, batch_count))
    for (source, sink), times in found.items():
        once = ", exactly once" if sink == "moldau" else ""
        table.add(f"{source} → {sink}{once}", Spread.of(times).text(0))
    report.tables.append(table)


def _rates(ways: dict[str, Callable[[], None]], rows: int, rounds: int) -> dict[str, Spread]:
    """Thousand rows per second, after one turn of each that does not count."""
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in _turned(list(ways), number):
            begin = time.monotonic()
            ways[name]()
            found[name].append(rows / (time.monotonic() - begin) / 1e3)
    return {name: Spread.of(values) for name, values in found.items()}


def _turned(ways: list[Any], number: int) -> list[Any]:
    return ways[number % len(ways) :] + ways[: number % len(ways)]


def _table(title: str, rates: dict[str, Spread]) -> Table:
    table = Table(("way", "minimum / median / maximum"), f"{title}:")
    for name, spread in rates.items():
        table.add(name, spread.text(0))
    return table


@contextmanager
def _bench() -> Iterator[Bench]:
    """A node and a Spark, both gone afterwards."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    settings = {"transaction.two.phase.commit.enable": "true"}
    with (
        warnings.catch_warnings(),
        temporary_directory() as home,
        Cluster(config=settings) as cluster,
        Admin(cluster.bootstrap_server) as admin,
    ):
        warnings.simplefilter("ignore")  # PySpark's own, about libraries that it may not need
        from pyspark.sql import SparkSession

        from benchmarks.spark_rows import RowsSource

        builder = SparkSession.builder.master("local[2]").appName("moldau-bench")
        builder = builder.config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", "1g")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.jars", ",".join(map(str, JARS)))
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(RowsSource)
        try:
            yield Bench(spark, cluster, admin, home)
        finally:
            spark.stop()
