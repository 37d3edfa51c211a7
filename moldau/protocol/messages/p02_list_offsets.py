"""ListOffsets (2) v1-v11: look up offsets by timestamp, or by one of the special timestamps below
zero.

Versions: 4 adds leader epochs, 6 is flexible. 7 asks for the record of the largest timestamp, 8
for the earliest local one. 9 asks for the last tiered one, 11 for the earliest not uploaded. 10
adds the request's timeout.
"""

from moldau.protocol.schema import FailablePartition, Message, Request, Struct, field
from moldau.protocol.types import Int8, Int32, Int64, String


class ListOffsetsPartition(Struct):
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = field(-1, since=4, ignorable=True)
    timestamp: Int64 = 0


class ListOffsetsTopic(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartition] = field()


class ListOffsetsRequest(Request["ListOffsetsResponse"], versions="1-11", flexible="6+"):
    replica_id: Int32 = 0
    isolation_level: Int8 = field(0, since=2)
    topics: list[ListOffsetsTopic] = field()
    timeout_ms: Int32 = field(0, since=10, ignorable=True)


class ListOffsetsPartitionResponse(FailablePartition):
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field(-1, since=4)


class ListOffsetsTopicResponse(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = field()


class ListOffsetsResponse(Message, answers=ListOffsetsRequest):
    throttle_time_ms: Int32 = field(0, since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field()
