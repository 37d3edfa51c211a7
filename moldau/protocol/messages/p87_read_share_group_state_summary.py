"""ReadShareGroupStateSummary (87) v0-v1: read the summary of the state of share partitions.

Versions: 1 adds a count of deliveries completed.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, String, Uuid


@struct
class PartitionData(Struct):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class ReadStateSummaryData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


@request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest(Message):
    group_id: String = ""
    topics: list[ReadStateSummaryData] = field()


@struct
class PartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field(-1, since=1, ignorable=True)


@struct
class ReadStateSummaryResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = field()


@response(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse(Message):
    results: list[ReadStateSummaryResult] = field()
