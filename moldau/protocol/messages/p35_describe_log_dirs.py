"""DescribeLogDirs (35) v1-v5: describe a broker's log directories and the replicas in them.

Versions: 3 adds an error for the whole answer, 4 volume sizes. 5 says whether a directory is
cordoned.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, Struct, field, request, response, struct
from moldau.protocol.types import Bool, Int16, Int32, Int64, String


@struct
class DescribableLogDirTopic(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


@request(ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible="2+")
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    topics: list[DescribableLogDirTopic] | None = field(nullable="0+")


@struct
class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


@struct
class DescribeLogDirsTopic(Struct):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = field()


@struct
class DescribeLogDirsResult(Struct):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = field()
    total_bytes: Int64 = field(-1, since=4, ignorable=True)
    usable_bytes: Int64 = field(-1, since=4, ignorable=True)
    is_cordoned: Bool = field(False, since=5, ignorable=True)


@response(ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible="2+")
class DescribeLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(0, since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = field()
