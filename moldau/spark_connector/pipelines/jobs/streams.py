"""From a pipeline's source to a frame, and from a frame to a running query.

Owns the options that every job's query has in common. Must not know single jobs. Invariant: a query
always has its pipeline's checkpoint and name, and an exactly-once sink its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.spark_connector.pipelines.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import ParquetSink, Pipeline, TopicSink, TopicSource
from moldau.spark_connector.pipelines.output_claims import OutputClaim, claim_output
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT: Final = "moldau"


def records(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """The source's records as a stream, undecoded."""
    return spark.readStream.format(FORMAT).options(**topic_source(pipeline).options).load()


def record_time() -> Column:
    """The column `timestamp`, null where a record has none (-1 ms): it then gets the time at which
    it is written, since no producer may send times before 1970.
    """
    from pyspark.sql import functions as f

    timestamp = f.col("timestamp")
    return f.when(timestamp >= f.timestamp_millis(f.lit(0)), timestamp).alias("timestamp")


def topic_source(pipeline: Pipeline) -> TopicSource:
    """The source of a job that reads topics."""
    assert isinstance(pipeline.source, TopicSource), "checked with the file"
    return pipeline.source


def topic_sink(pipeline: Pipeline) -> TopicSink:
    """The sink of a job that writes topics."""
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
