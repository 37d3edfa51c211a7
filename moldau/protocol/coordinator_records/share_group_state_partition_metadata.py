"""ShareGroupStatePartitionMetadata (type 15 of `__consumer_offsets`, version 0): which share
partitions of a group have state."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


@coordinator_record(15, versions="0", flexible="none")
class ShareGroupStatePartitionMetadataKey(Message):
    group_id: String = ""


@struct
class TopicPartitionsInfo(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field()


@struct
class TopicInfo(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""


@coordinator_record(15, versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue(Message):
    initializing_topics: list[TopicPartitionsInfo] = field()
    initialized_topics: list[TopicPartitionsInfo] = field()
    deleting_topics: list[TopicInfo] = field()
