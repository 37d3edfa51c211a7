"""BeginQuorumEpoch (53) v0-v1: announce a new leader of the controller quorum.

Versions: 1 names voters by directory and carries endpoints.
"""

from moldau.protocol.messages.p54_end_quorum_epoch import TopicDataResponse
from moldau.protocol.messages.quorum_records import Endpoint, NodeEndpoint
from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uuid


class PartitionData(Struct):
    partition_index: Int32 = 0
    voter_directory_id: Uuid = field(ZERO_UUID, since=1, ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class TopicData(Struct):
    topic_name: String = ""
    partitions: list[PartitionData] = field()


class BeginQuorumEpochRequest(Request["BeginQuorumEpochResponse"], versions="0-1", flexible="1+"):
    cluster_id: String | None = field(None, nullable="0+")
    voter_id: Int32 = field(-1, since=1, ignorable=True)
    topics: list[TopicData] = field()
    leader_endpoints: list[Endpoint] = field(since=1, ignorable=True)


class BeginQuorumEpochResponse(Message, answers=BeginQuorumEpochRequest):
    error_code: Int16 = 0
    topics: list[TopicDataResponse] = field()
    node_endpoints: list[NodeEndpoint] = field(since=1, tag=0)
