"""A pipeline's own step between source and sink: SQL, or a Python function.

Owns finding the function and registering the tables. Must not start anything. Invariant: the result
is still the stream; a function that returns something else is refused by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moldau.spark_connector.pipelines.errors import PipelineFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline, Table, Transform

SOURCE: Final = "source"


def transformed(spark: SparkSession, frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The frame after the pipeline's transform, unchanged when it has none.

    Raises:
        PipelineFailed: SQL that Spark cannot plan, or a function that fails or returns no stream.
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
        _read(spark, table).createOrReplaceTempView(name)
    if step.sql is not None:
        # The views are looked up while the plan is made, so the next pipeline may use their names.
        frame.createOrReplaceTempView(SOURCE)
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


def _read(spark: SparkSession, table: Table) -> DataFrame:
    reader = spark.read.format(table.format).options(**table.options)
    if table.schema is not None:
        reader = reader.schema(table.schema)
    return reader.load(table.path)


def load_function(
    name: str, directory: str, spark: SparkSession | None = None
) -> Callable[[DataFrame], Any]:
    """The function MODULE:NAME; the module may lie beside the pipeline's file.

    The functions of a module that does go to Spark's workers by value: to import it there would run
    its decorators, and those that name types want a session. The file goes along, for other modules
    that import it.

    Raises:
        PipelineFailed: there is no such module or function, or the module does not load.
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
    found: Callable[[DataFrame], Any] = function
    return found
