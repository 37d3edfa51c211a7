"""What the leader of a classic consumer group assigns to one member."""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import Bytes, Int32, String


@struct
class TopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


@data(versions="0-3", flexible="none")
class ConsumerProtocolAssignment(Message):
    assigned_partitions: list[TopicPartition] = field()
    user_data: Bytes | None = field(None, nullable="0+")
