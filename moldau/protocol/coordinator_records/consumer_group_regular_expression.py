"""ConsumerGroupRegularExpression (type 16 of `__consumer_offsets`, version 0): the topics that a
regular expression of a consumer group resolved to."""

from moldau.protocol.schema import Message, coordinator_record, field
from moldau.protocol.types import Int64, String


@coordinator_record(16, versions="0", flexible="none")
class ConsumerGroupRegularExpressionKey(Message):
    group_id: String = ""
    regular_expression: String = ""


@coordinator_record(16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Message):
    topics: list[String] = field()
    version: Int64 = 0
    timestamp: Int64 = 0
