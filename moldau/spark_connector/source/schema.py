"""The columns of what is read: those of Spark's own Kafka source.

Owns the schema in Spark's terms; in Arrow's it is that of the client's `poll_arrow`, and with
`includeTopicId` one column more. Invariant: it depends on `includeHeaders`, `includeTopicId` and
nothing else.
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
from moldau.spark_connector.options.source_options import TOPIC_ID_COLUMN, SourceOptions


def schema_for(options: SourceOptions) -> StructType:
    """The schema of every DataFrame that the source makes with these options."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if options.include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    if options.include_topic_id:
        fields.append(StructField(TOPIC_ID_COLUMN, StringType()))
    return StructType(fields)


def check_schema(schema: StructType, fixed: StructType) -> None:
    """Refuse a schema that the user has given.

    Raises:
        SchemaNotAllowed: it is not the source's.
    """
    if schema.simpleString() != fixed.simpleString():
        raise SchemaNotAllowed(
            f"the source's columns are fixed ({fixed.simpleString()}): leave out schema(…), and "
            "make other columns with select"
        )
