"""StreamsGroupMetadata (type 17 of `__consumer_offsets`, version 0): a streams group itself."""

from moldau.protocol.schema import Message, Struct, coordinator_record, field, struct
from moldau.protocol.types import Int32, Int64, String


@coordinator_record(17, versions="0", flexible="none")
class StreamsGroupMetadataKey(Message):
    group_id: String = ""


@struct
class LastAssignmentConfig(Struct):
    key: String = ""
    value: String = ""


@coordinator_record(17, versions="0", flexible="0+")
class StreamsGroupMetadataValue(Message):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Int32 = field(-1, tag=0)
    last_assignment_configs: list[LastAssignmentConfig] | None = field(nullable="0+", tag=1)
