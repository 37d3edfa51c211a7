"""ConsumerGroupMemberMetadata (type 5 of `__consumer_offsets`, version 0): what a member of a
consumer group told about itself."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Bytes, Int32, String


@coordinator_record(5, versions="0", flexible="none")
class ConsumerGroupMemberMetadataKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class ClassicProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


@struct
class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = field()


@coordinator_record(5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
    instance_id: String | None = field("", nullable="0+")
    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()
    subscribed_topic_regex: String | None = field("", nullable="0+")
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = field("", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(nullable="0+", tag=0)
