"""OffsetForLeaderEpoch (23) v2-v4: find where a leader epoch ends in the leader's log.

Versions: 3 names the asking replica. 4 is flexible.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int16, Int32, Int64, String


class OffsetForLeaderPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Struct):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = field()


class OffsetForLeaderEpochRequest(
    Request["OffsetForLeaderEpochResponse"], versions="2-4", flexible="4+"
):
    replica_id: Int32 = field(-2, since=3, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field()


class EpochEndOffset(Struct):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Struct):
    topic: String = ""
    partitions: list[EpochEndOffset] = field()


class OffsetForLeaderEpochResponse(ThrottledResponse, answers=OffsetForLeaderEpochRequest):
    topics: list[OffsetForLeaderTopicResult] = field()
