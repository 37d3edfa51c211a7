"""EndQuorumEpoch (54) v0-v1: announce that the quorum's leader resigns.

Versions: 1 names candidates by directory and carries endpoints.
"""

from moldau.protocol.messages.quorum_records import Endpoint, NodeEndpoint
from moldau.protocol.schema import FailablePartition, Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uuid


class ReplicaInfo(Struct):
    candidate_id: Int32 = field(0, since=1)
    candidate_directory_id: Uuid = field(ZERO_UUID, since=1)


class PartitionData(Struct):
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    preferred_successors: list[Int32] = field(until=0, ignorable=True)
    preferred_candidates: list[ReplicaInfo] = field(since=1, ignorable=True)


class TopicData(Struct):
    topic_name: String = ""
    partitions: list[PartitionData] = field()


class EndQuorumEpochRequest(Request["EndQuorumEpochResponse"], versions="0-1", flexible="1+"):
    cluster_id: String | None = field(None, nullable="0+")
    topics: list[TopicData] = field()
    leader_endpoints: list[Endpoint] = field(since=1, ignorable=True)


class PartitionDataResponse(FailablePartition):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class TopicDataResponse(Struct):
    topic_name: String = ""
    partitions: list[PartitionDataResponse] = field()


class EndQuorumEpochResponse(Message, answers=EndQuorumEpochRequest):
    error_code: Int16 = 0
    topics: list[TopicDataResponse] = field()
    node_endpoints: list[NodeEndpoint] = field(since=1, tag=0)
