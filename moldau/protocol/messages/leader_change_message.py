"""The control record with which a new leader of the quorum opens its epoch."""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Uuid


@struct
class Voter(Struct):
    voter_id: Int32 = 0
    voter_directory_id: Uuid = field(ZERO_UUID, since=1)


@data(versions="0-1", flexible="0+")
class LeaderChangeMessage(Message):
    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[Voter] = field()
    granting_voters: list[Voter] = field()
