"""The job `mirror`: topics into another cluster, as they are.

Keys, values, headers, timestamps and partitions are kept, offsets are the other cluster's own.
Invariant: each record once, in the order of its partition. What would land in the sink's own ledger
(which a pattern may match, too) is left out: that book is written by the sink alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.spark_connector.pipelines.jobs.streams import records, run_into, topic_sink
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline, TopicSink


def start(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start it. Raises: PipelineFailed."""
    frame = mirrored(records(spark, pipeline), topic_sink(pipeline))
    return run_into(frame, pipeline, per_record=True, extra={"includeTimestamp": "true"})


def mirrored(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """The columns to write; `{topic}` in the sink's topic is the record's own topic."""
    from pyspark.sql import functions as f

    parts = sink.topic.split("{topic}")
    pieces = [piece for part in parts[:-1] for piece in (f.lit(part), f.col("topic"))]
    topic = f.concat(*pieces, f.lit(parts[-1])).alias("topic")
    found = frame.select(topic, "partition", "key", "value", "headers", "timestamp")
    return found.where(f.col("topic") != sink.ledger_topic)
