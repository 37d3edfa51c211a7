"""ExpireDelegationToken (40) v1-v2: end a delegation token early."""

from moldau.protocol.schema import Message, Request
from moldau.protocol.types import Bytes, Int16, Int32, Int64


class ExpireDelegationTokenRequest(
    Request["ExpireDelegationTokenResponse"], versions="1-2", flexible="2+"
):
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


class ExpireDelegationTokenResponse(Message, answers=ExpireDelegationTokenRequest):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
