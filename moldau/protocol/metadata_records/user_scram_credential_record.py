"""UserScramCredentialRecord (type 11, version 0): a SCRAM credential."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Bytes, Int8, Int32, String


@metadata_record(11, versions="0", flexible="0+")
class UserScramCredentialRecord(Message):
    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0
