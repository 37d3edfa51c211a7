"""The records of consumer groups (KIP-848), in `__consumer_offsets`."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Bytes, Int8, Int32, Int64, String, Uuid


@coordinator_record(3, versions="0", flexible="none")
class ConsumerGroupMetadataKey(Message):
    group_id: String = ""


@coordinator_record(3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    epoch: Int32 = 0
    metadata_hash: Int64 = field(0, tag=0)


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
    """The topics that a consumer group saw; no longer written."""

    topics: list[TopicMetadata] = field()


@coordinator_record(5, versions="0", flexible="none")
class ConsumerGroupMemberMetadataKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class ClassicProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


@struct
class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = field()


@coordinator_record(5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
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


@coordinator_record(6, versions="0", flexible="none")
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    group_id: String = ""


@coordinator_record(6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)


@coordinator_record(7, versions="0", flexible="none")
class ConsumerGroupTargetAssignmentMemberKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class TopicPartition(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()


@coordinator_record(7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """What a member of a consumer group shall own."""

    topic_partitions: list[TopicPartition] = field()


@coordinator_record(8, versions="0", flexible="none")
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class TopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


@coordinator_record(8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """What a member of a consumer group owns now."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = field()
    partitions_pending_revocation: list[TopicPartitions] = field()


@coordinator_record(16, versions="0", flexible="none")
class ConsumerGroupRegularExpressionKey(Message):
    group_id: String = ""
    regular_expression: String = ""


@coordinator_record(16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Message):
    """The topics that a regular expression of a consumer group resolved to."""

    topics: list[String] = field()
    version: Int64 = 0
    timestamp: Int64 = 0
