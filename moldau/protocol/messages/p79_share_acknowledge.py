"""ShareAcknowledge (79) v1-v2: acknowledge records of share partitions.

Versions: 2 can renew the locks of records.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, Int64, String, Uuid


@struct
class AcknowledgementBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = field()


@struct
class AcknowledgePartition(Struct):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field()


@struct
class AcknowledgeTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = field()


@request(ApiKey.SHARE_ACKNOWLEDGE, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest(Message):
    group_id: String | None = field(None, nullable="0+")
    member_id: String | None = field("", nullable="0+")
    share_session_epoch: Int32 = 0
    is_renew_ack: Bool = field(False, since=2)
    topics: list[AcknowledgeTopic] = field()


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class PartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    current_leader: LeaderIdAndEpoch = field()


@struct
class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


@struct
class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = field(None, nullable="0+")


@response(ApiKey.SHARE_ACKNOWLEDGE, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    acquisition_lock_timeout_ms: Int32 = field(0, since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = field()
    node_endpoints: list[NodeEndpoint] = field()
