"""Create-, Renew- and ExpireDelegationToken, on their way to the active controller (KIP-48).

Behaviour: only a client that has authenticated itself, and not with a token, may ask: on a
PLAINTEXT listener, or on an SSL listener without a certificate, no client has. The controller
authorises and decides the rest. Known gaps: none.
"""

from __future__ import annotations

from moldau.broker.api import forwarding
from moldau.broker.api.services import BrokerServices
from moldau.config.listeners import SecurityProtocol
from moldau.protocol.delegation_tokens import NO_TIME, without_token
from moldau.protocol.error_responses import fit_version
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p40_expire_delegation_token as p40
from moldau.protocol.messages.p38_create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.p39_renew_delegation_token import RenewDelegationTokenResponse
from moldau.protocol.schema import AnyRequest, Message
from moldau.server.request import RequestContext
from moldau.server.server_connection import ANONYMOUS


async def answer(
    services: BrokerServices, context: RequestContext, request: AnyRequest
) -> Message | bytes:
    if may_ask(services, context):
        return await forwarding.answer(services, context, request)
    error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if isinstance(request, CreateDelegationTokenRequest):
        response = without_token(request, context.principal, error)
        fit_version(response, context.api_version)
        return response
    if isinstance(request, p40.ExpireDelegationTokenRequest):
        return p40.ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=NO_TIME)
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=NO_TIME)


def may_ask(services: BrokerServices, context: RequestContext) -> bool:
    """Whether a client may ask about tokens at all."""
    connection = context.request.connection
    protocol = services.node_config.listener_security_protocols[context.listener_name]
    if connection.token_authenticated or protocol is SecurityProtocol.PLAINTEXT:
        return False
    return protocol is not SecurityProtocol.SSL or context.principal != ANONYMOUS
