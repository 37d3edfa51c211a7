"""RemoveAccessControlEntryRecord (type 19, version 0): an access control entry is removed."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import ZERO_UUID, Uuid


@metadata_record(19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord(Message):
    id: Uuid = ZERO_UUID
