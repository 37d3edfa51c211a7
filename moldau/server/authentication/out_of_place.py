"""SaslHandshake v0–v1 and SaslAuthenticate v0–v2 where no session waits for them: refused.

On a SASL listener the connection's gate answers first. What comes here belongs to a listener
without SASL, or to a session that cannot be renewed now (KIP-368).
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p36_sasl_authenticate as p36
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.server.request import RequestContext


def refuse_handshake(context: RequestContext, request: SaslHandshakeRequest) -> None:
    context.respond(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))


def refuse_token(context: RequestContext, request: p36.SaslAuthenticateRequest) -> None:
    context.respond(
        p36.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="no mechanism waits for a token on this connection",
        )
    )
