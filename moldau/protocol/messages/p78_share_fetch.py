"""ShareFetch (78) v1-v2: acquire records of share partitions, and acknowledge earlier ones.

Versions: 2 adds the way records are acquired and renewing their locks.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, Int64, Records, String, Uuid


@struct
class AcknowledgementBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = field()


@struct
class FetchPartition(Struct):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field()


@struct
class FetchTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[FetchPartition] = field()


@struct
class ForgottenTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = field()


@request(ApiKey.SHARE_FETCH, versions="1-2", flexible="0+")
class ShareFetchRequest(Message):
    group_id: String | None = field(None, nullable="0+")
    member_id: String | None = field("", nullable="0+")
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Int8 = field(0, since=2, ignorable=True)
    is_renew_ack: Bool = field(False, since=2)
    topics: list[FetchTopic] = field()
    forgotten_topics_data: list[ForgottenTopic] = field()


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class AcquiredRecords(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


@struct
class PartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = field(None, nullable="0+")
    current_leader: LeaderIdAndEpoch = field()
    records: Records | None = None
    acquired_records: list[AcquiredRecords] = field()


@struct
class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


@struct
class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = field(None, nullable="0+")


@response(ApiKey.SHARE_FETCH, versions="1-2", flexible="0+")
class ShareFetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = field()
    node_endpoints: list[NodeEndpoint] = field()
