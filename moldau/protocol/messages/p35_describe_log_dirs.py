"""DescribeLogDirs (35) v1-v5: describe a broker's log directories and the replicas in them.

Versions: 3 adds an error for the whole answer, 4 volume sizes. 5 says whether a directory is
cordoned.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int16, Int32, Int64, String


class DescribableLogDirTopic(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"], versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = field(nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Struct):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = field()


class DescribeLogDirsResult(Struct):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = field()
    total_bytes: Int64 = field(-1, since=4, ignorable=True)
    usable_bytes: Int64 = field(-1, since=4, ignorable=True)
    is_cordoned: Bool = field(False, since=5, ignorable=True)


class DescribeLogDirsResponse(ThrottledResponse, answers=DescribeLogDirsRequest):
    error_code: Int16 = field(0, since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = field()
