"""RemoveDelegationTokenRecord (type 26, version 0): a delegation token is removed."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import String


@metadata_record(26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord(Message):
    token_id: String = ""
