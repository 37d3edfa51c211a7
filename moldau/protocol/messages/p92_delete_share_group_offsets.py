"""DeleteShareGroupOffsets (92) v0: delete the offsets of a share group."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uuid


@struct
class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""


@request(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest(Message):
    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field()


@struct
class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")


@response(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field()
