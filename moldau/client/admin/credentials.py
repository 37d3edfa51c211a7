"""Admin calls about SCRAM credentials and delegation tokens.

Owns the translation between typed values and messages; passwords are salted here and never sent.
Invariant: as in `admin`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from moldau.client.admin.arguments import check_several
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.errors import BrokerError, InvalidRequest, KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p50_describe_user_scram_credentials as describe
from moldau.protocol.messages import p51_alter_user_scram_credentials as alter
from moldau.protocol.messages.p38_create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from moldau.protocol.messages.p39_renew_delegation_token import RenewDelegationTokenRequest
from moldau.protocol.messages.p40_expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.p41_describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)

DEFAULT_ITERATIONS: Final = 4_096
LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384


class ScramMechanism(IntEnum):
    """A kind of SCRAM credential."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


_HASH: Final = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """What brokers tell of a credential."""

    mechanism: ScramMechanism | int
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A user's credential to be set. `salt`: random unless given."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = DEFAULT_ITERATIONS
    salt: bytes | None = None


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A user's credential to be taken away."""

    user: str
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token (KIP-48); log in by SCRAM with `token_id` and the base64 of `hmac`, tokenauth=true.

    Attributes:
        owner, requester, renewers: principals, "User:alice".
        issued_at_ms, expires_at_ms, max_lifetime_end_ms: in ms since 1970.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_lifetime_end_ms: int


