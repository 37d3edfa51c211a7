"""ConsumerGroupCurrentMemberAssignment (type 8 of `__consumer_offsets`, version 0): what a member
of a consumer group owns now."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Int8, Int32, String, Uuid


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
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = field()
    partitions_pending_revocation: list[TopicPartitions] = field()
