"""What a member of a classic consumer group asks for."""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import Bytes, Int32, String


@struct
class TopicPartition(Struct):
    topic: String = field("", since=1)
    partitions: list[Int32] = field(since=1)


@data(versions="0-3", flexible="none")
class ConsumerProtocolSubscription(Message):
    topics: list[String] = field()
    user_data: Bytes | None = field(None, nullable="0+")
    owned_partitions: list[TopicPartition] = field(since=1, ignorable=True)
    generation_id: Int32 = field(-1, since=2, ignorable=True)
    rack_id: String | None = field(None, since=3, nullable="3+", ignorable=True)
