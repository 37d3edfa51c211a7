"""Admin calls about access control lists.

Owns what an ACL is, and the translation between typed values and messages. Invariant: as in
`admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

from moldau.client.admin.arguments import check_several
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.errors import InvalidRequest, KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p29_describe_acls import DescribeAclsRequest
from moldau.protocol.messages.p30_create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.p31_delete_acls import DeleteAclsFilter, DeleteAclsRequest


class AclResourceType(IntEnum):
    """What an ACL is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    """How an ACL's resource name is meant (KIP-290). ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What is allowed or denied. ANY is for filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Allowed or denied. ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL.

    Attributes:
        resource_name: the topic, group, …; "kafka-cluster" for the cluster, "*" for all.
        principal: "User:alice"; "User:*" for everybody.
        host: an address of the client, "*" for all.
    """

    resource_type: AclResourceType | int
    resource_name: str
    principal: str
    operation: AclOperation | int
    permission: AclPermission | int = AclPermission.ALLOW
    host: str = "*"
    pattern_type: AclPatternType | int = AclPatternType.LITERAL


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs are meant; None and ANY leave something open.

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


class AclCalls:
    """The part of `Admin` that deals with who may do what (KIP-140)."""

    _client: ClusterClient

    async def describe_acls(
        self, acl_filter: AclFilter | None = None, *, timeout_ms: float | None = None
    ) -> list[AclBinding]:
        """The ACLs that a filter finds; all of them without one.

        Raises:
            BrokerError: SECURITY_DISABLED where the brokers have no authorizer.
        """
        wanted = acl_filter or AclFilter()
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )

        async def attempt() -> list[AclBinding]:
            response = await self._client.ask_any(request)
            raise_for(response.error_code, response.error_message, "describe ACLs")
            return [
                AclBinding(
                    _known(AclResourceType, resource.resource_type),
                    resource.resource_name,
                    acl.principal,
                    _known(AclOperation, acl.operation),
                    _known(AclPermission, acl.permission_type),
                    acl.host,
                    _known(AclPatternType, resource.pattern_type),
                )
                for resource in response.resources
                for acl in resource.acls
            ]

        return await self._client.retry(attempt, what="describe ACLs", timeout_ms=timeout_ms)

    async def create_acls(
        self, bindings: Collection[AclBinding], *, timeout_ms: float | None = None
    ) -> None:
        """Add ACLs; those that exist already stay as they are.

        Raises:
            BrokerError: the first that could not be added; the others have been.
        """
        check_several(bindings)
        wanted = list(bindings)
        for each in wanted:
            _refuse_open(each)
        request = CreateAclsRequest(
            creations=[
                AclCreation(
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

        async def attempt() -> None:
            response = await self._client.ask_controller(request)
            _raise_first(
                [
                    (result.error_code, result.error_message, f"create {binding}")
                    for binding, result in zip(wanted, response.results, strict=True)
                ]
            )

        await self._client.retry(attempt, what="create ACLs", timeout_ms=timeout_ms)

    async def delete_acls(
        self, filters: Collection[AclFilter], *, timeout_ms: float | None = None
    ) -> list[AclBinding]:
        """Take away the ACLs that any of the filters finds; returns those that are gone.

        Raises:
            BrokerError: of the first filter or ACL that failed; the others have been done.
        """
        check_several(filters)
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in filters
            ]
        )
        gone: dict[AclBinding, None] = {}

        async def attempt() -> list[AclBinding]:
            response = await self._client.ask_controller(request)
            problems: list[tuple[int, str | None, str]] = []
            for result in response.filter_results:
                problems.append((result.error_code, result.error_message, "delete ACLs"))
                for acl in result.matching_acls:
                    binding = AclBinding(
                        _known(AclResourceType, acl.resource_type),
                        acl.resource_name,
                        acl.principal,
                        _known(AclOperation, acl.operation),
                        _known(AclPermission, acl.permission_type),
                        acl.host,
                        _known(AclPatternType, acl.pattern_type),
                    )
                    problems.append((acl.error_code, acl.error_message, f"delete {binding}"))
                    if acl.error_code == ErrorCode.NONE:
                        gone[binding] = None
            _raise_first(problems)
            return list(gone)

        return await self._client.retry(attempt, what="delete ACLs", timeout_ms=timeout_ms)


def _known(kind: type[IntEnum], number: int) -> int:
    """The member, or the number of one that is newer than this release."""
    try:
        return kind(number)
    except ValueError:
        return number


def _refuse_open(binding: AclBinding) -> None:
    open_ended = (
        binding.resource_type == AclResourceType.ANY
        or binding.operation == AclOperation.ANY
        or binding.permission == AclPermission.ANY
        or binding.pattern_type in (AclPatternType.ANY, AclPatternType.MATCH)
    )
    if open_ended:
        raise InvalidRequest(f"{binding}: ANY and MATCH are for filters", final=True)


def _raise_first(answers: Sequence[tuple[int, str | None, str]]) -> None:
    problems: list[KafkaError] = [
        error_for(code, message, what) for code, message, what in answers if code != ErrorCode.NONE
    ]
    # One that cannot pass by itself ends the retries.
    for problem in problems:
        if not problem.retriable:
            raise problem
    if problems:
        raise problems[0]
