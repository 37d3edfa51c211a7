"""UnregisterBroker (64) v0: forget a broker."""

from moldau.protocol.schema import Message, Request, field
from moldau.protocol.types import Int16, Int32, String


class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"], versions="0", flexible="0+"):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(Message, answers=UnregisterBrokerRequest):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
