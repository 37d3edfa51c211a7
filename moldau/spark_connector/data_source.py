"""`format("moldau")`: what Spark asks first, for reading and for writing.

Owns the format's name, the schema of what is read, and the way to the four readers and writers.
Must not connect to anything, nor import a client: Spark makes and pickles this object in processes
that only plan. Invariant: options are checked before anything else happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class MoldauDataSource(DataSource):
    """Topics of a Kafka cluster as a Spark data source: batch and streaming, source and sink.

    Options and rows are those of Spark's own Kafka source and sink; docs/spark.md lists them.
    """

    @classmethod
    def name(cls) -> str:
        """What stands in `format("moldau")`."""
        return "moldau"

    def schema(self) -> StructType:
        """The columns of what is read; they are fixed. Raises: InvalidOption"""
        from moldau.spark_connector.source.options import SourceOptions
        from moldau.spark_connector.source.readers import schema_for

        return schema_for(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what the topics hold now, once. Raises: InvalidOption, SchemaNotAllowed"""
        from moldau.spark_connector.source.readers import make_batch_reader

        return make_batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads one range of offsets after the other. Raises: InvalidOption, SchemaNotAllowed"""
        from moldau.spark_connector.source.readers import make_stream_reader

        return make_stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes rows as records, once. Raises: InvalidOption, InvalidSchema"""
        from moldau.spark_connector.sink.writers import make_batch_writer

        return make_batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Writes one micro-batch after the other. Raises: InvalidOption, InvalidSchema"""
        from moldau.spark_connector.sink.writers import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)
