"""DeleteRecords (21) v0-v2: move the log start offset of partitions forward."""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int16, Int32, Int64, String


class DeleteRecordsPartition(Struct):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = field()


class DeleteRecordsRequest(Request["DeleteRecordsResponse"], versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = field()
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = field()


class DeleteRecordsResponse(ThrottledResponse, answers=DeleteRecordsRequest):
    topics: list[DeleteRecordsTopicResult] = field()
