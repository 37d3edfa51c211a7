"""The jobs that are streaming queries: archive, transform, aggregate, mirror, repartition.

Owns the way from a pipeline's source to a frame and from a frame to a running query, with the
options that every job's query has in common; what `key`, `value`, `schema`, `malformed` of a source
and `key`, `value` of a sink mean; how a transform's Python function is found and its tables are
registered. Invariants: a query always has its pipeline's checkpoint and name, and an exactly-once
sink its id; what a transform needs to know about a record (topic, partition, offset, timestamp,
timestampType) stays a column beside `key` and `value`; the result of the transform is still the
stream; a function that returns something else is refused by name.

- `archive` without a transform keeps whole records, headers and timestamps too, so that `replay`
  can bring them back. Readers of the directory through Spark get each record once: Spark's list of
  files in `_spark_metadata` counts, and files of a batch that was given up are not in it.
- `transform` keeps the order of a partition's records as long as its step needs no shuffle.
- `aggregate` emits a window (in the output `append`) exactly once, when the watermark has passed
  its end, and drops what comes for it later: `watermark` says how late is too late.
- `mirror` keeps keys, values, headers, timestamps and partitions; offsets are the other cluster's
  own. Each record is written once, in the order of its partition. What would land in the sink's own
  ledger (which a pattern may match, too) is left out: that book is written by the sink alone.
- `repartition` keeps the records of a key in their order, and puts them where any producer that
  hashes as Java does puts that key, so that producers can move over: all records of a key lie in
  one partition of the source, which one task reads, in order, and writes, in order, with one
  producer. Keys that some producer has put into several partitions have no order to begin with.
  Records without a key go by the number of their partition, so those of one partition stay together
  and in order, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.client import KafkaError
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import (
    JOBS,
    Aggregate,
    ParquetSink,
    Pipeline,
    TopicSink,
    TopicSource,
    Transform,
)
from moldau.spark_connector.pipelines.output_claims import OutputClaim, claim_output
from moldau.spark_connector.pipelines.running import (
    BatchProgress,
    Running,
    RunningQuery,
    failure_line,
)
from moldau.spark_connector.pipelines.topics import admin_for, matching_topics, prepare_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


FORMAT: Final = "moldau"
_TIME: Final = "_moldau_event_time"
_WINDOW: Final = "_moldau_window"
JSON: Final = "json"
_PARSED: Final = "_moldau_parsed"
_MALFORMED: Final = "_moldau_malformed"
LOOK_S: Final = 5.0
"""How often a mirror looks for further topics that match its pattern."""


def records(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    return spark.readStream.format(FORMAT).options(**topic_source(pipeline).options).load()


def record_time() -> Column:
    """The column `timestamp`, null where a record has none (-1 ms): it then gets the time at which
    it is written, since no producer may send times before 1970.
    """
    from pyspark.sql import functions as f

    timestamp = f.col("timestamp")
    return f.when(timestamp >= f.timestamp_millis(f.lit(0)), timestamp).alias("timestamp")


def topic_source(pipeline: Pipeline) -> TopicSource:
    assert isinstance(pipeline.source, TopicSource), "checked with the file"
    return pipeline.source


def topic_sink(pipeline: Pipeline) -> TopicSink:
    assert isinstance(pipeline.sink, TopicSink), "checked with the file"
    return pipeline.sink


def sink_options(pipeline: Pipeline) -> dict[str, str]:
    """The connector's options for writing. A pipeline has one checkpoint, so a new one that comes
    to its sink would write everything again.
    """
    sink = topic_sink(pipeline)
    always = {"semantics": sink.semantics, "sinkId": sink.sink_id}
    if JOBS[pipeline.job].keeps_records:
        always["includeTimestamp"] = "true"
    return {"onNewQuery": "fail", **sink.options, **always}


def run_into(frame: DataFrame, pipeline: Pipeline) -> RunningQuery:
    """Start writing a streaming frame into the pipeline's sink. It is encoded for topics, and has a
    column `topic` where the job keeps them; for Parquet it has any columns.
    """
    sink = pipeline.sink
    writer = frame.writeStream.outputMode("append").queryName(pipeline.name)
    writer = writer.option("checkpointLocation", pipeline.checkpoint)
    if isinstance(sink, ParquetSink):
        writer = _into_parquet(writer, frame, sink, pipeline.name)
        claim = claim_output(frame.sparkSession, pipeline)
        try:
            return start_query(writer, pipeline, claim)
        except BaseException:
            claim.release()
            raise
    writer = writer.format(FORMAT).options(**sink_options(pipeline))
    if not JOBS[pipeline.job].keeps_topic:
        writer = writer.option("topic", sink.topic)
    return start_query(writer, pipeline)


def start_query(
    writer: DataStreamWriter, pipeline: Pipeline, claim: OutputClaim | None = None
) -> RunningQuery:
    """Start a query under the pipeline's trigger; its claim is released when it has ended."""
    if pipeline.every_ms is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{pipeline.every_ms} milliseconds")
    return RunningQuery(pipeline.name, writer.start(), claim)


