"""The payloads of JoinGroup and SyncGroup in a classic consumer group."""

from moldau.protocol.schema import Message, Struct, data, field, struct
from moldau.protocol.types import Bytes, Int32, String


@struct
class OwnedTopic(Struct):
    topic: String = field("", since=1)
    partitions: list[Int32] = field(since=1)


@data(versions="0-3", flexible="none")
class ConsumerProtocolSubscription(Message):
    """What a member asks for."""

    topics: list[String] = field()
    user_data: Bytes | None = field(None, nullable="0+")
    owned_partitions: list[OwnedTopic] = field(since=1, ignorable=True)
    generation_id: Int32 = field(-1, since=2, ignorable=True)
    rack_id: String | None = field(None, since=3, nullable="3+", ignorable=True)


@struct
class TopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


@data(versions="0-3", flexible="none")
class ConsumerProtocolAssignment(Message):
    """What the leader assigns to one member."""

    assigned_partitions: list[TopicPartition] = field()
    user_data: Bytes | None = field(None, nullable="0+")
