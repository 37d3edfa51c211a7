"""DescribeProducers (61) v0: describe the producers that a partition remembers."""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Int16, Int32, Int64, String


class TopicRequest(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field()


class DescribeProducersRequest(Request["DescribeProducersResponse"], versions="0", flexible="0+"):
    topics: list[TopicRequest] = field()


class ProducerState(Struct):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")
    active_producers: list[ProducerState] = field()


class TopicResponse(Struct):
    name: String = ""
    partitions: list[PartitionResponse] = field()


class DescribeProducersResponse(Message, answers=DescribeProducersRequest):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = field()
