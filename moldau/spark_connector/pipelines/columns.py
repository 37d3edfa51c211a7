"""From a record's bytes to columns that SQL can use, and back to a record.

Owns what `key`, `value`, `schema`, `malformed` of a source and `key`, `value` of a sink mean. Must
not read or write anything: only plans. Invariant: whatever a transform needs to know about a record
(topic, partition, offset, timestamp, timestampType) stays a column beside `key` and `value`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.spark_connector.pipelines.errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from moldau.spark_connector.pipelines.model import TopicSink, TopicSource

JSON: Final = "json"
_PARSED: Final = "_moldau_parsed"
_MALFORMED: Final = "_moldau_malformed"


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
