"""The job `replay`: an archive back into topics.

Owns the cutting of an archive into chunks by offset, the two small files beside the checkpoint that
say which archive it was and which chunks are done, and the thread that writes chunk after chunk.
Each chunk is one batch write with its own transaction id, so that a chunk which was written
before a crash is not written again. Invariants: the plan is made once, and a later run of the same
replay goes by it, so that chunk n always has the same records, also in an archive that has grown;
each archived record is written once, and the records of a partition in the order of their offsets,
since chunks are ranges of offsets, go one after the other, and each task writes whole partitions
sorted by offset. A chunk opens only the files that have records of it, however many the archive
has.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from moldau.spark_connector.errors import PipelineFailed, ReplayDiffers
from moldau.spark_connector.pipelines.jobs.streams import FORMAT, mirrored, sink_options, topic_sink
from moldau.spark_connector.pipelines.model import ArchiveSource, Pipeline
from moldau.spark_connector.pipelines.running import BatchProgress, failure_line
from moldau.spark_connector.pipelines.small_files import SmallFiles, small_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAN_FILE: Final = "replay-plan.json"
DONE_FILE: Final = "replay-done.json"
FORMAT_VERSION: Final = 2
NAMED_BY_PLAN: Final = 1
"""The version of earlier releases: it does not know the sink's topic, and names chunks by the plan,
so that another plan wrote everything again."""
MAX_CELLS: Final = 100_000
"""How many pieces an archive is cut into at most before they are put together to chunks."""
SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""What `archive` writes; said again because Spark guesses the types of partition directories."""
_NEEDED: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


class ArchivedRange(NamedTuple):
    """The records of one partition in one file of an archive; `last_offset` is in it."""

    file: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int


class Chunk(NamedTuple):
    """Offsets from `first_offset` up to `end_offset` (exclusive) of all partitions together."""

    first_offset: int
    end_offset: int
    row_count: int