class CredentialCalls:
    """The part of `Admin` that deals with how users prove who they are."""

    _client: ClusterClient

    async def describe_user_scram_credentials(
        self, users: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> dict[str, list[ScramCredentialInfo] | KafkaError]:
        """Which SCRAM credentials users have (KIP-554): all users that have any, or these; for a
        user without one an error (RESOURCE_NOT_FOUND).
        """
        check_several(users)
        request = describe.DescribeUserScramCredentialsRequest(
            users=None if users is None else [describe.UserName(name=name) for name in users]
        )

        async def attempt() -> dict[str, list[ScramCredentialInfo] | KafkaError]:
            response = await self._client.ask_controller(request)
            raise_for(response.error_code, response.error_message, "describe SCRAM credentials")
            outcome: dict[str, list[ScramCredentialInfo] | KafkaError] = {}
            for result in response.results:
                if result.error_code != ErrorCode.NONE:
                    what = f"SCRAM credentials of {result.user}"
                    outcome[result.user] = error_for(result.error_code, result.error_message, what)
                    continue
                outcome[result.user] = [
                    ScramCredentialInfo(_mechanism(info.mechanism), info.iterations)
                    for info in result.credential_infos
                ]
            return outcome

        what = "describe SCRAM credentials"
        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def alter_user_scram_credentials(
        self,
        alterations: Collection[ScramUpsertion | ScramDeletion],
        *,
        timeout_ms: float | None = None,
    ) -> dict[str, BrokerError | None]:
        """Set and take away SCRAM credentials (KIP-554); the outcome by user.

        Raises:
            InvalidRequest: iterations outside of 4096 to 16384, or an empty name or password.
        """
        check_several(alterations)
        upsertions = [each for each in alterations if isinstance(each, ScramUpsertion)]
        for each in upsertions:
            if not LEAST_ITERATIONS <= each.iterations <= MOST_ITERATIONS:
                raise InvalidRequest(
                    f"{each.user}: iterations={each.iterations}; from {LEAST_ITERATIONS} to "
                    f"{MOST_ITERATIONS}"
                )
            if not each.user or not each.password:
                raise InvalidRequest(f"{each.user!r}: a user and a password are needed")
        request = alter.AlterUserScramCredentialsRequest(
            deletions=[
                alter.ScramCredentialDeletion(name=each.user, mechanism=each.mechanism)
                for each in alterations
                if isinstance(each, ScramDeletion)
            ],
            upsertions=await asyncio.to_thread(lambda: [_salted(each) for each in upsertions]),
        )

        async def attempt() -> dict[str, BrokerError | None]:
            response = await self._client.ask_controller(request)
            outcome: dict[str, BrokerError | None] = {}
            for result in response.results:
                error = None
                if result.error_code != ErrorCode.NONE:
                    what = f"SCRAM credentials of {result.user}"
                    error = error_for(result.error_code, result.error_message, what)
                    if error.code is ErrorCode.NOT_CONTROLLER:
                        raise error
                outcome[result.user] = error
            return outcome

        what = "alter SCRAM credentials"
        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def create_delegation_token(
        self,
        *,
        renewers: Collection[str] = (),
        max_lifetime_ms: int = -1,
        owner: str | None = None,
        timeout_ms: float | None = None,
    ) -> DelegationToken:
        """Make a token for the principal of this client, or for another one (KIP-48, KIP-373).

        Args:
            renewers: principals that may renew it besides its owner, "User:bob".
            max_lifetime_ms: -1 for the brokers' `delegation.token.max.lifetime.ms`.
            owner: needs permission to create tokens for that user.
        """
        check_several(renewers)
        owner_type, owner_name = (None, None) if owner is None else _principal(owner)
        pairs = [_principal(each) for each in renewers]
        request = CreateDelegationTokenRequest(
            owner_principal_type=owner_type,
            owner_principal_name=owner_name,
            renewers=[
                CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in pairs
            ],
            max_lifetime_ms=max_lifetime_ms,
        )

        async def attempt() -> DelegationToken:
            told = await self._client.ask_controller(
                request, versions=None if owner is None else (3, 3)
            )
            raise_for(told.error_code, None, "create delegation token")
            made_for = f"{told.principal_type}:{told.principal_name}"
            requester = told.token_requester_principal_name
            return DelegationToken(
                told.token_id,
                bytes(told.hmac),
                made_for,
                f"{told.token_requester_principal_type}:{requester}" if requester else made_for,
                tuple(renewers),
                told.issue_timestamp_ms,
                told.expiry_timestamp_ms,
                told.max_timestamp_ms,
            )

        what = "create delegation token"
        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def renew_delegation_token(
        self, hmac: bytes, *, renew_period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """Let a token live on; returns its new end in ms since 1970. -1: the brokers' default."""

        async def attempt() -> int:
            told = await self._client.ask_controller(
                RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=renew_period_ms)
            )
            raise_for(told.error_code, None, "renew delegation token")
            return int(told.expiry_timestamp_ms)

        what = "renew delegation token"
        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def expire_delegation_token(
        self, hmac: bytes, *, expiry_period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """Let a token end so many ms from now, at once when negative; returns when it ends."""

        async def attempt() -> int:
            told = await self._client.ask_controller(
                ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=expiry_period_ms)
            )
            raise_for(told.error_code, None, "expire delegation token")
            return int(told.expiry_timestamp_ms)

        what = "expire delegation token"
        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)

    async def describe_delegation_tokens(
        self, owners: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> list[DelegationToken]:
        """The tokens this client may see: all, or those of some principals."""
        check_several(owners)
        request = DescribeDelegationTokenRequest(
            owners=None
            if owners is None
            else [
                DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
                for kind, name in map(_principal, owners)
            ]
        )

        async def attempt() -> list[DelegationToken]:
            response = await self._client.ask_any(request)
            raise_for(response.error_code, None, "describe delegation tokens")
            return [
                DelegationToken(
                    told.token_id,
                    bytes(told.hmac),
                    f"{told.principal_type}:{told.principal_name}",
                    f"{told.token_requester_principal_type}:{told.token_requester_principal_name}",
                    tuple(f"{each.principal_type}:{each.principal_name}" for each in told.renewers),
                    told.issue_timestamp,
                    told.expiry_timestamp,
                    told.max_timestamp,
                )
                for told in response.tokens
            ]

        what = "describe delegation tokens"
        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)


def _mechanism(number: int) -> ScramMechanism | int:
    try:
        return ScramMechanism(number)
    except ValueError:
        return number


def _salted(each: ScramUpsertion) -> alter.ScramCredentialUpsertion:
    salt = each.salt or secrets.token_bytes(32)
    salted = hashlib.pbkdf2_hmac(
        _HASH[each.mechanism], each.password.encode(), salt, each.iterations
    )
    return alter.ScramCredentialUpsertion(
        name=each.user,
        mechanism=each.mechanism,
        iterations=each.iterations,
        salt=salt,
        salted_password=salted,
    )


def _principal(text: str) -> tuple[str, str]:
    kind, separator, name = text.partition(":")
    if not separator or not kind or not name:
        raise InvalidRequest(f"{text!r} is no principal; they look like User:alice")
    return kind, name
