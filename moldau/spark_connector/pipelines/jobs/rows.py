"""What a pipeline makes of rows: records to columns, the pipeline's own step, columns to records.

Owns what `key`, `value`, `schema`, `malformed` of a source and `key`, `value` of a sink mean, how
the step's Python function is found and its tables are registered. Must not start anything: only
plans. Invariants: what a transform needs to know about a record (topic, partition, offset,
timestamp, timestampType) stays a column beside `key` and `value`; the result of the step is still
the stream; a function that returns something else is refused by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import PipelineFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import (
        Pipeline,
        Table,
        TopicSink,
        TopicSource,
        Transform,
    )

JSON: Final = "json"
_PARSED: Final = "_moldau_parsed"
_MALFORMED: Final = "_moldau_malformed"
SOURCE: Final = "source"


def decoded(frame: DataFrame, source: TopicSource) -> DataFrame:
    """Records with key and value as the source says: text, bytes, or a struct out of JSON."""
    from pyspark.sql import functions as f

    if source.key_format == "string":
        frame = frame.withColumn("key", f.col("key").cast("string"))
    if source.value_format == "string":
        return frame.withColumn("value", f.col("value").cast("string"))
    if source.value_format != JSON:
        return frame
    assert source.schema is not None, "checked with the file"
    text = f.col("value").cast("string")
    if source.malformed == "fail":
        return frame.withColumn("value", f.from_json(text, source.schema, {"mode": "FAILFAST"}))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
    schema = f"{source.schema}, {_MALFORMED} STRING"
    frame = frame.withColumn(_PARSED, f.from_json(text, schema, options))
    fits = f.col(f"{_PARSED}.{_MALFORMED}").isNull()
    if source.malformed == "drop":
        frame = frame.where(fits)
    value = f.when(fits, f.col(_PARSED).dropFields(_MALFORMED))
    return frame.withColumn("value", value).drop(_PARSED)


def encoded(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as a sink takes them: `value`, and `key` and `headers` where there are any.

    A column `partition` is that of the record that was read, and not where the result belongs.

    Raises:
        PipelineFailed: an expression that cannot be resolved.
    """
    from pyspark.sql import functions as f

    columns: list[Column] = []
    if sink.key is not None:
        columns.append(_as_bytes(frame, f.expr(sink.key)).alias("key"))
    elif "key" in frame.columns:
        columns.append(_as_bytes(frame, f.col("key")).alias("key"))
    if sink.value is not None and sink.value != JSON:
        value = _as_bytes(frame, f.expr(sink.value))
    elif sink.value is None and "value" in frame.columns:
        value = _as_bytes(frame, f.col("value"))
    else:
        beside = {"headers"} if sink.key is not None else {"headers", "key"}
        rest = [f.col(f"`{name}`") for name in frame.columns if name not in beside]
        if not rest:
            raise PipelineFailed("there are no columns to make a value of")
        value = f.to_json(f.struct(*rest), {"ignoreNullFields": "false"})
    columns.append(value.alias("value"))
    if "headers" in frame.columns:
        columns.append(f.col("headers"))
    return frame.select(*columns)


def _as_bytes(frame: DataFrame, column: Column) -> Column:
    """Text and bytes as they are, structures as JSON, anything else as its text."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

    kind = frame.select(column.alias("it")).schema["it"].dataType
    if isinstance(kind, StringType | BinaryType):
        return column
    if isinstance(kind, StructType | ArrayType | MapType):
        return f.to_json(column, {"ignoreNullFields": "false"})
    return column.cast("string")


def transformed(spark: SparkSession, frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The frame after the pipeline's transform, unchanged when it has none. Raises: PipelineFailed:
    SQL that Spark cannot plan, or a function that fails or returns no stream
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
) -> Callable[[DataFrame], object]:
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
    found: Callable[[DataFrame], object] = function
    return found
