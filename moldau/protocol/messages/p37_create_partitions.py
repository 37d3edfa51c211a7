"""CreatePartitions (37) v0-v3: add partitions to topics.

Versions: 2 is flexible, 3 may be throttled.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bool, Int16, Int32, String


class CreatePartitionsAssignment(Struct):
    broker_ids: list[Int32] = field()


class CreatePartitionsTopic(Struct):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = field(nullable="0+")


class CreatePartitionsRequest(Request["CreatePartitionsResponse"], versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = field()
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Struct):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = field(None, nullable="0+")


class CreatePartitionsResponse(ThrottledResponse, answers=CreatePartitionsRequest):
    results: list[CreatePartitionsTopicResult] = field()
