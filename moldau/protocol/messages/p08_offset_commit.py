"""OffsetCommit (8) v2-v10: store a consumer group's offsets.

Versions: 2 to 4 may set a retention time. 6 adds leader epochs, 7 static membership, 8 is
flexible. 9 serves the new group protocol's member epochs. 10 names topics by id.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, String, Uuid


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(-1, since=6, ignorable=True)
    committed_metadata: String | None = field("", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: String = field("", until=9, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=10, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field()


class OffsetCommitRequest(Request["OffsetCommitResponse"], versions="2-10", flexible="8+"):
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: String | None = field(None, since=7, nullable="7+")
    retention_time_ms: Int64 = field(-1, until=4, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = field()


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Struct):
    name: String = field("", until=9, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=10, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field()


class OffsetCommitResponse(Message, answers=OffsetCommitRequest):
    throttle_time_ms: Int32 = field(0, since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field()
