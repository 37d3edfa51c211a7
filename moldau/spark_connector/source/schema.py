"""The columns of what is read: those of Spark's own Kafka source.

Owns the schema in Spark's terms; in Arrow's it is that of the client's `poll_arrow`. Invariant: it
depends on `includeHeaders` and nothing else.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.spark_connector.errors import SchemaNotAllowed


def source_schema(include_headers: bool) -> StructType:
    """The schema of every DataFrame that the source makes."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    return StructType(fields)


def check_schema(schema: StructType, include_headers: bool) -> None:
    """Refuse a schema that the user has given.

    Raises:
        SchemaNotAllowed: it is not the source's.
    """
    fixed = source_schema(include_headers)
    if schema.simpleString() != fixed.simpleString():
        raise SchemaNotAllowed(
            f"the source's columns are fixed ({fixed.simpleString()}): leave out schema(…), and "
            "make other columns with select"
        )
