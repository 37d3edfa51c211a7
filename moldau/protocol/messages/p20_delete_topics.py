"""DeleteTopics (20) v1-v6: delete topics.

Versions: 5 explains errors in words, 6 also takes topic ids.
"""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import ZERO_UUID, Int16, Int32, String, Uuid


class DeleteTopicState(Struct):
    name: String | None = field(None, since=6, nullable="6+")
    topic_id: Uuid = field(ZERO_UUID, since=6)


class DeleteTopicsRequest(Request["DeleteTopicsResponse"], versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = field(since=6)
    topic_names: list[String] = field(until=5, ignorable=True)
    timeout_ms: Int32 = 0


class DeletableTopicResult(Struct):
    name: String | None = field("", nullable="6+")
    topic_id: Uuid = field(ZERO_UUID, since=6, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = field(None, since=5, nullable="5+", ignorable=True)


class DeleteTopicsResponse(ThrottledResponse, answers=DeleteTopicsRequest):
    responses: list[DeletableTopicResult] = field()
