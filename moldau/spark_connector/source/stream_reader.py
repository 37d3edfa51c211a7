"""`spark.readStream.format("moldau")`: a stream as Spark's driver and workers use it.

Owns the classes that Spark calls, in the shapes of Spark 4.1 and of 4.2 and later. Must not plan or
read by itself. Invariant: what is pickled are options, never a client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from moldau.spark_connector.core.offsets import topic_ids_of
from moldau.spark_connector.options.source_options import SourceOptions
from moldau.spark_connector.source.batch_reader import read_partition
from moldau.spark_connector.source.input_partition import OffsetRangePartition
from moldau.spark_connector.source.schema import check_schema, schema_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from moldau.spark_connector.source.stream_planner import StreamPlanner

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

_MS: Final = 1_000


def make_stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader for these options, in the shape that this Spark knows.

    Raises:
        InvalidOption, SchemaNotAllowed
    """
    parsed = SourceOptions.parse(options)
    parsed.check_stream()
    check_schema(schema, schema_for(parsed))
    return StreamReader(parsed) if HAS_ADMISSION_CONTROL else PlainStreamReader(parsed)


class _StreamReaderBase(DataSourceStreamReader):
    """What all Sparks call."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_planner": None}

    @property
    def planner(self) -> StreamPlanner:
        """The driver's; made when it is first needed, so that workers have none."""
        if self._planner is None:
            from moldau.spark_connector.source.offsets_reader import OffsetsReader
            from moldau.spark_connector.source.stream_planner import StreamPlanner

            self._planner = StreamPlanner(
                self._options,
                OffsetsReader(self._options),
                now_ms=lambda: time.monotonic() * _MS,
                sleep_ms=lambda duration_ms: time.sleep(duration_ms / _MS),
            )
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint yet."""
        return dict(self.planner.initial_offset())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a batch read."""
        ranges = self.planner.tasks(start, end)
        topic_ids = topic_ids_of(end)
        return [OffsetRangePartition(each, topic_ids) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, in a worker."""
        return read_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is committed anywhere: Spark's checkpoint has the offsets."""

    def stop(self) -> None:
        """The query has ended: close the driver's client."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.close()


class PlainStreamReader(_StreamReaderBase):
    """For Spark 4.1, which does not say where a batch begins.

    It begins where the one before ended; of a run's first batch nobody knows until it is planned,
    so that one has no limit. And it must have none: this Spark has a query with AvailableNow end
    after one batch, and does not say that it is one.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._last_end: dict[str, Any] | None = None
        self._is_first = True

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last_end": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint yet."""
        self._last_end = super().initialOffset()
        return self._last_end

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Where the next batch ends."""
        is_first, self._is_first = self._is_first, False
        if self._last_end is None:
            return dict(self.planner.unlimited_latest())
        return dict(self.planner.latest_offset(self._last_end, everything=is_first))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a batch read."""
        self._last_end = end
        return super().partitions(start, end)


if HAS_ADMISSION_CONTROL:

    class StreamReader(_StreamReaderBase, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later: limits, AvailableNow, the latest offset in the progress."""

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
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

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Where the logs end, for the query's progress."""
            latest = self.planner.report_latest()
            return None if latest is None else dict(latest)

        def prepareForTriggerAvailableNow(self) -> None:
            """The query ends at what is there now."""
            self.planner.set_target()
