"""The records of committed offsets and classic groups, in `__consumer_offsets`."""

from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import ZERO_UUID, Bytes, Int32, Int64, String, Uuid


class LegacyOffsetCommitKey(Message, number=0, versions="0", flexible="none"):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class LegacyOffsetCommitValue(Message, number=0, versions="0", flexible="none"):
    """A stored offset in the form of old brokers; only read."""

    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp: Int64 = 0


class OffsetCommitKey(Message, number=1, versions="0", flexible="none"):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Message, number=1, versions="0-4", flexible="4+"):
    offset: Int64 = 0
    leader_epoch: Int32 = field(-1, since=3, ignorable=True)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = field(-1, since=1, until=1, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=4, tag=0, ignorable=True)


class GroupMetadataKey(Message, number=2, versions="0", flexible="none"):
    group: String = ""


class MemberMetadata(Struct):
    member_id: String = ""
    group_instance_id: String | None = field(None, since=3, nullable="3+", ignorable=True)
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Int32 = field(-1, since=1, ignorable=True)
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(Message, number=2, versions="0-4", flexible="4+"):
    """A classic group."""

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = field("", nullable="0+")
    leader: String | None = field("", nullable="0+")
    current_state_timestamp: Int64 = field(-1, since=2, ignorable=True)
    members: list[MemberMetadata] = field()
