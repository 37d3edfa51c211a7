"""What Spark's planner and workers call to read: `spark.read` and `spark.readStream`.

Owns the classes that Spark calls, in the shapes of Spark 4.1 and of 4.2 and later, the columns of
what is read (those of Spark's own Kafka source), and the value that travels from the driver to a
task. Must not plan (`planners` does) or read (`partition_reader` does). Invariants: what is pickled
are options and conditions, never a client; the schema depends on `includeHeaders`, `includeTopicId`
and nothing else, and in Arrow's terms it is that of the client's `poll_arrow`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
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

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.offsets import OffsetsJson, TopicIds, topic_ids_of
from moldau.spark_connector.core.ranges import Condition, Narrowing, OffsetRange, Operator
from moldau.spark_connector.errors import SchemaNotAllowed
from moldau.spark_connector.source.options import TOPIC_ID_COLUMN, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.streaming.datasource import ReadLimit

    from moldau.spark_connector.source.planners import StreamPlanner

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

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
_MS: Final = 1_000


def schema_for(options: SourceOptions) -> StructType:
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
    """Refuse a schema that the user has given. Raises: SchemaNotAllowed: it is not the source's."""
    if schema.simpleString() != fixed.simpleString():
        raise SchemaNotAllowed(
            f"the source's columns are fixed ({fixed.simpleString()}): leave out schema(…), and "
            "make other columns with select"
        )


class OffsetRangePartition(InputPartition):
    """A range as an input partition: plain values, so that any version can read it."""

    def __init__(self, each: OffsetRange, topic_ids: TopicIds) -> None:
        topic, partition = each.topic_partition
        topic_id = topic_ids.get(topic, ZERO_UUID)
        super().__init__((topic, partition, each.start_offset, each.end_offset, topic_id.hex))

    @property
    def offset_range(self) -> OffsetRange:
        topic, partition, start, end, _ = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end)

    @property
    def topic_id(self) -> UUID:
        """The id of the topic that the offsets are in; ZERO_UUID where it is not known."""
        return UUID(hex=self.value[4])


def make_batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options. Raises: InvalidOption, SchemaNotAllowed"""
    parsed = SourceOptions.parse(options)
    parsed.check_batch()
    check_schema(schema, schema_for(parsed))
    return FilteringBatchReader(parsed) if _is_pushdown_on() else BatchReader(parsed)


def _is_pushdown_on() -> bool:
    """Whether Spark wants to push filters down (`spark.sql.python.filterPushdown.enabled`).

    Spark refuses a reader that could while it is off, and does not say whether it is; but it makes
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
        from moldau.spark_connector.source.planners import OffsetsReader, plan_batch

        source = OffsetsReader(self._options)
        try:
            ranges, topic_ids = plan_batch(self._options, source, self._narrowing)
        finally:
            source.close()
        return [OffsetRangePartition(each, topic_ids) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


class FilteringBatchReader(BatchReader):
    """The same for a Spark that pushes filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what says where records lie; give back what Spark has to check itself."""
        conditions = [(each, condition_of(each)) for each in filters]
        return [
            each
            for each, condition in conditions
            if condition is None or not self._narrowing.narrow(condition)
        ]


def condition_of(each: object) -> Condition | None:
    """One of Spark's filters as a condition; None for one that does not narrow what is read."""
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


def make_stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader for these options. Raises: InvalidOption, SchemaNotAllowed"""
    parsed = SourceOptions.parse(options)
    parsed.check_stream()
    check_schema(schema, schema_for(parsed))
    return StreamReader(parsed) if HAS_ADMISSION_CONTROL else PlainStreamReader(parsed)


class _StreamReaderBase(DataSourceStreamReader):
    """The calls that every release of Spark makes."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        """The driver's; made when it is first needed, so that workers have none."""
        if self._planner is None:
            from moldau.spark_connector.source.planners import OffsetsReader, StreamPlanner

            self._planner = StreamPlanner(
                self._options,
                OffsetsReader(self._options),
                now_ms=lambda: time.monotonic() * _MS,
                sleep_ms=lambda duration_ms: time.sleep(duration_ms / _MS),
            )
        return self._planner

    def initialOffset(self) -> OffsetsJson:
        return dict(self.planner.initial_offset())

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        ranges = self.planner.tasks(start, end)
        topic_ids = topic_ids_of(end)
        return [OffsetRangePartition(each, topic_ids) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: OffsetsJson) -> None:
        """Nothing is committed anywhere: Spark's checkpoint has the offsets."""

    def stop(self) -> None:
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()


class PlainStreamReader(_StreamReaderBase):
    """For Spark 4.1, which does not say where a batch begins.

    It begins where the one before ended; of a run's first batch that is known only when it is
    planned, so that one has no limit. And it must have none: this Spark has a query with
    AvailableNow end after one batch, and does not say that it is one.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._last_end: OffsetsJson | None = None
        self._is_first = True

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_last_end": None}

    def initialOffset(self) -> OffsetsJson:
        self._last_end = super().initialOffset()
        return self._last_end

    def latestOffset(self) -> OffsetsJson:  # type: ignore[override]
        is_first, self._is_first = self._is_first, False
        if self._last_end is None:
            return dict(self.planner.unlimited_latest())
        return dict(self.planner.latest_offset(self._last_end, everything=is_first))

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        self._last_end = end
        return super().partitions(start, end)


if HAS_ADMISSION_CONTROL:

    class StreamReader(_StreamReaderBase, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later: limits, AvailableNow, the latest offset in the progress."""

        def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
            """Where the batch that begins at `start` ends; `start` while there is none."""
            everything = isinstance(limit, ReadAllAvailable)
            return dict(self.planner.latest_offset(start, everything=everything))

        def getDefaultReadLimit(self) -> ReadLimit:
            """The limits of the options, as far as Spark has words for them."""
            limits = self._options.limits
            if limits.max_offsets is not None:
                return ReadMaxRows(limits.max_offsets)
            if limits.min_offsets is not None:
                return ReadMinRows(limits.min_offsets)
            return ReadAllAvailable()

        def reportLatestOffset(self) -> OffsetsJson | None:
            latest = self.planner.report_latest()
            return None if latest is None else dict(latest)

        def prepareForTriggerAvailableNow(self) -> None:
            self.planner.set_target()
