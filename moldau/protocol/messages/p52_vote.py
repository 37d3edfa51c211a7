"""Vote (52) v0-v2: ask for a vote in the controller quorum.

Versions: 1 names voters by directory too, 2 adds the pre-vote.
"""

from moldau.protocol.messages.quorum_records import NodeEndpoint
from moldau.protocol.schema import FailablePartition, Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, Int64, String, Uuid


class PartitionData(Struct):
    partition_index: Int32 = 0
    replica_epoch: Int32 = 0
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field(ZERO_UUID, since=1, ignorable=True)
    voter_directory_id: Uuid = field(ZERO_UUID, since=1, ignorable=True)
    last_offset_epoch: Int32 = 0
    last_offset: Int64 = 0
    pre_vote: Bool = field(False, since=2)


class TopicData(Struct):
    topic_name: String = ""
    partitions: list[PartitionData] = field()


class VoteRequest(Request["VoteResponse"], versions="0-2", flexible="0+"):
    cluster_id: String | None = field(None, nullable="0+")
    voter_id: Int32 = field(-1, since=1, ignorable=True)
    topics: list[TopicData] = field()


class PartitionDataResponse(FailablePartition):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    vote_granted: Bool = False


class TopicDataResponse(Struct):
    topic_name: String = ""
    partitions: list[PartitionDataResponse] = field()


class VoteResponse(Message, answers=VoteRequest):
    error_code: Int16 = 0
    topics: list[TopicDataResponse] = field()
    node_endpoints: list[NodeEndpoint] = field(since=1, tag=0)
