"""SaslHandshake v0–v1 that the connection's session does not take: refused.

Behaviour: ILLEGAL_SASL_STATE; a SASL listener's sessions answer the others. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.server.authentication.out_of_place import refuse_handshake
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: SaslHandshakeRequest
) -> None:
    refuse_handshake(context, request)
