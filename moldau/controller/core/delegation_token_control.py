"""Delegation tokens: made, renewed, ended and swept (KIP-48, KIP-373, KIP-900).

Owns: who may prolong a token, how long tokens live (`delegation.token.max.lifetime.ms`), and their
records. Must not: change state, read clocks, or ask who may make a token for another principal.
Invariants: no token outlives its maximal time; the secret of a token is in its response, and in no
record; an owner has `moldau.delegation.token.max.per.owner` tokens at most, and fewer than there
are places left for others.
"""

from __future__ import annotations

from typing import Final

from moldau.config.principals import reserved
from moldau.constants import MAX_INT64
from moldau.controller.core.result import Asked, ControllerResult, Refusal, VersionedRecord
from moldau.controller.core.scram_control import secret_records
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import DELEGATION_TOKEN_LEVEL
from moldau.metadata.image.security import DelegationToken
from moldau.protocol.delegation_tokens import owner_of, without_token
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p38_create_delegation_token as p38
from moldau.protocol.messages import p39_renew_delegation_token as p39
from moldau.protocol.messages import p40_expire_delegation_token as p40
from moldau.protocol.metadata_records import RemoveDelegationTokenRecord
from moldau.protocol.types import random_topic_id, uuid_to_base64

USER: Final = "User"

MAX_TOKENS: Final = 100_000
MAX_RENEWERS: Final = 1_000
MAX_NAME_CHARACTERS: Final = 10_000
"""The limit for all renewers of a token together, and for an owner."""

MAX_SWEPT: Final = 1_000
"""Tokens that one sweep removes at most; the next one follows at once."""


def create_delegation_token(
    state: ControllerState, request: p38.CreateDelegationTokenRequest, asked: Asked
) -> ControllerResult[p38.CreateDelegationTokenResponse]:
    """CreateDelegationToken: a token of the requester, or of another principal."""
    response = without_token(request, asked.principal, ErrorCode.NONE)
    result = ControllerResult(response)
    try:
        token = _new_token(state, request, asked)
        expired = _room_for_one(state, token.owner, asked.time_ms)
    except Refusal as refusal:
        response.error_code = refusal.error
        if refusal.error is not ErrorCode.INVALID_PRINCIPAL_TYPE:
            # As Apache Kafka: only what a broker refuses there has times that are none.
            response.issue_timestamp_ms = response.expiry_timestamp_ms = 0
            response.max_timestamp_ms = 0
        return result
    token_id = _new_id(state)
    response.issue_timestamp_ms = token.issue_timestamp
    response.expiry_timestamp_ms = token.expiration_timestamp
    response.max_timestamp_ms = token.max_timestamp
    response.token_id = token_id
    response.hmac = state.token_secrets.hmac_of(token_id)
    result.records += [(RemoveDelegationTokenRecord(token_id=each), 0) for each in expired]
    result.records.append((token.record(token_id), 0))
    result.records += secret_records(state)  # it is in the salts of tokens
    return result


def renew_delegation_token(
    state: ControllerState, request: p39.RenewDelegationTokenRequest, asked: Asked
) -> ControllerResult[p39.RenewDelegationTokenResponse]:
    """RenewDelegationToken: a later end, by the owner or a renewer."""
    result = ControllerResult(p39.RenewDelegationTokenResponse())
    response, now_ms = result.response, asked.time_ms
    try:
        token_id, token = _found(state, request.hmac)
        if is_expired(token, now_ms):
            raise Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "")
        _check_may_prolong(token, asked.principal)
    except Refusal as refusal:
        response.error_code = refusal.error
        return result
    period_ms = _setting(state, "delegation.token.expiry.time.ms")
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    end_ms = min(token.max_timestamp, now_ms + period_ms)
    response.expiry_timestamp_ms = end_ms
    result.records.append((token._replace(expiration_timestamp=end_ms).record(token_id), 0))
    return result


