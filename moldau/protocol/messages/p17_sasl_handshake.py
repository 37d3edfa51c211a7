"""SaslHandshake (17) v0-v1: choose the SASL mechanism.

Versions: 1 sends what follows in SaslAuthenticate requests.
"""

from moldau.protocol.schema import Message, Request, field
from moldau.protocol.types import Int16, String


class SaslHandshakeRequest(Request["SaslHandshakeResponse"], versions="0-1", flexible="none"):
    mechanism: String = ""


class SaslHandshakeResponse(Message, answers=SaslHandshakeRequest):
    error_code: Int16 = 0
    mechanisms: list[String] = field()
