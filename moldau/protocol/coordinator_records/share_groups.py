"""The records of share groups (KIP-932), in `__consumer_offsets`."""

from moldau.protocol.coordinator_records.consumer_groups import TopicPartition
from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import ZERO_UUID, Int8, Int32, Int64, String, Uuid


class ShareGroupMemberMetadataKey(Message, number=10, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class ShareGroupMemberMetadataValue(Message, number=10, versions="0", flexible="0+"):
    """What a member of a share group reported about itself."""

    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()


class ShareGroupMetadataKey(Message, number=11, versions="0", flexible="none"):
    group_id: String = ""


class ShareGroupMetadataValue(Message, number=11, versions="0", flexible="0+"):
    """The epoch of a share group."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0


class ShareGroupTargetAssignmentMetadataKey(Message, number=12, versions="0", flexible="none"):
    group_id: String = ""


class ShareGroupTargetAssignmentMetadataValue(Message, number=12, versions="0", flexible="0+"):
    """The epoch of a share group's target assignment."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, number=13, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class ShareGroupTargetAssignmentMemberValue(Message, number=13, versions="0", flexible="0+"):
    """What a member of a share group shall read."""

    topic_partitions: list[TopicPartition] = field()


class ShareGroupCurrentMemberAssignmentKey(Message, number=14, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class ShareGroupCurrentMemberAssignmentValue(Message, number=14, versions="0", flexible="0+"):
    """What a member of a share group reads now."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartition] = field()


class ShareGroupStatePartitionMetadataKey(Message, number=15, versions="0", flexible="none"):
    group_id: String = ""


class TopicPartitionsInfo(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field()


class TopicInfo(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""


class ShareGroupStatePartitionMetadataValue(Message, number=15, versions="0", flexible="0+"):
    """Which share partitions of a group have state."""

    initializing_topics: list[TopicPartitionsInfo] = field()
    initialized_topics: list[TopicPartitionsInfo] = field()
    deleting_topics: list[TopicInfo] = field()
