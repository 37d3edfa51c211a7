"""ShareGroupMemberMetadata (type 10 of `__consumer_offsets`, version 0): what a member of a share
group told about itself."""

from moldau.protocol.schema import Message, coordinator_record, field
from moldau.protocol.types import String


@coordinator_record(10, versions="0", flexible="none")
class ShareGroupMemberMetadataKey(Message):
    group_id: String = ""
    member_id: String = ""


@coordinator_record(10, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue(Message):
    rack_id: String | None = field("", nullable="0+")
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field()
