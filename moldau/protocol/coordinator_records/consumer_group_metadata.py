"""ConsumerGroupMetadata (type 3 of `__consumer_offsets`, version 0): the epoch of a consumer
group."""

from moldau.protocol.schema import Message, coordinator_record, field
from moldau.protocol.types import Int32, Int64, String


@coordinator_record(3, versions="0", flexible="none")
class ConsumerGroupMetadataKey(Message):
    group_id: String = ""


@coordinator_record(3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    epoch: Int32 = 0
    metadata_hash: Int64 = field(0, tag=0)
