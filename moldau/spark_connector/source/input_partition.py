"""What Spark carries from the driver to a task of the source.

Owns the one value: a range of offsets. Invariant: everything else a task needs are the options.
"""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.planning import OffsetRange


class OffsetRangePartition(InputPartition):
    """A range as an input partition: plain values, so that any version can read it."""

    def __init__(self, each: OffsetRange) -> None:
        topic, partition = each.topic_partition
        super().__init__((topic, partition, each.start_offset, each.end_offset))

    @property
    def offset_range(self) -> OffsetRange:
        """The range."""
        topic, partition, start, end = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end)
