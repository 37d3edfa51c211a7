"""The job `replay`: an archive back into topics.

Chunk after chunk, each one batch write with a transaction id of its own, so that a chunk which was
written before a crash is not written again. Invariants: each archived record once, and the records
of a partition in the order of their offsets, since chunks are ranges of offsets, go one after the
other, and each task writes whole partitions sorted by offset. A chunk opens only the files that
have records of it, however many the archive has.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from moldau.spark_connector.errors import ReplayDiffers
from moldau.spark_connector.pipelines.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs.streams import FORMAT, sink_options, topic_sink
from moldau.spark_connector.pipelines.model import ArchiveSource
from moldau.spark_connector.pipelines.progress import BatchProgress
from moldau.spark_connector.pipelines.replay_plan import (
    ArchivedRange,
    Cells,
    Chunk,
    ReplayBook,
    ReplayPlan,
    cells_of,
    make_plan,
)
from moldau.spark_connector.pipelines.running import failure_line
from moldau.spark_connector.pipelines.small_files import small_files

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    source = pipeline.source
    assert isinstance(source, ArchiveSource), "checked with the file"
    archive = archived(spark, source, pipeline.name)
    ranges = _ranges(archive)
    book = ReplayBook(pipeline, small_files(spark, pipeline.checkpoint))
    target = topic_sink(pipeline).topic
    plan = book.plan(source, target)
    if plan is None:
        cells = cells_of(ranges, source.records_per_chunk)
        plan = make_plan(source, ranges, cells, _counts(archive, cells), target)
        book.keep_plan(plan)
    else:
        _refuse_changes(_until(archive, plan), plan, book.done_count(), pipeline)
    return RunningReplay(spark, pipeline, ranges, plan, book)


def archived(spark: SparkSession, source: ArchiveSource, name: str) -> DataFrame:
    """The archive's records that are to be replayed.

    Raises:
        PipelineFailed: the archive holds something else than whole records.
    """
    found = spark.read.parquet(source.path)
    missing = [each for each in _NEEDED if each not in found.columns]
    if missing:
        raise PipelineFailed(
            f"{name}: {source.path} has no column {', '.join(missing)}: only what the job archive "
            "has written without a transform can be replayed"
        )
    return _selected(spark.read.schema(SCHEMA).parquet(source.path), source)


def _refuse_changes(
    archive: DataFrame, plan: ReplayPlan, done_count: int, pipeline: Pipeline
) -> None:
    """Raises: PipelineFailed: the archive has lost records since the replay began."""
    if done_count >= len(plan.chunks):
        return
    changed = plan.counted_otherwise(_counts(archive, plan.cells), done_count)
    if changed is not None:
        raise PipelineFailed(
            f"{pipeline.name}: {plan.path} is not what it was when this replay began: {changed}. "
            "Bring the files back, or begin anew with another checkpoint and sink.id"
        )


def _until(frame: DataFrame, plan: ReplayPlan) -> DataFrame:
    """The records that were there when the plan was made."""
    from pyspark.sql import functions as f

    ends = frame.sparkSession.createDataFrame(
        [
            (topic, int(partition), end)
            for topic, partitions in plan.ends.items()
            for partition, end in partitions.items()
        ],
        "topic STRING, partition INT, archive_end BIGINT",
    )
    return frame.join(f.broadcast(ends), ["topic", "partition"]).where("offset < archive_end")


def _selected(frame: DataFrame, source: ArchiveSource) -> DataFrame:
    """The topics and times that are wanted."""
    from pyspark.sql import functions as f

    if source.topics:
        frame = frame.where(f.col("topic").isin(*source.topics))
    for limit_ms, operator in ((source.from_ms, ">="), (source.until_ms, "<")):
        if limit_ms is not None:
            frame = frame.where(f"timestamp {operator} timestamp_millis({limit_ms}L)")
    return frame


def _ranges(archive: DataFrame) -> list[ArchivedRange]:
    """Which offsets of which partitions each file has."""
    from pyspark.sql import functions as f

    placed = archive.select(
        f.col("_metadata.file_path").alias("file"), "topic", "partition", "offset"
    )
    rows = placed.groupBy("file", "topic", "partition").agg(f.min("offset"), f.max("offset"))
    return [ArchivedRange(_path_of(row[0]), *row[1:]) for row in rows.collect()]


def _path_of(url: str) -> str:
    """A file's name as Spark reads it; it tells of files by their URLs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}" if parts.scheme else unquote(url)


