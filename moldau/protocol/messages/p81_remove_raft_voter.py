"""RemoveRaftVoter (81) v0: remove a voter from the controller quorum."""

from moldau.protocol.schema import ExplainedResponse, Request, field
from moldau.protocol.types import ZERO_UUID, Int32, String, Uuid


class RemoveRaftVoterRequest(Request["RemoveRaftVoterResponse"], versions="0", flexible="0+"):
    cluster_id: String | None = field("", nullable="0+")
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


class RemoveRaftVoterResponse(ExplainedResponse, answers=RemoveRaftVoterRequest):
    """It says no more."""
