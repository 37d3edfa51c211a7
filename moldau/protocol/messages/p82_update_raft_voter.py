"""UpdateRaftVoter (82) v0: a voter sends the leader its endpoints and versions."""

from moldau.protocol.messages.quorum_records import Endpoint, KRaftVersionFeature
from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


class UpdateRaftVoterRequest(Request["UpdateRaftVoterResponse"], versions="0", flexible="0+"):
    cluster_id: String | None = field("", nullable="0+")
    current_leader_epoch: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Endpoint] = field()
    kraft_version_feature: KRaftVersionFeature = field()


class CurrentLeader(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: String = ""
    port: Int32 = 0


class UpdateRaftVoterResponse(FailableResponse, answers=UpdateRaftVoterRequest):
    current_leader: CurrentLeader = field(tag=0)
