"""Produce (0) v3-v13: append record batches to partitions.

Versions: 9 is flexible. 8 adds per-record errors to the response. 10 lets the response name the
new leader. 12 implies that partitions join the transaction (KIP-890). 13 names topics by id.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, Records, String, Uuid


class PartitionProduceData(Struct):
    index: Int32 = 0
    records: Records | None = field(None, nullable="0+")


class TopicProduceData(Struct):
    name: String = field("", until=12, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = field()


class ProduceRequest(Request["ProduceResponse"], versions="3-13", flexible="9+"):
    transactional_id: String | None = field(None, nullable="3+")
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = field()


class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = field(0, since=8)
    batch_index_error_message: String | None = field(None, since=8, nullable="8+")


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = field(-1, since=10)
    leader_epoch: Int32 = field(-1, since=10)


class PartitionProduceResponse(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field(-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(since=8, ignorable=True)
    error_message: String | None = field(None, since=8, nullable="8+", ignorable=True)
    current_leader: LeaderIdAndEpoch = field(since=10, tag=0)


class TopicProduceResponse(Struct):
    name: String = field("", until=12, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field()


class NodeEndpoint(Struct):
    node_id: Int32 = field(0, since=10)
    host: String = field("", since=10)
    port: Int32 = field(0, since=10)
    rack: String | None = field(None, since=10, nullable="10+")


class ProduceResponse(Message, answers=ProduceRequest):
    responses: list[TopicProduceResponse] = field()
    throttle_time_ms: Int32 = 0
    node_endpoints: list[NodeEndpoint] = field(since=10, tag=0)
