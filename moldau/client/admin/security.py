"""Admin calls about access control lists, client quotas, SCRAM credentials and delegation tokens.

Passwords are salted here and never sent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias, TypeVar

from moldau.client.admin.calls import (
    AdminCalls,
    check_kind,
    check_several,
    problem_of,
    raise_moved,
)
from moldau.client.errors import BrokerError, InvalidRequest, KafkaError
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p29_describe_acls as described_acls
from moldau.protocol.messages import p30_create_acls as created_acls
from moldau.protocol.messages import p31_delete_acls as deleted_acls
from moldau.protocol.messages import p38_create_delegation_token as created_token
from moldau.protocol.messages import p39_renew_delegation_token as renewed_token
from moldau.protocol.messages import p40_expire_delegation_token as expired_token
from moldau.protocol.messages import p48_describe_client_quotas as described_quotas
from moldau.protocol.messages import p49_alter_client_quotas as altered_quotas
from moldau.protocol.messages import p50_describe_user_scram_credentials as described_scram
from moldau.protocol.messages import p51_alter_user_scram_credentials as altered_scram
from moldau.protocol.messages.p41_describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.scram import (
    LEAST_ITERATIONS,
    MECHANISMS_BY_NUMBER,
    MOST_ITERATIONS,
    salted_password,
)

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""What a quota is for: pairs of "user", "client-id" or "ip" and a name, None for the default."""


AclOperation = Operation
AclPatternType = PatternType
AclPermission = PermissionType
AclResourceType = ResourceType


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL.

    Attributes:
        resource_name: the topic, group, …; "kafka-cluster" for the cluster, "*" for all.
        principal: "User:alice"; "User:*" for every user.
        host: an address of the client, "*" for all.
    """

    resource_type: AclResourceType | int
    resource_name: str
    principal: str
    operation: AclOperation | int
    permission: AclPermission | int = AclPermission.ALLOW
    host: str = "*"
    pattern_type: AclPatternType | int = AclPatternType.LITERAL

    def __str__(self) -> str:
        return (
            f"{_word(self.permission)} {self.principal} from {self.host} {_word(self.operation)} "
            f"on {_word(self.resource_type)} {self.resource_name!r} ({_word(self.pattern_type)})"
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs to find; None and ANY match everything.

    Attributes:
        pattern_type: MATCH finds all that apply to `resource_name`, also by prefix or "*".
    """

    resource_type: AclResourceType | int = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation | int = AclOperation.ANY
    permission: AclPermission | int = AclPermission.ANY
    host: str | None = None
    pattern_type: AclPatternType | int = AclPatternType.ANY


class ScramMechanism(IntEnum):
    """A kind of SCRAM credential."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A credential as brokers describe it."""

    mechanism: ScramMechanism | int
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A user's credential to be set; the salt is random unless given."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = 4_096
    salt: bytes | None = None


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A user's credential to be deleted."""

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


_EXACT, _DEFAULT, _ANY = 0, 1, 2

Filter = TypeVar("Filter", described_acls.DescribeAclsRequest, deleted_acls.DeleteAclsFilter)


