"""AssignReplicasToDirs (73) v0: a broker reports which log directory holds each replica."""

from moldau.protocol.schema import FailableResponse, Request, Struct, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, Uuid


class PartitionData(Struct):
    partition_index: Int32 = 0


class TopicData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


class DirectoryData(Struct):
    id: Uuid = ZERO_UUID
    topics: list[TopicData] = field()


class AssignReplicasToDirsRequest(
    Request["AssignReplicasToDirsResponse"], versions="0", flexible="0+"
):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[DirectoryData] = field()


class PartitionDataResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TopicDataResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionDataResponse] = field()


class DirectoryDataResponse(Struct):
    id: Uuid = ZERO_UUID
    topics: list[TopicDataResponse] = field()


class AssignReplicasToDirsResponse(FailableResponse, answers=AssignReplicasToDirsRequest):
    directories: list[DirectoryDataResponse] = field()
