"""What Spark carries from the driver to a task of the source.

Owns the one value: a range of offsets, and the topic that it is of. Invariant: everything else a
task needs are the options.
"""

from __future__ import annotations

from uuid import UUID

from pyspark.sql.datasource import InputPartition

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.offsets import TopicIds
from moldau.spark_connector.core.planning import OffsetRange


class OffsetRangePartition(InputPartition):
    """A range as an input partition: plain values, so that any version can read it."""

    def __init__(self, each: OffsetRange, topic_ids: TopicIds) -> None:
        topic, partition = each.topic_partition
        topic_id = topic_ids.get(topic, ZERO_UUID)
        super().__init__((topic, partition, each.start_offset, each.end_offset, topic_id.hex))

    @property
    def offset_range(self) -> OffsetRange:
        """The range."""
        topic, partition, start, end, _ = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end)

    @property
    def topic_id(self) -> UUID:
        """Of the topic that the offsets are in; ZERO_UUID where it is not known."""
        return UUID(hex=self.value[4])
