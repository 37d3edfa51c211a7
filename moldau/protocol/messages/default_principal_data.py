"""An authenticated principal, as brokers forward it inside an Envelope."""

from moldau.protocol.schema import Message, data
from moldau.protocol.types import Bool, String


@data(versions="0", flexible="0+")
class DefaultPrincipalData(Message):
    type: String = ""
    name: String = ""
    token_authenticated: Bool = False
