"""What each job does with Spark, and the way from a job's name to the function that starts it.

Must not be imported to check a file: it needs Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline
    from moldau.spark_connector.pipelines.running import Running

#: Job → module and function.
STARTS: Final = {
    "archive": ("streams", "start_rows"),
    "replay": ("replay", "start"),
    "transform": ("streams", "start_rows"),
    "aggregate": ("streams", "start_rows"),
    "mirror": ("mirror", "start"),
    "repartition": ("streams", "start_repartition"),
}


def start_job(spark: SparkSession, pipeline: Pipeline) -> Running:
    """Start a pipeline whose topics are prepared. Raises: PipelineFailed: it cannot be started as
    it is: Spark refuses an expression, for example
    """
    from pyspark.errors import PySparkException

    from moldau.spark_connector.errors import PipelineFailed
    from moldau.spark_connector.pipelines.running import failure_line

    module_name, function_name = STARTS[pipeline.job]
    module = importlib.import_module(f"{__name__}.{module_name}")
    start = cast("Callable[[SparkSession, Pipeline], Running]", getattr(module, function_name))
    try:
        return start(spark, pipeline)
    except PySparkException as error:
        raise PipelineFailed(f"{pipeline.name}: {failure_line(str(error))}") from error
