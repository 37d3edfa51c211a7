"""RemoveUserScramCredentialRecord (type 22, version 0): a SCRAM credential is removed."""

from moldau.protocol.schema import Message, metadata_record
from moldau.protocol.types import Int8, String


@metadata_record(22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord(Message):
    name: String = ""
    mechanism: Int8 = 0
