"""Runs of `query_job`, and what is in the topic they write to.

Owns the processes it starts: each in its own session, killed by its group. Must not look into
the sink. Invariant: what a topic holds is read as a reader of committed records reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.client import OffsetSpec, TopicPartition, sync
from moldau.spark_connector.pipelines.embedded_spark import lean_spark_home
from moldau.testing import Cluster
from tests.kit import judging
from tests.kit.waiting import until
from tests.spark.sink.faulty_source import FORMAT, Fault, FaultySource
from tests.spark.sink.plain_sink import wait_for_markers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

REPOSITORY = Path(__file__).parents[3]
RUN_LIMIT_S = 180
LINES_PER_FILE = 50


@dataclass
class Pipeline:
    """One streaming query with its input, checkpoint and output, over all its runs."""

    cluster: Cluster
    topic: str
    directory: Path
    options: dict[str, str] = field(default_factory=dict)
    master: str = "local[2]"
    settings: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.input = self.directory / "input"
        self.input.mkdir(parents=True)
        self.checkpoint = self.directory / "checkpoint"

    def add_batches(self, count: int) -> None:
        """Input for so many batches, of two tasks each."""
        for _ in range(2 * count):
            self.add_task()

    def add_task(self) -> None:
        """Input for one task."""
        number = len(list(self.input.iterdir()))
        lines = [f"{number}-{line}" for line in range(LINES_PER_FILE)]
        self.lines += lines
        hidden = self.input / f".{number:04d}"
        hidden.write_text("\n".join(lines) + "\n")
        # Spark takes files by their times, which have to differ.
        stamp = 1_700_000_000 + number
        os.utime(hidden, (stamp, stamp))
        hidden.rename(self.input / f"{number:04d}.txt")

    def fault(self, point: str, action: str, batch_id: int, task: int = 0) -> Fault:
        """A fault that has not happened yet."""
        mark = self.directory / f"{point} {action} {batch_id}".replace(" ", "-")
        return Fault(point, action, batch_id, str(mark), task)

    def write_options(self, fault: Fault | None = None) -> dict[str, str]:
        """Options of the write."""
        options = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_server,
            "topic": self.topic,
            "checkpointLocation": str(self.checkpoint),
            **self.options,
        }
        return options if fault is None else {**options, "fault": fault.option()}

    def start(self, fault: Fault | None = None) -> subprocess.Popen[str]:
        """A run in its own process."""
        job = {
            "input": str(self.input),
            "options": self.write_options(fault),
            "master": self.master,
            "settings": self.settings,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink.query_job", json.dumps(job)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "SPARK_HOME": str(self._spark_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _spark_home(self) -> Path:
        """Its own: executors of a local cluster put their files there."""
        home = lean_spark_home(self.directory)
        assert home is not None, "an installed PySpark has a home"
        return home

    def run(self, fault: Fault | None = None) -> tuple[int, str]:
        """A run to its end: exit status, error text."""
        return ended(self.start(fault))

    def start_in(self, spark: SparkSession, fault: Fault | None = None) -> StreamingQuery:
        """A run in this session."""
        spark.dataSource.register(FaultySource)
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2)
        writer = lines.load(str(self.input)).writeStream.format(FORMAT)
        return writer.options(**self.write_options(fault)).trigger(availableNow=True).start()

    def run_in(self, spark: SparkSession, fault: Fault | None = None) -> str:
        """A run in this session to its end: the error's text, "" without one."""
        return outcome(self.start_in(spark, fault))

    # -- the output

    def partitions(self) -> list[TopicPartition]:
        with sync.Admin(self.cluster.bootstrap_server) as admin:
            described = admin.describe_topics([self.topic])[self.topic]
        return [TopicPartition(self.topic, each.partition) for each in described.partitions]

    def visible(self) -> Counter[str]:
        """Every value that readers of committed records see, and how often."""
        with sync.Admin(self.cluster.bootstrap_server) as admin:
            wait_for_markers(admin)
        found: Counter[str] = Counter()
        with sync.Consumer(
            self.cluster.bootstrap_server,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            partitions = self.partitions()
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(each) < ends[each] for each in partitions):
                for records in consumer.getmany(timeout_ms=200).values():
                    found.update(str(record.value, "utf-8") for record in records)
        return found

    def open_offsets(self) -> dict[TopicPartition, int]:
        """Offsets behind the last stable one, by partition that has any: the open work of a
        writer.
        """
        specs: dict[TopicPartition, int] = dict.fromkeys(self.partitions(), OffsetSpec.LATEST)
        with sync.Admin(self.cluster.bootstrap_server) as admin:
            wait_for_markers(admin)
            ends = admin.list_offsets(specs)
            stable = admin.list_offsets(specs, read_committed=True)
        gaps = {each: ends[each].offset - stable[each].offset for each in specs}
        return {each: gap for each, gap in gaps.items() if gap}

    def check_exactly_once(self, lines: list[str] | None = None) -> None:
        """Every line is stored once, and nothing is left open."""
        wanted = Counter(self.lines if lines is None else lines)
        found = self.visible()
        lost, twice = wanted - found, found - wanted
        with judging():
            assert not lost, f"{lost.total()} lost: {sorted(lost)[:3]}"
            assert not twice, f"{twice.total()} too many: {sorted(twice)[:3]}"
        assert not self.open_offsets()


def outcome(query: StreamingQuery) -> str:
    """Wait for a query: the error's text, "" without one."""
    from pyspark.errors import StreamingQueryException

    try:
        assert query.awaitTermination(RUN_LIMIT_S), "the query does not end"
    except StreamingQueryException as error:
        return str(error)
    return ""


def ended(process: subprocess.Popen[str], limit_s: float = RUN_LIMIT_S) -> tuple[int, str]:
    """Wait for a run, and take its JVM with it: exit status, error text."""
    try:
        _, errors = process.communicate(timeout=limit_s)
        return process.returncode, errors
    except subprocess.TimeoutExpired as error:
        told = (error.stderr or b"").decode(errors="replace")
        raise AssertionError(f"the run does not end within {limit_s} s: {told[-2000:]}") from None
    finally:
        kill(process)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a run and every process that it has started, if there are any left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def wait_for_file(path: Path, process: subprocess.Popen[str], limit_s: float = RUN_LIMIT_S) -> None:
    """Wait until a file exists; fail if the process ends before that."""

    def is_there() -> bool:
        if not path.exists() and process.poll() is not None:
            raise AssertionError(f"the run has ended before: {ended(process)}")
        return path.exists()

    until(is_there, what=str(path), deadline_s=limit_s)
