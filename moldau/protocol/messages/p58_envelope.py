"""Envelope (58) v0: carry a client's request from a broker to the controller."""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, field, request, response
from moldau.protocol.types import Bytes, Int16


@request(ApiKey.ENVELOPE, versions="0", flexible="0+")
class EnvelopeRequest(Message):
    request_data: Bytes = b""
    request_principal: Bytes | None = field(b"", nullable="0+")
    client_host_address: Bytes = b""


@response(ApiKey.ENVELOPE, versions="0", flexible="0+")
class EnvelopeResponse(Message):
    response_data: Bytes | None = field(None, nullable="0+")
    error_code: Int16 = 0
