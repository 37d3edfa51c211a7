"""ShareGroupTargetAssignmentMember (type 13 of `__consumer_offsets`, version 0): what a member of
a share group shall read."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


@coordinator_record(13, versions="0", flexible="none")
class ShareGroupTargetAssignmentMemberKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class TopicPartition(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()


@coordinator_record(13, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue(Message):
    topic_partitions: list[TopicPartition] = field()
