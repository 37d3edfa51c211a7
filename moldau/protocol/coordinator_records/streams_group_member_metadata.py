"""StreamsGroupMemberMetadata (type 19 of `__consumer_offsets`, version 0): what a member of a
streams group told about itself."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Int32, String, Uint16


@coordinator_record(19, versions="0", flexible="none")
class StreamsGroupMemberMetadataKey(Message):
    group_id: String = ""
    member_id: String = ""


@struct
class Endpoint(Struct):
    host: String = ""
    port: Uint16 = 0


@struct
class KeyValue(Struct):
    key: String = ""
    value: String = ""


@coordinator_record(19, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue(Message):
    instance_id: String | None = field("", nullable="0+")
    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = field(None, nullable="0+")
    client_tags: list[KeyValue] = field()
