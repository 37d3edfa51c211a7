"""DescribeTopicPartitions (75) v0: describe topics page by page."""

from moldau.constants import MIN_INT32
from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, String, Uuid


class TopicRequest(Struct):
    name: String = ""


class Cursor(Struct):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(
    Request["DescribeTopicPartitionsResponse"], versions="0", flexible="0+"
):
    topics: list[TopicRequest] = field()
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = field(None, nullable="0+")


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    eligible_leader_replicas: list[Int32] | None = field(None, nullable="0+")
    last_known_elr: list[Int32] | None = field(None, nullable="0+")
    offline_replicas: list[Int32] = field()


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16 = 0
    name: String | None = field("", nullable="0+")
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field()
    topic_authorized_operations: Int32 = MIN_INT32


class DescribeTopicPartitionsResponse(ThrottledResponse, answers=DescribeTopicPartitionsRequest):
    topics: list[DescribeTopicPartitionsResponseTopic] = field()
    next_cursor: Cursor | None = field(None, nullable="0+")
