"""DelegationTokenRecord (type 10, version 0): a delegation token."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import Int64, String


@metadata_record(10, versions="0", flexible="0+")
class DelegationTokenRecord(Message):
    owner: String = ""
    requester: String = ""
    renewers: list[String] = field()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""
