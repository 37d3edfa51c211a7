"""What each job does with Spark, and the way from a job's name to the function that starts it.

Must be importable without PySpark: `moldau pipeline check` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs import replay, streams
from moldau.spark_connector.pipelines.running import Running, failure_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline

STARTS: Final[Mapping[str, Callable[[SparkSession, Pipeline], Running]]] = {
    "archive": streams.start_rows,
    "replay": replay.start,
    "transform": streams.start_rows,
    "aggregate": streams.start_rows,
    "mirror": streams.start_mirror,
    "repartition": streams.start_repartition,
}


def start_job(spark: SparkSession, pipeline: Pipeline) -> Running:
    """Start a pipeline whose topics are prepared. Raises: PipelineFailed: it cannot be started as
    it is: Spark refuses an expression, for example
    """
    from pyspark.errors import PySparkException

    try:
        return STARTS[pipeline.job](spark, pipeline)
    except PySparkException as error:
        raise PipelineFailed(f"{pipeline.name}: {failure_line(str(error))}") from error
