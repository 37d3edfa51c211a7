"""SaslAuthenticate v0–v2 that the connection's session does not take: refused.

Behaviour: ILLEGAL_SASL_STATE; a SASL listener's sessions answer the others. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.services import BrokerServices
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.server.authentication.out_of_place import refuse_token
from moldau.server.request import RequestContext


def handle(
    services: BrokerServices, context: RequestContext, request: SaslAuthenticateRequest
) -> None:
    refuse_token(context, request)
