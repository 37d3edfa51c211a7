"""AddRaftVoter (80) v0-v1: add a voter to the controller quorum.

Versions: 1 can answer before the change is committed.
"""

from moldau.protocol.messages.quorum_records import Endpoint
from moldau.protocol.schema import ExplainedResponse, Request, field
from moldau.protocol.types import ZERO_UUID, Bool, Int32, String, Uuid


class AddRaftVoterRequest(Request["AddRaftVoterResponse"], versions="0-1", flexible="0+"):
    cluster_id: String | None = field("", nullable="0+")
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Endpoint] = field()
    ack_when_committed: Bool = field(True, since=1)


class AddRaftVoterResponse(ExplainedResponse, answers=AddRaftVoterRequest):
    """It says no more."""
