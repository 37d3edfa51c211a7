"""AlterReplicaLogDirs (34) v1-v2: move replicas between log directories of one broker. Not served:
`moldau.broker.replica.log_opener` says where such a move would begin.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Int16, Int32, String


class AlterReplicaLogDirTopic(Struct):
    name: String = ""
    partitions: list[Int32] = field()


class AlterReplicaLogDir(Struct):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = field()


class AlterReplicaLogDirsRequest(
    Request["AlterReplicaLogDirsResponse"], versions="1-2", flexible="2+"
):
    dirs: list[AlterReplicaLogDir] = field()


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = field()


class AlterReplicaLogDirsResponse(ThrottledResponse, answers=AlterReplicaLogDirsRequest):
    results: list[AlterReplicaLogDirTopicResult] = field()
