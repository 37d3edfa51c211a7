"""DescribeDelegationToken v1–v3: tokens with their secrets, from this broker's image (KIP-48,
KIP-373).

Behaviour: as for the other requests about tokens, the client must have authenticated itself. A
token is shown to its owner, its requester, its renewers, and to senders with DESCRIBE on the token
or DESCRIBE_TOKENS on its owner; an answer is built from one image. Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.api.delegation_tokens import may_ask
from moldau.broker.api.services import BrokerServices
from moldau.metadata.image.security import DelegationToken
from moldau.metadata.steps import Steps
from moldau.metadata.token_secrets import TokenSecrets
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.error_responses import fit_version
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p41_describe_delegation_token as p41
from moldau.protocol.messages.p38_create_delegation_token import TokenPrincipal
from moldau.runtime.slices import completed
from moldau.server.request import RequestContext, Sender


async def answer(
    services: BrokerServices, context: RequestContext, request: p41.DescribeDelegationTokenRequest
) -> p41.DescribeDelegationTokenResponse:
    error = ErrorCode.NONE
    if not may_ask(services, context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif not services.token_secrets.is_enabled:
        error = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if error is not ErrorCode.NONE:
        return p41.DescribeDelegationTokenResponse(error_code=error)
    tokens = services.metadata.image.delegation_tokens.tokens_by_id
    steps = described_tokens(tokens, services.token_secrets, context, request)
    response = await completed(services.clock, steps)
    fit_version(response, context.api_version)
    return response


def described_tokens(
    tokens: Mapping[str, DelegationToken],
    secrets: TokenSecrets,
    sender: Sender,
    request: p41.DescribeDelegationTokenRequest,
) -> Steps[p41.DescribeDelegationTokenResponse]:
    """The tokens that the named principals own, have asked for or may renew; all without names."""
    response = p41.DescribeDelegationTokenResponse()
    named = None
    if request.owners is not None:
        named = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
        if not named:
            return response
    secrets.follow(tokens)
    for token_id, token in tokens.items():
        yield
        concerned = {token.owner, token.requester, *token.renewers}
        if named is not None and not named & concerned:
            continue
        if sender.principal in concerned or _may_see(sender, token_id, token):
            response.tokens.append(_described(token_id, token, secrets.hmac_of(token_id)))
    return response


def _may_see(sender: Sender, token_id: str, token: DelegationToken) -> bool:
    return sender.authorized(
        Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id
    ) or sender.authorized(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)


def _described(token_id: str, token: DelegationToken, hmac: bytes) -> p41.DescribedDelegationToken:
    kind, _, name = token.owner.partition(":")
    requester_kind, _, requester_name = token.requester.partition(":")
    return p41.DescribedDelegationToken(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token_id,
        hmac=hmac,
        renewers=[_principal(each) for each in token.renewers],
    )


def _principal(text: str) -> TokenPrincipal:
    kind, _, name = text.partition(":")
    return TokenPrincipal(principal_type=kind, principal_name=name)