class SecurityCalls(AdminCalls):
    """The part of `Admin` that deals with access, quotas and credentials."""

    # -- access control lists (KIP-140) -----------------------------------------------------------

    async def describe_acls(
        self, acl_filter: AclFilter | None = None, *, timeout_ms: float | None = None
    ) -> list[AclBinding]:
        """The ACLs that match a filter; all of them without one.

        Raises:
            BrokerError: SECURITY_DISABLED where the brokers have no authorizer.
        """
        request = _filter(described_acls.DescribeAclsRequest, acl_filter or AclFilter())
        found = (await self._ask_any(request, "describe ACLs", timeout_ms)).resources
        return [_binding(resource, acl) for resource in found for acl in resource.acls]

    async def create_acls(
        self, bindings: Collection[AclBinding], *, timeout_ms: float | None = None
    ) -> None:
        """Add ACLs; those that exist already stay as they are.

        Raises:
            BrokerError: the first that could not be added; the others have been.
        """
        check_several(bindings)
        wanted = list(bindings)
        check_kind(wanted, AclBinding)
        for each in wanted:
            _refuse_open(each)
        request = created_acls.CreateAclsRequest(
            creations=[
                created_acls.AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in wanted
            ]
        )

        def check(response: created_acls.CreateAclsResponse) -> None:
            _raise_first(
                problem_of(result, f"create {binding}")
                for binding, result in zip(wanted, response.results, strict=True)
            )

        await self._ask_controller(request, "create ACLs", timeout_ms, check=check)

    async def delete_acls(
        self, filters: Collection[AclFilter], *, timeout_ms: float | None = None
    ) -> list[AclBinding]:
        """Delete the ACLs that match any of the filters; returns the deleted ones.

        Raises:
            BrokerError: of the first filter or ACL that failed; the others are done.
        """
        check_several(filters)
        check_kind(filters, AclFilter)
        request = deleted_acls.DeleteAclsRequest(
            filters=[_filter(deleted_acls.DeleteAclsFilter, each) for each in filters]
        )
        gone: dict[AclBinding, None] = {}

        def check(response: deleted_acls.DeleteAclsResponse) -> None:
            problems = []
            for result in response.filter_results:
                problems.append(problem_of(result, "delete ACLs"))
                for acl in result.matching_acls:
                    binding = _binding(acl, acl)
                    problems.append(problem_of(acl, f"delete {binding}"))
                    if acl.error_code == ErrorCode.NONE:
                        gone[binding] = None
            _raise_first(problems)

        await self._ask_controller(request, "delete ACLs", timeout_ms, check=check)
        return list(gone)

    # -- quotas (KIP-546) -------------------------------------------------------------------------

    async def describe_client_quotas(
        self,
        entity: Mapping[str, str | None] | None = None,
        *,
        any_of: Collection[str] = (),
        strict: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Quotas by entity and key: producer_byte_rate and consumer_byte_rate in bytes per second,
        request_percentage, controller_mutation_rate, connection_creation_rate.

        Args:
            entity: only quotas of these, such as {"user": "alice"}; None names the default.
            any_of: types that must be there, with any name.
            strict: only quotas for exactly these types.
        """
        check_several(any_of)
        components = [
            described_quotas.ComponentData(
                entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
            )
            for kind, name in (entity or {}).items()
        ]
        components += [
            described_quotas.ComponentData(entity_type=kind, match_type=_ANY, match=None)
            for kind in any_of
        ]
        request = described_quotas.DescribeClientQuotasRequest(components=components, strict=strict)
        response = await self._ask_any(request, "describe client quotas", timeout_ms)
        return {
            _entity(entry): {value.key: value.value for value in entry.values}
            for entry in response.entries or ()
        }

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[QuotaEntity, BrokerError | None]:
        """Set quotas, or delete them with None; the outcome by entity, as given in `changes`.

        Args:
            changes: such as {(("user", "alice"),): {"producer_byte_rate": 1e6}}.
            validate_only: only check them.
        """
        request = altered_quotas.AlterClientQuotasRequest(
            entries=[
                altered_quotas.EntryData(
                    entity=[
                        described_quotas.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity
                    ],
                    ops=[
                        altered_quotas.OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in values.items()
                    ],
                )
                for entity, values in changes.items()
            ],
            validate_only=validate_only,
        )
        what = "alter client quotas"
        response = await self._ask_controller(
            request, what, timeout_ms, check=lambda found: raise_moved(found.entries, what)
        )
        outcome = {}
        given = {frozenset(entity): entity for entity in changes}
        for entry in response.entries:
            found = _entity(entry)
            entity = given.get(frozenset(found), found)
            outcome[entity] = problem_of(entry, f"quotas of {_words_of(entity)}")
        return outcome

    # -- SCRAM credentials (KIP-554) --------------------------------------------------------------

    async def describe_user_scram_credentials(
        self, users: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> dict[str, list[ScramCredentialInfo] | KafkaError]:
        """SCRAM credentials of these users, or of all users that have any; for a user without one
        an error (RESOURCE_NOT_FOUND).
        """
        check_several(users)
        request = described_scram.DescribeUserScramCredentialsRequest(
            users=None if users is None else [described_scram.UserName(name=name) for name in users]
        )
        response = await self._ask_controller(request, "describe SCRAM credentials", timeout_ms)
        return {
            result.user: problem_of(result, f"SCRAM credentials of {result.user}")
            or [
                ScramCredentialInfo(_known(ScramMechanism, info.mechanism), info.iterations)
                for info in result.credential_infos
            ]
            for result in response.results
        }

    async def alter_user_scram_credentials(
        self,
        alterations: Collection[ScramUpsertion | ScramDeletion],
        *,
        timeout_ms: float | None = None,
    ) -> dict[str, BrokerError | None]:
        """Set and delete SCRAM credentials; the outcome by user.

        Raises:
            InvalidRequest: iterations outside of 4096 to 16384, or an empty name or password.
        """
        check_several(alterations)
        check_kind(alterations, ScramUpsertion, ScramDeletion)
        upsertions = [each for each in alterations if isinstance(each, ScramUpsertion)]
        for each in upsertions:
            if not LEAST_ITERATIONS <= each.iterations <= MOST_ITERATIONS:
                raise InvalidRequest(
                    f"{each.user}: iterations={each.iterations}; from {LEAST_ITERATIONS} to "
                    f"{MOST_ITERATIONS}"
                )
            if not each.user or not each.password:
                raise InvalidRequest(f"{each.user!r}: a user and a password are needed")
        request = altered_scram.AlterUserScramCredentialsRequest(
            deletions=[
                altered_scram.ScramCredentialDeletion(name=each.user, mechanism=each.mechanism)
                for each in alterations
                if isinstance(each, ScramDeletion)
            ],
            upsertions=await asyncio.to_thread(lambda: [_salted(each) for each in upsertions]),
        )

        what = "alter SCRAM credentials"
        response = await self._ask_controller(
            request, what, timeout_ms, check=lambda found: raise_moved(found.results, what)
        )
        return {
            result.user: problem_of(result, f"SCRAM credentials of {result.user}")
            for result in response.results
        }

    # -- delegation tokens (KIP-48) ---------------------------------------------------------------

    async def create_delegation_token(
        self,
        *,
        renewers: Collection[str] = (),
        max_lifetime_ms: int = -1,
        owner: str | None = None,
        timeout_ms: float | None = None,
    ) -> DelegationToken:
        """Create a token for the principal of this client, or for another one (KIP-48, KIP-373).

        Args:
            renewers: principals that may renew it besides its owner, "User:bob".
            max_lifetime_ms: -1 for the brokers' `delegation.token.max.lifetime.ms`.
            owner: needs permission to create tokens for that user.
        """
        check_several(renewers)
        owner_type, owner_name = (None, None) if owner is None else _principal(owner)
        request = created_token.CreateDelegationTokenRequest(
            owner_principal_type=owner_type,
            owner_principal_name=owner_name,
            renewers=_principals(renewers),
            max_lifetime_ms=max_lifetime_ms,
        )
        made = await self._ask_controller(
            request,
            "create delegation token",
            timeout_ms,
            versions=None if owner is None else (3, 3),
        )
        made_for = f"{made.principal_type}:{made.principal_name}"
        requester = made.token_requester_principal_name
        return DelegationToken(
            made.token_id,
            bytes(made.hmac),
            made_for,
            f"{made.token_requester_principal_type}:{requester}" if requester else made_for,
            tuple(renewers),
            made.issue_timestamp_ms,
            made.expiry_timestamp_ms,
            made.max_timestamp_ms,
        )

    async def renew_delegation_token(
        self, hmac: bytes, *, renew_period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """Prolong a token; returns its new end in ms since 1970. -1: the brokers' default."""
        request = renewed_token.RenewDelegationTokenRequest(
            hmac=hmac, renew_period_ms=renew_period_ms
        )
        response = await self._ask_controller(request, "renew delegation token", timeout_ms)
        return response.expiry_timestamp_ms

    async def expire_delegation_token(
        self, hmac: bytes, *, expiry_period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """End a token so many ms from now, at once when negative; returns its end."""
        request = expired_token.ExpireDelegationTokenRequest(
            hmac=hmac, expiry_time_period_ms=expiry_period_ms
        )
        response = await self._ask_controller(request, "expire delegation token", timeout_ms)
        return response.expiry_timestamp_ms

    async def describe_delegation_tokens(
        self, owners: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> list[DelegationToken]:
        """The tokens that this client may see: all, or those of some principals."""
        check_several(owners)
        request = DescribeDelegationTokenRequest(
            owners=None if owners is None else _principals(owners)
        )
        response = await self._ask_any(request, "describe delegation tokens", timeout_ms)
        return [
            DelegationToken(
                token.token_id,
                bytes(token.hmac),
                f"{token.principal_type}:{token.principal_name}",
                f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
                tuple(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
                token.issue_timestamp,
                token.expiry_timestamp,
                token.max_timestamp,
            )
            for token in response.tokens
        ]


def _filter(kind: type[Filter], wanted: AclFilter) -> Filter:
    return kind(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _binding(
    resource: described_acls.DescribeAclsResource | deleted_acls.DeleteAclsMatchingAcl,
    acl: described_acls.AclDescription | deleted_acls.DeleteAclsMatchingAcl,
) -> AclBinding:
    return AclBinding(
        _known(AclResourceType, resource.resource_type),
        resource.resource_name,
        acl.principal,
        _known(AclOperation, acl.operation),
        _known(AclPermission, acl.permission_type),
        acl.host,
        _known(AclPatternType, resource.pattern_type),
    )


def _known(kind: type[IntEnum], number: int) -> int:
    """The member, or the number of one that is newer than this release."""
    try:
        return kind(number)
    except ValueError:
        return number


def _word(value: IntEnum | int) -> str:
    return value.name if isinstance(value, IntEnum) else str(value)


def _refuse_open(binding: AclBinding) -> None:
    open_ended = (
        binding.resource_type == AclResourceType.ANY
        or binding.operation == AclOperation.ANY
        or binding.permission == AclPermission.ANY
        or binding.pattern_type in (AclPatternType.ANY, AclPatternType.MATCH)
    )
    if open_ended:
        raise InvalidRequest(f"{binding}: ANY and MATCH are for filters", final=True)


def _raise_first(answers: Iterable[BrokerError | None]) -> None:
    """Raise the first error that is not retriable, which ends the retries, else the first one."""
    problems = [problem for problem in answers if problem is not None]
    if problems:
        raise next((each for each in problems if not each.retriable), problems[0])


def _entity(entry: described_quotas.EntryData | altered_quotas.EntryDataResponse) -> QuotaEntity:
    return tuple((each.entity_type, each.entity_name) for each in entry.entity)


def _words_of(entity: QuotaEntity) -> str:
    """`user alice, client-id orders`, as an error names whose quotas it is about."""
    return ", ".join(
        f"the default {kind}" if name is None else f"{kind} {name}" for kind, name in entity
    )


def _salted(each: ScramUpsertion) -> altered_scram.ScramCredentialUpsertion:
    salt = each.salt or secrets.token_bytes(32)
    mechanism = MECHANISMS_BY_NUMBER[each.mechanism]
    salted = salted_password(mechanism, each.password, salt, each.iterations)
    return altered_scram.ScramCredentialUpsertion(
        name=each.user,
        mechanism=each.mechanism,
        iterations=each.iterations,
        salt=salt,
        salted_password=salted,
    )


def _principals(texts: Iterable[str]) -> list[created_token.TokenPrincipal]:
    return [
        created_token.TokenPrincipal(principal_type=kind, principal_name=name)
        for kind, name in map(_principal, texts)
    ]


def _principal(text: str) -> tuple[str, str]:
    kind, separator, name = text.partition(":")
    if not separator or not kind or not name:
        raise InvalidRequest(f"{text!r} is no principal; they look like User:alice")
    return kind, name
