"""OffsetFetch (9) v1-v10: read a consumer group's stored offsets.

Versions: 2 makes `topics` null mean all of them. 7 can insist on offsets without open
transactions. 8 asks for many groups at once. 9 adds the member's epoch, 10 names topics by id.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Bool, Int16, Int32, Int64, String, Uuid


class OffsetFetchRequestTopic(Struct):
    name: String = field("", until=7)
    partition_indexes: list[Int32] = field(until=7)


class OffsetFetchRequestTopics(Struct):
    name: String = field("", since=8, until=9, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=10, ignorable=True)
    partition_indexes: list[Int32] = field(since=8)


class OffsetFetchRequestGroup(Struct):
    group_id: String = field("", since=8)
    member_id: String | None = field(None, since=9, nullable="9+", ignorable=True)
    member_epoch: Int32 = field(-1, since=9, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = field(since=8, nullable="8+")


class OffsetFetchRequest(Request["OffsetFetchResponse"], versions="1-10", flexible="6+"):
    group_id: String = field("", until=7)
    topics: list[OffsetFetchRequestTopic] | None = field(until=7, nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field(since=8)
    require_stable: Bool = field(False, since=7)


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = field(0, until=7)
    committed_offset: Int64 = field(0, until=7)
    committed_leader_epoch: Int32 = field(-1, since=5, until=7, ignorable=True)
    metadata: String | None = field("", until=7, nullable="0-7")
    error_code: Int16 = field(0, until=7)


class OffsetFetchResponseTopic(Struct):
    name: String = field("", until=7)
    partitions: list[OffsetFetchResponsePartition] = field(until=7)


class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32 = field(0, since=8)
    committed_offset: Int64 = field(0, since=8)
    committed_leader_epoch: Int32 = field(-1, since=8, ignorable=True)
    metadata: String | None = field("", since=8, nullable="8+")
    error_code: Int16 = field(0, since=8)


class OffsetFetchResponseTopics(Struct):
    name: String = field("", since=8, until=9, ignorable=True)
    topic_id: Uuid = field(ZERO_UUID, since=10, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field(since=8)


class OffsetFetchResponseGroup(Struct):
    group_id: String = field("", since=8)
    topics: list[OffsetFetchResponseTopics] = field(since=8)
    error_code: Int16 = field(0, since=8)


class OffsetFetchResponse(Message, answers=OffsetFetchRequest):
    throttle_time_ms: Int32 = field(0, since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(until=7)
    error_code: Int16 = field(0, since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(since=8)
