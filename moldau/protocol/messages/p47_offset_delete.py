"""OffsetDelete (47) v0: delete stored offsets of a group."""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int16, Int32, String


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = field()


class OffsetDeleteRequest(Request["OffsetDeleteResponse"], versions="0", flexible="none"):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = field()


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = field()


class OffsetDeleteResponse(Message, answers=OffsetDeleteRequest):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = field()
