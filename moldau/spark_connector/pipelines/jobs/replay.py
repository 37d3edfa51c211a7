"""The job `replay`: an archive back into topics.

Chunk after chunk, each one batch write with a transaction id of its own, so that a chunk which was
written before a crash is not written again. Invariants: each archived record once, and the records
of a partition in the order of their offsets, since chunks are ranges of offsets, go one after the
other, and each task writes whole partitions sorted by offset.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.pipelines.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs.streams import FORMAT, sink_options, topic_sink
from moldau.spark_connector.pipelines.model import ArchiveSource
from moldau.spark_connector.pipelines.progress import BatchProgress
from moldau.spark_connector.pipelines.replay_plan import ReplayBook, ReplayPlan, make_plan
from moldau.spark_connector.pipelines.running import failure_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline

SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""What `archive` writes; said again because Spark guesses the types of partition directories."""

_NEEDED: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


def start(spark: SparkSession, pipeline: Pipeline) -> RunningReplay:
    """Start it. Raises: PipelineFailed."""
    assert isinstance(pipeline.source, ArchiveSource), "checked with the file"
    archive = archived(spark, pipeline.source, pipeline.name)
    book = ReplayBook(pipeline)
    plan = book.plan(pipeline.source)
    if plan is None:
        plan = make_plan(pipeline.source, _ranges(archive))
        plan = replace(plan, row_counts=_row_counts(archive, plan))
        book.keep_plan(plan)
    return RunningReplay(spark, pipeline, archive, plan, book)


def archived(spark: SparkSession, source: ArchiveSource, name: str) -> DataFrame:
    """The archive's records that are to be replayed.

    Raises:
        PipelineFailed: the archive holds something else than whole records.
    """
    from pyspark.sql import functions as f

    found = spark.read.parquet(source.path)
    missing = [each for each in _NEEDED if each not in found.columns]
    if missing:
        raise PipelineFailed(
            f"{name}: {source.path} has no column {', '.join(missing)}: only what the job archive "
            "has written without a transform can be replayed"
        )
    frame = spark.read.schema(SCHEMA).parquet(source.path)
    if source.topics:
        frame = frame.where(f.col("topic").isin(*source.topics))
    for limit_ms, operator in ((source.from_ms, ">="), (source.until_ms, "<")):
        if limit_ms is not None:
            frame = frame.where(f"timestamp {operator} timestamp_millis({limit_ms}L)")
    return frame


def _ranges(archive: DataFrame) -> Iterator[tuple[str, int, int, int]]:
    from pyspark.sql import functions as f

    rows = archive.groupBy("topic", "partition").agg(f.min("offset"), f.max("offset")).collect()
    return ((row[0], row[1], row[2], row[3]) for row in rows)


def _row_counts(archive: DataFrame, plan: ReplayPlan) -> dict[str, int]:
    from pyspark.sql import functions as f

    chunk = f.expr(f"cast((offset - {plan.first_offset}) div {plan.stride} AS string)")
    rows = archive.groupBy(chunk.alias("chunk")).count().collect()
    return {row[0]: row[1] for row in rows}


class RunningReplay:
    """A replay in a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        archive: DataFrame,
        plan: ReplayPlan,
        book: ReplayBook,
    ) -> None:
        self.name = pipeline.name
        self._spark = spark
        self._pipeline = pipeline
        self._archive = archive
        self._plan = plan
        self._book = book
        self._stop = threading.Event()
        self._given_up = False
        self._failure: str | None = "ended by an error that nobody has thought of: see the log"
        self._lock = threading.Lock()
        self._progress: list[BatchProgress] = []
        self._thread = threading.Thread(target=self._work, name=f"replay {self.name}", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def new_progress(self) -> list[BatchProgress]:
        with self._lock:
            found, self._progress = self._progress, []
        return found

    def stop_after_batch(self) -> None:
        self._stop.set()

    def stop_now(self) -> None:
        self._given_up = True
        self._stop.set()
        self._spark.sparkContext.cancelJobGroup(self._group)
        self._thread.join()

    def failure(self) -> str | None:
        return self._failure if self.is_over() else None

    @property
    def _group(self) -> str:
        return f"replay-{self.name}"

    def _work(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            self._spark.sparkContext.setJobGroup(self._group, f"replay {self.name}", True)
            for chunk in range(self._book.done_count(), self._plan.chunk_count):
                if self._stop.is_set():
                    break
                if self._plan.rows_in(chunk):
                    self._do(chunk)
        except PipelineFailed as error:
            self._failure = str(error)
        except (PySparkException, Py4JError) as error:
            self._failure = None if self._given_up else failure_line(str(error))
        else:
            self._failure = None

    def _do(self, chunk: int) -> None:
        began = time.monotonic()
        sink = topic_sink(self._pipeline)
        options = {**sink_options(sink), "includeTimestamp": "true"}
        if sink.semantics == "exactly-once":
            options["txnId"] = f"{sink.sink_id}-{chunk}"
        writer = self._rows_of(chunk).write.format(FORMAT).options(**options).mode("append")
        writer.save()
        self._book.keep_done_count(chunk + 1)
        row_count = self._plan.rows_in(chunk)
        duration_ms = max(1, round((time.monotonic() - began) * 1_000))
        progress = BatchProgress(
            pipeline=self.name,
            batch_id=chunk,
            row_count=row_count,
            duration_ms=duration_ms,
            rows_per_second=row_count * 1_000 / duration_ms,
            lag=self._plan.rows_after(chunk),
            end_offsets={},
        )
        with self._lock:
            self._progress.append(progress)

    def _rows_of(self, chunk: int) -> DataFrame:
        """The chunk's records, each partition in one task and in its order."""
        from pyspark.sql import functions as f

        from moldau.spark_connector.pipelines.jobs.mirror import mirrored

        first, end = self._plan.offsets_of(chunk)
        offset = f.col("offset")
        ends = self._spark.createDataFrame(
            [
                (topic, int(partition), last)
                for topic, partitions in self._plan.ends.items()
                for partition, last in partitions.items()
            ],
            "topic STRING, partition INT, archive_end BIGINT",
        )
        frame = self._archive.where((offset >= first) & (offset < end))
        frame = frame.join(f.broadcast(ends), ["topic", "partition"]).where("offset < archive_end")
        frame = frame.repartition("topic", "partition")
        frame = frame.sortWithinPartitions("topic", "partition", "offset")
        return mirrored(frame, topic_sink(self._pipeline).topic)
