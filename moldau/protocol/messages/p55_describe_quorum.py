"""DescribeQuorum (55) v0-v2: describe the controller quorum.

Versions: 1 adds fetch times, 2 directories, listeners and error texts.
"""

from moldau.protocol.messages.quorum_records import Endpoint
from moldau.protocol.schema import FailablePartition, Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, String, Uuid


class PartitionData(Struct):
    partition_index: Int32 = 0


class TopicData(Struct):
    topic_name: String = ""
    partitions: list[PartitionData] = field()


class DescribeQuorumRequest(Request["DescribeQuorumResponse"], versions="0-2", flexible="0+"):
    topics: list[TopicData] = field()


class ReplicaState(Struct):
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field(ZERO_UUID, since=2)
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Int64 = field(-1, since=1, ignorable=True)
    last_caught_up_timestamp: Int64 = field(-1, since=1, ignorable=True)


class PartitionDataResponse(FailablePartition):
    error_message: String | None = field("", since=2, nullable="2+", ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = field()
    observers: list[ReplicaState] = field()


class TopicDataResponse(Struct):
    topic_name: String = ""
    partitions: list[PartitionDataResponse] = field()


class Node(Struct):
    node_id: Int32 = field(0, since=2)
    listeners: list[Endpoint] = field(since=2)


class DescribeQuorumResponse(Message, answers=DescribeQuorumRequest):
    error_code: Int16 = 0
    error_message: String | None = field("", since=2, nullable="2+", ignorable=True)
    topics: list[TopicDataResponse] = field()
    nodes: list[Node] = field(since=2)
