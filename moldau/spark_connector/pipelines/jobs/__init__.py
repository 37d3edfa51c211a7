"""What each job does with Spark: one module per job, each with one `start`.

Owns the way from a job's name to its module. Must not be imported to check a file: it needs Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline
    from moldau.spark_connector.pipelines.running import Running

MODULES: Final = {
    "archive": "archive",
    "replay": "replay",
    "transform": "transform",
    "aggregate": "aggregate",
    "mirror": "mirror",
    "repartition": "repartition",
}


def start_job(spark: SparkSession, pipeline: Pipeline) -> Running:
    """Start a pipeline whose topics are prepared.

    Raises:
        PipelineFailed: it cannot be started as it is: Spark refuses an expression, for example.
    """
    from pyspark.errors import PySparkException

    from moldau.spark_connector.pipelines.errors import PipelineFailed
    from moldau.spark_connector.pipelines.running import failure_line

    module = importlib.import_module(f"{__name__}.{MODULES[pipeline.job]}")
    start = cast("Callable[[SparkSession, Pipeline], Running]", module.start)
    try:
        return start(spark, pipeline)
    except PySparkException as error:
        raise PipelineFailed(f"{pipeline.name}: {failure_line(str(error))}") from error
