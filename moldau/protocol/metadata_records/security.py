"""The records of access control entries, delegation tokens and SCRAM credentials."""

from moldau.protocol.schema import Message, field, metadata_record
from moldau.protocol.types import ZERO_UUID, Bytes, Int8, Int32, Int64, String, Uuid


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


@metadata_record(19, versions="0", flexible="0+")
class RemoveAccessControlEntryRecord(Message):
    id: Uuid = ZERO_UUID


@metadata_record(10, versions="0", flexible="0+")
class DelegationTokenRecord(Message):
    owner: String = ""
    requester: String = ""
    renewers: list[String] = field()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""


@metadata_record(26, versions="0", flexible="0+")
class RemoveDelegationTokenRecord(Message):
    token_id: String = ""


@metadata_record(11, versions="0", flexible="0+")
class UserScramCredentialRecord(Message):
    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0


@metadata_record(22, versions="0", flexible="0+")
class RemoveUserScramCredentialRecord(Message):
    name: String = ""
    mechanism: Int8 = 0
