"""The records of consumer groups (KIP-848), in `__consumer_offsets`."""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import ZERO_UUID, Bytes, Int8, Int32, Int64, String, Uuid


class ConsumerGroupMetadataKey(Message, number=3, versions="0", flexible="none"):
    group_id: String = ""


class ConsumerGroupMetadataValue(Message, number=3, versions="0", flexible="0+"):
    epoch: Int32 = 0
    metadata_hash: Int64 = field(0, tag=0)


class ConsumerGroupPartitionMetadataKey(Message, number=4, versions="0", flexible="none"):
    group_id: String = ""


class PartitionMetadata(Struct):
    partition: Int32 = 0
    racks: list[String] = field()


class TopicMetadata(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = field()


class ConsumerGroupPartitionMetadataValue(Message, number=4, versions="0", flexible="0+"):
    """The topics that a consumer group saw; no longer written."""

    topics: list[TopicMetadata] = field()


class ConsumerGroupMemberMetadataKey(Message, number=5, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class ClassicProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = field()


class ConsumerGroupMemberMetadataValue(Message, number=5, versions="0", flexible="0+"):
    """What a member of a consumer group reported about itself."""

    instance_id: String | None = field("", nullable="0+")
    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()
    subscribed_topic_regex: String | None = field("", nullable="0+")
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = field("", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(nullable="0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, number=6, versions="0", flexible="none"):
    group_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(Message, number=6, versions="0", flexible="0+"):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, number=7, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class TopicPartition(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()


class ConsumerGroupTargetAssignmentMemberValue(Message, number=7, versions="0", flexible="0+"):
    """What a member of a consumer group shall own."""

    topic_partitions: list[TopicPartition] = field()


class ConsumerGroupCurrentMemberAssignmentKey(Message, number=8, versions="0", flexible="none"):
    group_id: String = ""
    member_id: String = ""


class TopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, number=8, versions="0", flexible="0+"):
    """What a member of a consumer group owns now."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = field()
    partitions_pending_revocation: list[TopicPartitions] = field()


class ConsumerGroupRegularExpressionKey(Message, number=16, versions="0", flexible="none"):
    group_id: String = ""
    regular_expression: String = ""


class ConsumerGroupRegularExpressionValue(Message, number=16, versions="0", flexible="0+"):
    """The topics that a regular expression of a consumer group resolved to."""

    topics: list[String] = field()
    version: Int64 = 0
    timestamp: Int64 = 0
