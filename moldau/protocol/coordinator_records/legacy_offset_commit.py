"""LegacyOffsetCommit (type 0 of `__consumer_offsets`, version 0): a stored offset in the form of
old brokers; only read."""

from moldau.protocol.schema import Message, coordinator_record
from moldau.protocol.types import Int32, Int64, String


@coordinator_record(0, versions="0", flexible="none")
class LegacyOffsetCommitKey(Message):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@coordinator_record(0, versions="0", flexible="none")
class LegacyOffsetCommitValue(Message):
    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp: Int64 = 0
