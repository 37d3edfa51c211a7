"""The job `mirror`: topics into another cluster, as they are.

Keys, values, headers, timestamps and partitions are kept, offsets are not: the other cluster counts
for itself. Invariant: each record once, in the order of its partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.spark_connector.pipelines.jobs.streams import records, run_into, topic_sink
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline


def start(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start it. Raises: PipelineFailed."""
    frame = mirrored(records(spark, pipeline), topic_sink(pipeline).topic)
    return run_into(frame, pipeline, per_record=True, extra={"includeTimestamp": "true"})


def mirrored(frame: DataFrame, template: str) -> DataFrame:
    """The columns to write; `{topic}` in the template is the record's own topic."""
    from pyspark.sql import functions as f

    parts = template.split("{topic}")
    pieces = [piece for part in parts[:-1] for piece in (f.lit(part), f.col("topic"))]
    topic = f.concat(*pieces, f.lit(parts[-1]))
    return frame.select(topic.alias("topic"), "partition", "key", "value", "headers", "timestamp")
