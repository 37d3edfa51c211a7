"""The job `archive`: topics into Parquet files.

Without a transform whole records are kept, headers and timestamps too, so that `replay` can bring
them back. Invariant: for whoever reads the directory through Spark each record is there once; its
list of files in `_spark_metadata` is what counts, files of a batch that was given up are not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.spark_connector.pipelines.columns import decoded
from moldau.spark_connector.pipelines.jobs.streams import records, run_into, topic_source
from moldau.spark_connector.pipelines.jobs.transforms import transformed
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline


def start(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start it. Raises: PipelineFailed."""
    frame = decoded(records(spark, pipeline), topic_source(pipeline))
    return run_into(transformed(spark, frame, pipeline), pipeline)
