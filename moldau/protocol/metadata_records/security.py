"""The records of access control entries, delegation tokens and SCRAM credentials."""

from moldau.protocol.schema import Message, field
from moldau.protocol.types import ZERO_UUID, Bytes, Int8, Int32, Int64, String, Uuid


class AccessControlEntryRecord(Message, number=18, versions="0", flexible="0+"):
    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 0
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class RemoveAccessControlEntryRecord(Message, number=19, versions="0", flexible="0+"):
    id: Uuid = ZERO_UUID


class DelegationTokenRecord(Message, number=10, versions="0", flexible="0+"):
    owner: String = ""
    requester: String = ""
    renewers: list[String] = field()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""


class RemoveDelegationTokenRecord(Message, number=26, versions="0", flexible="0+"):
    token_id: String = ""


class UserScramCredentialRecord(Message, number=11, versions="0", flexible="0+"):
    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0


class RemoveUserScramCredentialRecord(Message, number=22, versions="0", flexible="0+"):
    name: String = ""
    mechanism: Int8 = 0
