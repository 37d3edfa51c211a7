"""SaslAuthenticate (36) v0-v2: one step of the SASL exchange.

Versions: 1 adds the session's lifetime.
"""

from moldau.protocol.schema import Message, Request, field
from moldau.protocol.types import Bytes, Int16, Int64, String


class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"], versions="0-2", flexible="2+"):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message, answers=SaslAuthenticateRequest):
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
    auth_bytes: Bytes = b""
    session_lifetime_ms: Int64 = field(0, since=1, ignorable=True)
