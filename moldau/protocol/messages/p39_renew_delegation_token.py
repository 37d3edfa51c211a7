"""RenewDelegationToken (39) v1-v2: renew a delegation token."""

from moldau.protocol.schema import Message, Request
from moldau.protocol.types import Bytes, Int16, Int32, Int64


class RenewDelegationTokenRequest(
    Request["RenewDelegationTokenResponse"], versions="1-2", flexible="2+"
):
    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


class RenewDelegationTokenResponse(Message, answers=RenewDelegationTokenRequest):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
