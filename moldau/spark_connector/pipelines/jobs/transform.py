"""The job `transform`: topics into a topic or Parquet, through SQL or a Python function.

Order: a partition's records stay in their order as long as the transform needs no shuffle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.spark_connector.pipelines.columns import decoded, encoded
from moldau.spark_connector.pipelines.jobs.streams import records, run_into, topic_source
from moldau.spark_connector.pipelines.jobs.transforms import transformed
from moldau.spark_connector.pipelines.model import TopicSink
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline


def start(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start it. Raises: PipelineFailed."""
    frame = decoded(records(spark, pipeline), topic_source(pipeline))
    frame = transformed(spark, frame, pipeline)
    if isinstance(pipeline.sink, TopicSink):
        frame = encoded(frame, pipeline.sink)
    return run_into(frame, pipeline)
