"""SaslHandshake (17) v0-v1: choose the SASL mechanism.

Versions: 1 sends what follows in SaslAuthenticate requests.
"""

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.schema import Message, Request, field, request
from moldau.protocol.types import Int16, String


@request(ApiKey.SASL_HANDSHAKE, versions="0-1", flexible="none")
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    mechanism: String = ""


class SaslHandshakeResponse(Message, answers=SaslHandshakeRequest):
    error_code: Int16 = 0
    mechanisms: list[String] = field()
