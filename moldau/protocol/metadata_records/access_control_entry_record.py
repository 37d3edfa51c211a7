"""AccessControlEntryRecord (type 18, version 0): an access control entry."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import ZERO_UUID, Int8, String, Uuid


@metadata_record(18, versions="0", flexible="0+")
class AccessControlEntryRecord(Message):
    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 0
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0
