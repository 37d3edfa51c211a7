"""`spark.read.format("moldau")`: a batch as Spark's planner and workers use it.

Owns the two classes that Spark calls. Must not plan or read by itself. Invariant: what is pickled
are options and conditions, never a client.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import DataSourceReader, InputPartition

from moldau.spark_connector.core.filters import Condition, Narrowing, Operator
from moldau.spark_connector.options.source_options import SourceOptions
from moldau.spark_connector.source.input_partition import OffsetRangePartition
from moldau.spark_connector.source.schema import check_schema, schema_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"

OPERATORS: Final[Mapping[str, Operator]] = {
    "EqualTo": Operator.EQUAL,
    "EqualNullSafe": Operator.EQUAL,
    "In": Operator.IN,
    "GreaterThan": Operator.GREATER,
    "GreaterThanOrEqual": Operator.GREATER_OR_EQUAL,
    "LessThan": Operator.LESS,
    "LessThanOrEqual": Operator.LESS_OR_EQUAL,
    "IsNotNull": Operator.NOT_NULL,
}
"""Spark's classes of filters by name."""


def make_batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options.

    Raises:
        InvalidOption, SchemaNotAllowed
    """
    parsed = SourceOptions.parse(options)
    parsed.check_batch()
    check_schema(schema, schema_for(parsed))
    return FilteringBatchReader(parsed) if _is_pushdown_on() else BatchReader(parsed)


def _is_pushdown_on() -> bool:
    """Whether Spark wants to push filters down (`spark.sql.python.filterPushdown.enabled`).

    Spark refuses a reader that could while it is off, and tells nobody whether it is; but it makes
    the reader in another module of its own when it is on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == PUSHDOWN_WORKER


class BatchReader(DataSourceReader):
    """Reads what the topics hold when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the cluster, on the driver, and share out the offsets."""
        from moldau.spark_connector.source.batch_planner import plan_batch
        from moldau.spark_connector.source.offsets_reader import OffsetsReader

        source = OffsetsReader(self._options)
        try:
            ranges, topic_ids = plan_batch(self._options, source, self._narrowing)
        finally:
            source.close()
        return [OffsetRangePartition(each, topic_ids) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, in a worker."""
        return read_partition(self._options, partition)


class FilteringBatchReader(BatchReader):
    """The same for a Spark that pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what says where records lie; give back what Spark has to check itself."""
        return [each for each in filters if not self._takes(each)]

    def _takes(self, each: Filter) -> bool:
        condition = condition_of(each)
        return condition is not None and self._narrowing.narrow(condition)


def condition_of(each: object) -> Condition | None:
    """A filter of Spark's in our terms; None for one that says nothing of where records lie."""
    operator = OPERATORS.get(type(each).__name__)
    column: tuple[str, ...] = getattr(each, "attribute", ())
    if operator is None or len(column) != 1 or type(each).__module__ != spark_filters.__name__:
        return None
    if operator is Operator.NOT_NULL:
        return Condition(column[0], operator)
    value = getattr(each, "value", None)
    values = tuple(value) if operator is Operator.IN else (value,)  # type: ignore[arg-type]
    return Condition(column[0], operator, values)


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of an input partition; none of the one that Spark makes up when there is none."""
    if not isinstance(partition, OffsetRangePartition):
        return iter(())
    from moldau.spark_connector.source.partition_reader import read_range

    return read_range(options, partition.offset_range, partition.topic_id)
