"""What a CreateDelegationToken request says, and the refusal of one (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

NO_TIME: Final = -1


def owner_of(request: CreateDelegationTokenRequest, requester: str) -> str:
    """The principal that a new token is for ("User:alice"): the requester, or one that is named."""
    if not request.owner_principal_name:
        return requester
    return f"{request.owner_principal_type or ''}:{request.owner_principal_name}"


def without_token(
    request: CreateDelegationTokenRequest, requester: str, error: ErrorCode
) -> CreateDelegationTokenResponse:
    """The response that has no token: for whom it would have been, and who asked."""
    response = CreateDelegationTokenResponse(
        error_code=error,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )
    owner = owner_of(request, requester)
    response.principal_type, _, response.principal_name = owner.partition(":")
    kind, _, name = requester.partition(":")
    response.token_requester_principal_type = kind
    response.token_requester_principal_name = name
    return response
