"""DescribeDelegationToken (41) v1-v3: describe delegation tokens.

Versions: 3 names who asked for the token.
"""

from moldau.protocol.messages.p38_create_delegation_token import TokenPrincipal
from moldau.protocol.schema import Message, Request, Struct, field
from moldau.protocol.types import Bytes, Int16, Int32, Int64, String


class DescribeDelegationTokenRequest(
    Request["DescribeDelegationTokenResponse"], versions="1-3", flexible="2+"
):
    owners: list[TokenPrincipal] | None = field(nullable="0+")


class DescribedDelegationToken(Struct):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = field("", since=3)
    token_requester_principal_name: String = field("", since=3)
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[TokenPrincipal] = field()


class DescribeDelegationTokenResponse(Message, answers=DescribeDelegationTokenRequest):
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = field()
    throttle_time_ms: Int32 = 0
