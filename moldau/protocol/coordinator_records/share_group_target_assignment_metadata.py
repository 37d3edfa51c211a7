"""ShareGroupTargetAssignmentMetadata (type 12 of `__consumer_offsets`, version 0): the epoch of a
share group's target assignment."""

from moldau.protocol.schema import Message, coordinator_record, field
from moldau.protocol.types import Int32, Int64, String


@coordinator_record(12, versions="0", flexible="none")
class ShareGroupTargetAssignmentMetadataKey(Message):
    group_id: String = ""


@coordinator_record(12, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue(Message):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(0, tag=0)
