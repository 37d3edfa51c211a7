"""UnregisterBroker (64) v0: forget a broker."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, field, request
from moldau.protocol.types import Int16, Int32, String


@request(ApiKey.UNREGISTER_BROKER, versions="0", flexible="0+")
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(Message, answers=UnregisterBrokerRequest):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
