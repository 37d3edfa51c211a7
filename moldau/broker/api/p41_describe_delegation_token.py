"""DescribeDelegationToken v1–v3: tokens with their secrets, from this broker's image (KIP-48).

Behaviour: as for the other requests about tokens, the client must have authenticated itself. Known
gaps: none.
"""

from __future__ import annotations

from moldau.broker.api.delegation_tokens import may_ask
from moldau.broker.api.services import BrokerServices
from moldau.protocol.error_responses import fit_version
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p41_describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from moldau.runtime.slices import completed
from moldau.server.described_tokens import described_tokens
from moldau.server.request import RequestContext


async def answer(
    services: BrokerServices, context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    error = ErrorCode.NONE
    if not may_ask(services, context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif not services.token_secrets.is_enabled:
        error = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if error is not ErrorCode.NONE:
        return DescribeDelegationTokenResponse(error_code=error)
    tokens = services.metadata.image.delegation_tokens.tokens_by_id
    steps = described_tokens(tokens, services.token_secrets, context, request)
    response = await completed(services.clock, steps)
    fit_version(response, context.api_version)
    return response
