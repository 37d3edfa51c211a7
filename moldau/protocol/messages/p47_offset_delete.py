"""OffsetDelete (47) v0: delete stored offsets of a group."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, Struct, field, request, response, struct
from moldau.protocol.types import Int16, Int32, String


@struct
class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = 0


@struct
class OffsetDeleteRequestTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = field()


@request(ApiKey.OFFSET_DELETE, versions="0", flexible="none")
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = field()


@struct
class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class OffsetDeleteResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = field()


@response(ApiKey.OFFSET_DELETE, versions="0", flexible="none")
class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = field()
