"""CreateDelegationToken (38) v1-v3: create a delegation token.

Versions: 3 lets one principal create for another.
"""

from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bytes, Int16, Int32, Int64, String


class TokenPrincipal(Struct):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(
    Request["CreateDelegationTokenResponse"], versions="1-3", flexible="2+"
):
    owner_principal_type: String | None = field("", since=3, nullable="3+")
    owner_principal_name: String | None = field("", since=3, nullable="3+")
    renewers: list[TokenPrincipal] = field()
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(Message, answers=CreateDelegationTokenRequest):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = field("", since=3)
    token_requester_principal_name: String = field("", since=3)
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