def _counts(archive: DataFrame, cells: Cells) -> dict[int, int]:
    from pyspark.sql import functions as f

    cell = f.expr(f"(offset - {cells.first_offset}) div {cells.size}")
    return {row[0]: row[1] for row in archive.groupBy(cell.alias("cell")).count().collect()}


class RunningReplay:
    """A replay in a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        ranges: Sequence[ArchivedRange],
        plan: ReplayPlan,
        book: ReplayBook,
    ) -> None:
        self.name = pipeline.name
        self._spark = spark
        self._pipeline = pipeline
        self._ranges = ranges
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
            for number in range(self._book.done_count(), len(self._plan.chunks)):
                if self._stop.is_set():
                    break
                self._do(number, self._plan.chunks[number])
        except PipelineFailed as error:
            self._failure = str(error)
        except (PySparkException, Py4JError) as error:
            self._failure = None if self._given_up else self._failure_line(str(error))
        else:
            self._failure = None

    def _failure_line(self, text: str) -> str:
        line = failure_line(text)
        if line.startswith(ReplayDiffers.__name__):
            sink_id = topic_sink(self._pipeline).sink_id
            line = (
                f"{line} Here: a replay with this name and sink.id has written other records, of "
                "an archive that was another one, or cut in another way (topics, from, until, "
                "records.per.batch). Go on with its checkpoint; or give this one a name and an "
                "output of its own; or, to write everything once more, `moldau pipeline sinks "
                f"forget {sink_id}` first"
            )
        return line

    def _do(self, number: int, chunk: Chunk) -> None:
        began = time.monotonic()
        sink = topic_sink(self._pipeline)
        options = {**sink_options(sink), "includeTimestamp": "true"}
        if sink.semantics == "exactly-once":
            options["txnId"] = self._plan.chunk_name(self.name, number)
        self._rows_of(chunk).write.format(FORMAT).options(**options).mode("append").save()
        self._book.keep_done_count(number + 1)
        duration_ms = max(1, round((time.monotonic() - began) * 1_000))
        progress = BatchProgress(
            pipeline=self.name,
            batch_id=number,
            row_count=chunk.row_count,
            duration_ms=duration_ms,
            rows_per_second=chunk.row_count * 1_000 / duration_ms,
            lag=self._plan.rows_after(number),
            end_offsets={},
        )
        with self._lock:
            self._progress.append(progress)

    def _rows_of(self, chunk: Chunk) -> DataFrame:
        """The chunk's records, each partition in one task and in its order."""
        from pyspark.sql import functions as f

        from moldau.spark_connector.pipelines.jobs.mirror import mirrored

        source = self._pipeline.source
        assert isinstance(source, ArchiveSource), "checked with the file"
        first, end = chunk.first_offset, chunk.end_offset
        files = {
            each.file
            for each in self._ranges
            if each.first_offset < end and each.last_offset >= first
        }
        reader = self._spark.read.schema(SCHEMA).option("basePath", source.path)
        frame = _selected(reader.parquet(*sorted(files)), source)
        offset = f.col("offset")
        frame = _until(frame.where((offset >= first) & (offset < end)), self._plan)
        frame = frame.repartition("topic", "partition")
        frame = frame.sortWithinPartitions("topic", "partition", "offset")
        return mirrored(frame, topic_sink(self._pipeline))
