"""ConsumerGroupTargetAssignmentMember (type 7 of `__consumer_offsets`, version 0): what a member
of a consumer group shall own."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


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
    topic_partitions: list[TopicPartition] = field()
