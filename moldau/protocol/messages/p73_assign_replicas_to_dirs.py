"""AssignReplicasToDirs (73) v0: a broker reports which log directory holds each replica."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, Struct, field, request, response, struct
from moldau.protocol.types import ZERO_UUID, Int16, Int32, Int64, Uuid


@struct
class PartitionData(Struct):
    partition_index: Int32 = 0


@struct
class TopicData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = field()


@struct
class DirectoryData(Struct):
    id: Uuid = ZERO_UUID
    topics: list[TopicData] = field()


@request(ApiKey.ASSIGN_REPLICAS_TO_DIRS, versions="0", flexible="0+")
class AssignReplicasToDirsRequest(Request["AssignReplicasToDirsResponse"]):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[DirectoryData] = field()


@struct
class PartitionDataResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class TopicDataResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionDataResponse] = field()


@struct
class DirectoryDataResponse(Struct):
    id: Uuid = ZERO_UUID
    topics: list[TopicDataResponse] = field()


@response(ApiKey.ASSIGN_REPLICAS_TO_DIRS, versions="0", flexible="0+")
class AssignReplicasToDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[DirectoryDataResponse] = field()
