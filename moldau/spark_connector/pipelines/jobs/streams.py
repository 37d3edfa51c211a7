"""The jobs that are one streaming query: archive, transform, aggregate, repartition.

Owns the way from a pipeline's source to a frame and from a frame to a running query, with the
options that every job's query has in common. Invariants: a query always has its pipeline's
checkpoint and name, and an exactly-once sink its id.

- `archive` without a transform keeps whole records, headers and timestamps too, so that `replay`
  can bring them back. Readers of the directory through Spark get each record once: Spark's list of
  files in `_spark_metadata` counts, and files of a batch that was given up are not in it.
- `transform` keeps the order of a partition's records as long as its step needs no shuffle.
- `aggregate` emits a window (in the output `append`) exactly once, when the watermark has passed
  its end, and drops what comes for it later: `watermark` says how late is too late.
- `repartition` keeps the records of a key in their order, and puts them where any producer that
  hashes as Java does puts that key, so that producers can move over: all records of a key lie in
  one partition of the source, which one task reads, in order, and writes, in order, with one
  producer. Keys that some producer has put into several partitions have no order to begin with.
  Records without a key go by the number of their partition, so those of one partition stay together
  and in order, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs.rows import decoded, encoded, transformed
from moldau.spark_connector.pipelines.model import (
    Aggregate,
    ParquetSink,
    Pipeline,
    TopicSink,
    TopicSource,
)
from moldau.spark_connector.pipelines.output_claims import OutputClaim, claim_output
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT: Final = "moldau"
_TIME: Final = "_moldau_event_time"
_WINDOW: Final = "_moldau_window"


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


def sink_options(sink: TopicSink) -> dict[str, str]:
    """The connector's options for writing. A pipeline has one checkpoint, so a new one that comes
    to its sink would write everything again.
    """
    always = {"semantics": sink.semantics, "sinkId": sink.sink_id}
    return {"onNewQuery": "fail", **sink.options, **always}


def run_into(
    frame: DataFrame,
    pipeline: Pipeline,
    *,
    per_record: bool = False,
    extra: dict[str, str] | None = None,
) -> RunningQuery:
    """Start writing a streaming frame into the pipeline's sink.

    Args:
        frame: what the sink takes: encoded for topics, any columns for Parquet.
        per_record: the frame's own column `topic` says where each row goes.
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
    writer = writer.format(FORMAT).options(**sink_options(sink), **(extra or {}))
    if not per_record:
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
    """Start it. Raises: PipelineFailed."""
    count = topic_sink(pipeline).partition_count
    assert count is not None, "checked with the file"
    frame = repartitioned(records(spark, pipeline), count)
    return run_into(frame, pipeline, extra={"includeTimestamp": "true"})


def repartitioned(frame: DataFrame, partition_count: int) -> DataFrame:
    """The columns to write; where `partition` is null the key decides."""
    from pyspark.sql import functions as f

    by_number = f.when(f.col("key").isNull(), f.col("partition") % partition_count)
    return frame.select(by_number.alias("partition"), "key", "value", "headers", record_time())
