"""DeleteShareGroupState (86) v0: delete the state of share partitions."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uuid


@struct
class PartitionData(Struct):
    partition: Int32 = 0


@struct
class DeleteStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


@request(ApiKey.DELETE_SHARE_GROUP_STATE, versions="0", flexible="0+")
class DeleteShareGroupStateRequest(Message):
    group_id: String = ""
    topics: list[DeleteStateData] = field()


@struct
class PartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")


@struct
class DeleteStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = field()


@response(ApiKey.DELETE_SHARE_GROUP_STATE, versions="0", flexible="0+")
class DeleteShareGroupStateResponse(Message):
    results: list[DeleteStateResult] = field()
