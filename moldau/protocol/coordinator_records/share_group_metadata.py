"""ShareGroupMetadata (type 11 of `__consumer_offsets`, version 0): the epoch of a share group."""

from moldau.protocol.schema import Message, coordinator_record
from moldau.protocol.types import Int32, Int64, String


@coordinator_record(11, versions="0", flexible="none")
class ShareGroupMetadataKey(Message):
    group_id: String = ""


@coordinator_record(11, versions="0", flexible="0+")
class ShareGroupMetadataValue(Message):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0
