"""OffsetCommit (type 1 of `__consumer_offsets`, versions 0-4): a stored offset of a group."""

from moldau.protocol.schema import Message, coordinator_record, field
from moldau.protocol.types import ZERO_UUID, Int32, Int64, String, Uuid


@coordinator_record(1, versions="0", flexible="none")
class OffsetCommitKey(Message):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@coordinator_record(1, versions="0-4", flexible="4+")
class OffsetCommitValue(Message):
    offset: Int64 = 0
    leader_epoch: Int32 = field(-1, since=3, ignorable=True)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = field(-1, since=1, until=1, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=4, tag=0, ignorable=True)
