"""ConsumerGroupPartitionMetadata (type 4 of `__consumer_offsets`, version 0): the topics that a
consumer group saw; no longer written."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


@coordinator_record(4, versions="0", flexible="none")
class ConsumerGroupPartitionMetadataKey(Message):
    group_id: String = ""


@struct
class PartitionMetadata(Struct):
    partition: Int32 = 0
    racks: list[String] = field()


@struct
class TopicMetadata(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = field()


@coordinator_record(4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Message):
    topics: list[TopicMetadata] = field()
