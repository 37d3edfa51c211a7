"""What a node keeps in its `quorum-state` file (as JSON, never in binary)."""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import ZERO_UUID, Int32, Int64, String, Uuid


@struct
class Voter(Struct):
    voter_id: Int32 = field(0, until=0)


@data(versions="0-1", flexible="0+")
class QuorumStateData(Message):
    cluster_id: String = field("", until=0)
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    voted_id: Int32 = -1
    voted_directory_id: Uuid = field(ZERO_UUID, since=1)
    applied_offset: Int64 = field(0, until=0)
    current_voters: list[Voter] | None = field(until=0, nullable="0")
