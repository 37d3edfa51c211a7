"""GetTelemetrySubscriptions (71) v0: ask which metrics the client should push (KIP-714)."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, field, request, response
from moldau.protocol.types import ZERO_UUID, Bool, Int8, Int16, Int32, String, Uuid


@request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest(Message):
    client_instance_id: Uuid = ZERO_UUID


@response(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = field()
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = field()
