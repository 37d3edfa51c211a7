"""TxnOffsetCommit (28) v0-v5: store a group's offsets as part of a transaction.

Versions: 2 adds leader epochs, 3 the group member's identity.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int16, Int32, Int64, String


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(-1, since=2, ignorable=True)
    committed_metadata: String | None = field("", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = field()


class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"], versions="0-5", flexible="3+"):
    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Int32 = field(-1, since=3)
    member_id: String = field("", since=3)
    group_instance_id: String | None = field(None, since=3, nullable="3+")
    topics: list[TxnOffsetCommitRequestTopic] = field()


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Struct):
    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = field()


class TxnOffsetCommitResponse(ThrottledResponse, answers=TxnOffsetCommitRequest):
    topics: list[TxnOffsetCommitResponseTopic] = field()
