"""InitializeShareGroupState (83) v0: create the state of share partitions."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, String, Uuid


@struct
class PartitionData(Struct):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


@struct
class InitializeStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


@request(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions="0", flexible="0+")
class InitializeShareGroupStateRequest(Message):
    group_id: String = ""
    topics: list[InitializeStateData] = field()


@struct
class PartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")


@struct
class InitializeStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = field()


@response(ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions="0", flexible="0+")
class InitializeShareGroupStateResponse(Message):
    results: list[InitializeStateResult] = field()
