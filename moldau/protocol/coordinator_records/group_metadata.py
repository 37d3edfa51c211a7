"""GroupMetadata (type 2 of `__consumer_offsets`, versions 0-4): a classic group."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Bytes, Int32, Int64, String


@coordinator_record(2, versions="0", flexible="none")
class GroupMetadataKey(Message):
    group: String = ""


@struct
class MemberMetadata(Struct):
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3, nullable="3+", ignorable=True)
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Int32 = field(-1, since=1, ignorable=True)
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


@coordinator_record(2, versions="0-4", flexible="4+")
class GroupMetadataValue(Message):
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = field("", nullable="0+")
    leader: String | None = field("", nullable="0+")
    current_state_timestamp: Int64 = field(-1, since=2, ignorable=True)
    members: list[MemberMetadata] = field()
