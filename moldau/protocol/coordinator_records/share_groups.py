"""The records of share groups (KIP-932), in `__consumer_offsets`."""

from moldau.protocol.coordinator_records.consumer_groups import TopicPartition
from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Int8, Int32, Int64, String, Uuid


@coordinator_record(10, versions="0", flexible="none")
class ShareGroupMemberMetadataKey(Message):
    group_id: String = ""
    member_id: String = ""


@coordinator_record(10, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue(Message):
    """What a member of a share group reported about itself."""

    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()


@coordinator_record(11, versions="0", flexible="none")
class ShareGroupMetadataKey(Message):
    group_id: String = ""


@coordinator_record(11, versions="0", flexible="0+")
class ShareGroupMetadataValue(Message):
    """The epoch of a share group."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0


@coordinator_record(12, versions="0", flexible="none")
class ShareGroupTargetAssignmentMetadataKey(Message):
    group_id: String = ""


@coordinator_record(12, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue(Message):
    """The epoch of a share group's target assignment."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


@coordinator_record(13, versions="0", flexible="none")
class ShareGroupTargetAssignmentMemberKey(Message):
    group_id: String = ""
    member_id: String = ""


@coordinator_record(13, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue(Message):
    """What a member of a share group shall read."""

    topic_partitions: list[TopicPartition] = field()


@coordinator_record(14, versions="0", flexible="none")
class ShareGroupCurrentMemberAssignmentKey(Message):
    group_id: String = ""
    member_id: String = ""


@coordinator_record(14, versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue(Message):
    """What a member of a share group reads now."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartition] = field()


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
    """Which share partitions of a group have state."""

    initializing_topics: list[TopicPartitionsInfo] = field()
    initialized_topics: list[TopicPartitionsInfo] = field()
    deleting_topics: list[TopicInfo] = field()
