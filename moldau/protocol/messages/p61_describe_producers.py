"""DescribeProducers (61) v0: describe the producers that a partition remembers."""

from moldau.protocol.schema import FailablePartition, Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int32, Int64, String


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


class PartitionResponse(FailablePartition):
    error_message: String | None = field(None, nullable="0+")
    active_producers: list[ProducerState] = field()


class TopicResponse(Struct):
    name: String = ""
    partitions: list[PartitionResponse] = field()


class DescribeProducersResponse(ThrottledResponse, answers=DescribeProducersRequest):
    topics: list[TopicResponse] = field()
