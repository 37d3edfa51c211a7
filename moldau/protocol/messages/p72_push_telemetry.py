"""PushTelemetry (72) v0: push client metrics."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, request, response
from moldau.protocol.types import ZERO_UUID, Bool, Bytes, Int8, Int16, Int32, Uuid


@request(ApiKey.PUSH_TELEMETRY, versions="0", flexible="0+")
class PushTelemetryRequest(Message):
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


@response(ApiKey.PUSH_TELEMETRY, versions="0", flexible="0+")
class PushTelemetryResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