def expire_delegation_token(
    state: ControllerState, request: p40.ExpireDelegationTokenRequest, asked: Asked
) -> ControllerResult[p40.ExpireDelegationTokenResponse]:
    """ExpireDelegationToken: an earlier end, or with a negative period none of it is left."""
    result = ControllerResult(p40.ExpireDelegationTokenResponse())
    response, now_ms = result.response, asked.time_ms
    try:
        token_id, token = _found(state, request.hmac)
        _check_may_prolong(token, asked.principal)
        if request.expiry_time_period_ms >= 0 and is_expired(token, now_ms):
            raise Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "")
    except Refusal as refusal:
        response.error_code = refusal.error
        return result
    if request.expiry_time_period_ms < 0:
        response.expiry_timestamp_ms = now_ms
        result.records.append((RemoveDelegationTokenRecord(token_id=token_id), 0))
        return result
    end_ms = min(token.max_timestamp, now_ms + request.expiry_time_period_ms)
    response.expiry_timestamp_ms = end_ms
    result.records.append((token._replace(expiration_timestamp=end_ms).record(token_id), 0))
    return result


def expired_tokens(state: ControllerState, now_ms: int) -> list[VersionedRecord]:
    """The records that remove tokens past their end, `MAX_SWEPT` at most."""
    records: list[VersionedRecord] = []
    for token_id, token in state.image.delegation_tokens.tokens_by_id.items():
        if is_expired(token, now_ms):
            records.append((RemoveDelegationTokenRecord(token_id=token_id), 0))
            if len(records) == MAX_SWEPT:
                break
    return records


def is_expired(token: DelegationToken, now_ms: int) -> bool:
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


def _new_token(
    state: ControllerState,
    request: p38.CreateDelegationTokenRequest,
    asked: Asked,
) -> DelegationToken:
    """Raises: Refusal."""
    owner = owner_of(request, asked.principal)
    if any(each.principal_type != USER for each in request.renewers):
        raise Refusal(ErrorCode.INVALID_PRINCIPAL_TYPE, "")
    _check_enabled(state)
    settings = state.settings
    kind, _, name = owner.partition(":")
    if kind == USER and settings.node_config.principals.is_reserved(name, settings.own_names):
        raise Refusal(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, reserved(name))
    renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
    if (
        len(renewers) > MAX_RENEWERS
        or max(len(owner), sum(map(len, renewers))) > MAX_NAME_CHARACTERS
    ):
        raise Refusal.invalid("")
    lifetime_ms = _setting(state, "delegation.token.max.lifetime.ms")
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    now_ms = asked.time_ms
    max_ms = min(now_ms + lifetime_ms, MAX_INT64)
    end_ms = min(max_ms, now_ms + _setting(state, "delegation.token.expiry.time.ms"))
    return DelegationToken(owner, asked.principal, renewers, now_ms, max_ms, end_ms)


def _room_for_one(state: ControllerState, owner: str, now_ms: int) -> list[str]:
    """The owner's expired tokens that have to go to make room for one more of it. Raises: Refusal.

    An owner may have as many tokens as there are places left: the more are taken, the fewer an
    owner that has many gets, and one without a token is refused last.
    """
    tokens = state.image.delegation_tokens.tokens_by_id
    ids = state.token_ids_by_owner.get(owner, {})
    limit = _setting(state, "moldau.delegation.token.max.per.owner")
    free = MAX_TOKENS - len(tokens)
    if len(ids) < min(limit, free):
        return []
    expired = [each for each in ids if is_expired(tokens[each], now_ms)][:MAX_SWEPT]
    if len(ids) - len(expired) >= min(limit, free + len(expired)):
        raise Refusal.too_many("")
    return expired


def _new_id(state: ControllerState) -> str:
    tokens = state.image.delegation_tokens.tokens_by_id
    while True:
        token_id = uuid_to_base64(random_topic_id(state.random))  # type: ignore[arg-type]
        if token_id not in tokens:
            return token_id


def _found(state: ControllerState, token_hmac: bytes | memoryview) -> tuple[str, DelegationToken]:
    """Raises: Refusal."""
    _check_enabled(state)
    tokens = state.image.delegation_tokens.tokens_by_id
    token_id = state.token_secrets.token_id_of(bytes(token_hmac), tokens)
    if token_id is None:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "")
    return token_id, tokens[token_id]


def _check_enabled(state: ControllerState) -> None:
    if not state.token_secrets.is_enabled:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "")
    if state.metadata_level < DELEGATION_TOKEN_LEVEL:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION, "")


def _check_may_prolong(token: DelegationToken, principal: str) -> None:
    if principal != token.owner and principal not in token.renewers:
        raise Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "")


def _setting(state: ControllerState, key: str) -> int:
    return state.settings.node_config.get_int(key)