def _into_parquet(
    writer: DataStreamWriter, frame: DataFrame, sink: ParquetSink, name: str
) -> DataStreamWriter:
    missing = [each for each in sink.partition_by if each not in frame.columns]
    if missing:
        raise PipelineFailed(
            f"{name}: sink.partition.by: there is no column {', '.join(missing)}; there are "
            f"{', '.join(frame.columns)}"
        )
    writer = writer.format("parquet").option("path", sink.path)
    writer = writer.option("compression", sink.compression)
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer


def start_rows(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start an archive, transform or aggregate. Raises: PipelineFailed."""
    frame = decoded(records(spark, pipeline), topic_source(pipeline))
    frame = transformed(spark, frame, pipeline)
    if pipeline.aggregate is not None:
        frame = aggregated(frame, pipeline.aggregate)
    if isinstance(pipeline.sink, TopicSink):
        frame = encoded(frame, pipeline.sink)
    return run_into(frame, pipeline)


def aggregated(frame: DataFrame, wanted: Aggregate) -> DataFrame:
    """One row per window and group: window_start, window_end, the groups' columns, the measures."""
    from pyspark.sql import functions as f

    timed = frame.withColumn(_TIME, f.expr(wanted.time).cast("timestamp"))
    timed = timed.withWatermark(_TIME, wanted.watermark)
    window = f.window(f.col(_TIME), wanted.window, wanted.slide or wanted.window).alias(_WINDOW)
    groups = [f.expr(text).alias(name) for name, text in wanted.by.items()]
    measures = [f.expr(text).alias(name) for name, text in wanted.measures.items()]
    counted = timed.groupBy(window, *groups).agg(*measures)
    return counted.select(
        f.col(f"{_WINDOW}.start").alias("window_start"),
        f.col(f"{_WINDOW}.end").alias("window_end"),
        *(f.col(f"`{name}`") for name in (*wanted.by, *wanted.measures)),
    )


def start_repartition(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    count = topic_sink(pipeline).partition_count
    assert count is not None, "checked with the file"
    return run_into(repartitioned(records(spark, pipeline), count), pipeline)


def repartitioned(frame: DataFrame, partition_count: int) -> DataFrame:
    """The columns to write; where `partition` is null the key decides."""
    from pyspark.sql import functions as f

    by_number = f.when(f.col("key").isNull(), f.col("partition") % partition_count)
    return frame.select(by_number.alias("partition"), "key", "value", "headers", record_time())


def decoded(frame: DataFrame, source: TopicSource) -> DataFrame:
    """Records with key and value as the source says: text, bytes, or a struct out of JSON."""
    from pyspark.sql import functions as f

    if source.key_format == "string":
        frame = frame.withColumn("key", f.col("key").cast("string"))
    if source.value_format == "string":
        return frame.withColumn("value", f.col("value").cast("string"))
    if source.value_format != JSON:
        return frame
    assert source.schema is not None, "checked with the file"
    text = f.col("value").cast("string")
    if source.malformed == "fail":
        return frame.withColumn("value", f.from_json(text, source.schema, {"mode": "FAILFAST"}))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
    schema = f"{source.schema}, {_MALFORMED} STRING"
    frame = frame.withColumn(_PARSED, f.from_json(text, schema, options))
    fits = f.col(f"{_PARSED}.{_MALFORMED}").isNull()
    if source.malformed == "drop":
        frame = frame.where(fits)
    value = f.when(fits, f.col(_PARSED).dropFields(_MALFORMED))
    return frame.withColumn("value", value).drop(_PARSED)


def encoded(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as a sink takes them: `value`, and `key` and `headers` where there are any. A column
    `partition` is that of the record that was read, and not where the result belongs. Raises:
    PipelineFailed
    """
    from pyspark.sql import functions as f

    columns: list[Column] = []
    if sink.key is not None:
        columns.append(_as_bytes(frame, f.expr(sink.key)).alias("key"))
    elif "key" in frame.columns:
        columns.append(_as_bytes(frame, f.col("key")).alias("key"))
    if sink.value is not None and sink.value != JSON:
        value = _as_bytes(frame, f.expr(sink.value))
    elif sink.value is None and "value" in frame.columns:
        value = _as_bytes(frame, f.col("value"))
    else:
        beside = {"headers"} if sink.key is not None else {"headers", "key"}
        rest = [f.col(f"`{name}`") for name in frame.columns if name not in beside]
        if not rest:
            raise PipelineFailed("there are no columns to make a value of")
        value = f.to_json(f.struct(*rest), {"ignoreNullFields": "false"})
    columns.append(value.alias("value"))
    if "headers" in frame.columns:
        columns.append(f.col("headers"))
    return frame.select(*columns)


def _as_bytes(frame: DataFrame, column: Column) -> Column:
    """Text and bytes as they are, structures as JSON, anything else as its text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    kind = frame.select(column.alias("it")).schema["it"].dataType
    if isinstance(kind, StringType | BinaryType):
        return column
    if isinstance(kind, StructType | ArrayType | MapType):
        return f.to_json(column, {"ignoreNullFields": "false"})
    return column.cast("string")


def transformed(spark: SparkSession, frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The frame after the pipeline's transform, unchanged when it has none. Raises: PipelineFailed:
    SQL that Spark cannot plan, or a function that fails or returns no stream
    """
    from pyspark.errors import PySparkException

    step = pipeline.transform
    if step is None:
        return frame
    try:
        result = _with_tables(spark, frame, step, pipeline)
    except PySparkException as error:
        text = " ".join(str(error).split("JVM stacktrace:")[0].split())
        raise PipelineFailed(f"{pipeline.name}: transform: {text}") from error
    if not result.isStreaming:
        what = (
            "the SQL does not read from source" if step.sql else f"{step.python} returns no stream"
        )
        raise PipelineFailed(f"{pipeline.name}: transform: {what}")
    return result


def _with_tables(
    spark: SparkSession, frame: DataFrame, step: Transform, pipeline: Pipeline
) -> DataFrame:
    from pyspark.sql import DataFrame

    for name, table in step.tables.items():
        reader = spark.read.format(table.format).options(**table.options)
        if table.schema is not None:
            reader = reader.schema(table.schema)
        reader.load(table.path).createOrReplaceTempView(name)
    if step.sql is not None:
        # The views are looked up while the plan is made, so the next pipeline may use their names.
        frame.createOrReplaceTempView("source")
        return spark.sql(step.sql)
    assert step.python is not None, "checked with the file"
    function = load_function(step.python, pipeline.directory, spark)
    result = function(frame)
    if not isinstance(result, DataFrame):
        raise PipelineFailed(
            f"{pipeline.name}: transform: {step.python} returns {type(result).__name__}, not a "
            "DataFrame"
        )
    return result


def load_function(
    name: str, directory: str, spark: SparkSession | None = None
) -> Callable[[DataFrame], object]:
    """The function MODULE:NAME; the module may lie beside the pipeline's file.

    The functions of a module that does go to Spark's workers by value: to import it there would run
    its decorators, and those that name types want a session. The file goes along, for other modules
    that import it. Raises: PipelineFailed: no such module or function, or it does not load
    """
    from pyspark.cloudpickle import register_pickle_by_value

    module_name, _, function_name = name.partition(":")
    beside = Path(directory, *module_name.split(".")).with_suffix(".py")
    if beside.exists() and directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        where = f"neither installed nor in {directory}" if error.name == module_name else str(error)
        raise PipelineFailed(f"transform.python: {module_name}: {where}") from None
    except Exception as error:
        raise PipelineFailed(f"transform.python: {module_name}: {error!r}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise PipelineFailed(f"transform.python: {module_name} has no function {function_name}")
    if spark is not None and beside.exists():
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        if "." not in module_name:
            spark.sparkContext.addPyFile(str(beside))
    found: Callable[[DataFrame], object] = function
    return found


def start_mirror(spark: SparkSession, pipeline: Pipeline) -> Running:
    source = topic_source(pipeline)
    if source.topics:
        return _query(spark, pipeline)

    def start_with(names: Collection[str]) -> RunningQuery:
        options = {**source.options, "subscribe": ",".join(sorted(names))}
        del options["subscribePattern"]
        return _query(spark, replace(pipeline, source=replace(source, options=options)))

    def find() -> list[str]:
        with admin_for(source.options) as admin:
            return matching_topics(admin, source)

    try:
        names = find()
    except KafkaError as error:
        raise PipelineFailed(f"{pipeline.name}: {error}") from error
    return MatchingMirror(
        pipeline.name,
        frozenset(names),
        start_with,
        find,
        lambda: prepare_topics(pipeline),
        is_endless=pipeline.every_ms is not None,
        look_s=LOOK_S,
    )


def _query(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    return run_into(mirrored(records(spark, pipeline), topic_sink(pipeline)), pipeline)


class MatchingMirror:
    """A mirror of whatever matches a pattern.

    The query itself reads topics by their names, since a topic that only the pattern found would be
    written to a topic that does not exist: brokers would create it, with their own number of
    partitions. When more topics match, the query ends after its batch, their targets are made, and
    it goes on with all of them from its checkpoint. Without any topic there is no query yet.

    Args:
        start: starts the query for these topics.
        find: the topics that match now; asked in its own thread.
        prepare: makes the targets.
        is_endless: goes on looking; otherwise what exists at the start is all.
    """

    def __init__(
        self,
        name: str,
        topics: frozenset[str],
        start: Callable[[Collection[str]], RunningQuery],
        find: Callable[[], Collection[str]],
        prepare: Callable[[], None],
        *,
        is_endless: bool,
        look_s: float,
    ) -> None:
        self.name = name
        self._topics = topics
        self._start = start
        self._find = find
        self._prepare = prepare
        self._is_endless = is_endless
        self._look_s = look_s
        self._found = topics
        self._failure: str | None = None
        self._progress: list[BatchProgress] = []
        self._end = threading.Event()
        self._query = start(topics) if topics else None
        if is_endless:
            threading.Thread(target=self._watch, name=f"mirror {name}", daemon=True).start()

    def is_over(self) -> bool:
        if self._failure is not None:
            return True
        if self._query is not None:
            has_more = not self._topics.issuperset(self._found)
            if has_more and not self._end.is_set():
                self._query.stop_after_batch()
            if not self._query.is_over():
                return False
            if self._query.failure() is not None or self._end.is_set() or not has_more:
                self._end.set()
                return True
        elif self._end.is_set() or not self._is_endless:
            return True
        if self._found:
            self._go_on()
        return self._failure is not None

    def new_progress(self) -> Sequence[BatchProgress]:
        found, self._progress = self._progress, []
        return found if self._query is None else [*found, *self._query.new_progress()]

    def stop_after_batch(self) -> None:
        self._end.set()
        if self._query is not None:
            self._query.stop_after_batch()

    def stop_now(self) -> None:
        self._end.set()
        if self._query is not None:
            self._query.stop_now()

    def failure(self) -> str | None:
        return self._failure if self._query is None else self._failure or self._query.failure()

    def _go_on(self) -> None:
        """Start (again) with all topics that were found."""
        from pyspark.errors import PySparkException

        if self._query is not None:
            self._progress += self._query.new_progress()
        self._topics = self._found
        try:
            self._prepare()
            self._query = self._start(self._topics)
        except PipelineFailed as error:
            self._failure = str(error)
        except PySparkException as error:
            self._failure = failure_line(str(error))
        if self._failure is not None:
            self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(self._look_s):
            try:
                self._found = frozenset(self._find())
            except KafkaError:
                continue  # no broker answers: the query reports that


def mirrored(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """The columns to write; `{topic}` in the sink's topic is the record's own topic."""
    from pyspark.sql import functions as f

    parts = sink.topic.split("{topic}")
    pieces = [piece for part in parts[:-1] for piece in (f.lit(part), f.col("topic"))]
    topic = f.concat(*pieces, f.lit(parts[-1])).alias("topic")
    found = frame.select(topic, "partition", "key", "value", "headers", record_time())
    return found.where(f.col("topic") != sink.ledger_topic)