class Cells(NamedTuple):
    """How offsets are counted before they become chunks: cell n begins at first + n × size."""

    first_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Which records are replayed, and in which steps.

    `ends` is the last offset of each partition, plus one, as it was when the plan was made: by
    topic, then by partition (as text, as in JSON). Chunks are whole cells, follow one another by
    their offsets, and have records. `target` is the sink's topic, as the file says it.
    """

    path: str
    topics: tuple[str, ...]
    from_ms: int | None
    until_ms: int | None
    ends: Mapping[str, Mapping[str, int]]
    cells: Cells
    chunks: tuple[Chunk, ...]
    target: str = ""
    version: int = FORMAT_VERSION

    def chunk_name(self, pipeline: str, number: int) -> str:
        """The name of a chunk's batch write.

        The same for every plan of a pipeline with this target: the sink refuses chunk n of another
        plan when it holds other records than the one that was written.
        """
        text = f"{pipeline} {self.target}"
        if self.version == NAMED_BY_PLAN:
            shown = asdict(self)
            del shown["target"], shown["version"]
            text = json.dumps(shown, sort_keys=True)
        return f"replay-{hashlib.sha256(text.encode()).hexdigest()[:16]}-{number}"

    def counted_otherwise(self, counts: Mapping[int, int], done_count: int) -> str | None:
        """The first chunk still to be done that has more or fewer records now, by the counts of the
        cells; None: all fit.
        """
        found = [0] * len(self.chunks)
        begins = [each.first_offset for each in self.chunks]
        for cell, count in counts.items():
            number = bisect_right(begins, self.cells.first_offset + cell * self.cells.size) - 1
            found[max(0, number)] += count
        for number in range(done_count, len(self.chunks)):
            wanted = self.chunks[number]
            if found[number] != wanted.row_count:
                return (
                    f"offsets {wanted.first_offset} to {wanted.end_offset - 1}: there were "
                    f"{wanted.row_count:,} records, and now there are {found[number]:,}"
                )
        return None

    def rows_after(self, chunk: int) -> int:
        return sum(each.row_count for each in self.chunks[chunk + 1 :])

    def is_for(self, source: ArchiveSource, target: str) -> bool:
        mine = (self.path, self.topics, self.from_ms, self.until_ms)
        is_target = self.version == NAMED_BY_PLAN or self.target == target
        return is_target and mine == (source.path, source.topics, source.from_ms, source.until_ms)


def cells_of(ranges: Sequence[ArchivedRange], records_per_chunk: int) -> Cells:
    """The steps in which to count the records, so that chunks can be made of the counts.

    A cell takes as many offsets of each partition as make up a chunk together, so no cell holds
    more than a chunk may (unless offsets reach so far that there would be too many cells).
    """
    if not ranges:
        return Cells(0, 1)
    first = min(each.first_offset for each in ranges)
    span = max(each.last_offset for each in ranges) + 1 - first
    partition_count = len({(each.topic, each.partition) for each in ranges})
    return Cells(first, max(1, records_per_chunk // partition_count, -(-span // MAX_CELLS)))


def make_plan(
    source: ArchiveSource,
    ranges: Iterable[ArchivedRange],
    cells: Cells,
    counts: Mapping[int, int],
    target: str,
) -> ReplayPlan:
    """A plan for what is in the archive. `counts` says how many records of `ranges` a cell has;
    cells without any may be left out.
    """
    ends: dict[str, dict[str, int]] = {}
    for each in ranges:
        of_topic = ends.setdefault(each.topic, {})
        number = str(each.partition)
        of_topic[number] = max(of_topic.get(number, 0), each.last_offset + 1)
    chunks: list[Chunk] = []
    for cell in sorted(cell for cell, count in counts.items() if count):
        first = cells.first_offset + cell * cells.size
        end, count = first + cells.size, counts[cell]
        if chunks and chunks[-1].row_count + count <= source.records_per_chunk:
            last = chunks.pop()
            first, count = last.first_offset, last.row_count + count
        chunks.append(Chunk(first, end, count))
    return ReplayPlan(
        source.path,
        source.topics,
        source.from_ms,
        source.until_ms,
        ends,
        cells,
        tuple(chunks),
        target,
    )


class ReplayBook:
    """The plan and the number of chunks done, kept in the pipeline's checkpoint directory.

    The chunks' transactions make sure that a chunk is written once; this only saves the reading.
    """

    def __init__(self, pipeline: Pipeline, files: SmallFiles) -> None:
        self._name = pipeline.name
        self._files = files

    def plan(self, source: ArchiveSource, target: str) -> ReplayPlan | None:
        """The plan of an earlier run; None when there was none. Raises: PipelineFailed: it was for
        something else, or cannot be read
        """
        document = self._read(PLAN_FILE)
        if document is None:
            return None
        if document.get("version") not in (NAMED_BY_PLAN, FORMAT_VERSION):
            raise PipelineFailed(
                f"{self._name}: {self._files.place(PLAN_FILE)} is of another version"
            )
        with self._using(PLAN_FILE):
            document["topics"] = tuple(document["topics"])
            document["chunks"] = tuple(Chunk(*map(int, each)) for each in document["chunks"])
            document["cells"] = Cells(*map(int, document["cells"]))
            plan = ReplayPlan(**document)
        if not plan.is_for(source, target):
            raise PipelineFailed(
                f"{self._name}: the checkpoint {self._files.directory} is that of a replay of "
                f"{plan.path} with other topics or times, or into another topic: give this one a "
                "checkpoint of its own"
            )
        return plan

    def keep_plan(self, plan: ReplayPlan) -> None:
        self._write(PLAN_FILE, asdict(plan))

    def done_count(self) -> int:
        document = self._read(DONE_FILE)
        if document is None:
            return 0
        with self._using(DONE_FILE):
            return int(document["chunks"])

    def keep_done_count(self, count: int) -> None:
        self._write(DONE_FILE, {"chunks": count})

    def _read(self, name: str) -> dict[str, Any] | None:
        with self._using(name):
            content = self._files.read(name)
            if content is None:
                return None
            document = json.loads(content)
            if not isinstance(document, dict):
                raise ValueError("not a JSON object")
        return document

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        with self._using(name):
            self._files.write(name, json.dumps(document).encode())

    @contextmanager
    def _using(self, name: str) -> Iterator[None]:
        """A file that cannot be used, or has something else in it, fails the pipeline."""
        try:
            yield
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise PipelineFailed(f"{self._name}: {self._files.place(name)}: {error}") from error


def start(spark: SparkSession, pipeline: Pipeline) -> RunningReplay:
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
    """The archive's records that are to be replayed. Raises: PipelineFailed: the archive holds
    something else than whole records
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
    """The records that existed when the plan was made."""
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
    from pyspark.sql import functions as f

    if source.topics:
        frame = frame.where(f.col("topic").isin(*source.topics))
    for limit_ms, operator in ((source.from_ms, ">="), (source.until_ms, "<")):
        if limit_ms is not None:
            frame = frame.where(f"timestamp {operator} timestamp_millis({limit_ms}L)")
    return frame


def _ranges(archive: DataFrame) -> list[ArchivedRange]:
    from pyspark.sql import functions as f

    placed = archive.select(
        f.col("_metadata.file_path").alias("file"), "topic", "partition", "offset"
    )
    rows = placed.groupBy("file", "topic", "partition").agg(f.min("offset"), f.max("offset"))
    return [ArchivedRange(_path_of(row[0]), *row[1:]) for row in rows.collect()]


def _path_of(url: str) -> str:
    """A file's name as Spark reads it; it names files by their URLs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}" if parts.scheme else unquote(url)


def _counts(archive: DataFrame, cells: Cells) -> dict[int, int]:
    from pyspark.sql import functions as f

    cell = f.expr(f"(offset - {cells.first_offset}) div {cells.size}")
    return {row[0]: row[1] for row in archive.groupBy(cell.alias("cell")).count().collect()}


class RunningReplay:
    """A replay in its own thread."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        ranges: Sequence[ArchivedRange],
        plan: ReplayPlan,
        book: ReplayBook,
    ) -> None:
        self.name = pipeline.name
        self._group = f"replay-{self.name}"
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
        options = sink_options(self._pipeline)
        if options["semantics"] == "exactly-once":
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
