"""Access control the slow way: every entry is looked at for every question (KIP-11, KIP-679).

Owns: what the indexed authorizer is compared with. Must not: share anything with it but the entry.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from socket import AF_INET, AF_INET6, inet_pton

from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)

IPV4_INSIDE = bytes(10) + b"\xff\xff"


def address(host: str) -> bytes | str:
    """The bytes of an address; of what is none, the text."""
    with suppress(OSError):
        return IPV4_INSIDE + inet_pton(AF_INET, host)
    with suppress(OSError):
        return inet_pton(AF_INET6, host.partition("%")[0])
    return host


def concerns(each: AccessControlEntry, principal: str, host: str, kind: int) -> bool:
    return (
        each.resource_type == kind
        and each.principal in (principal, "User:*")
        and (each.host == "*" or address(each.host) == address(host))
    )


def is_about(each: AccessControlEntry, kind: int, name: str) -> bool:
    if each.resource_type != kind:
        return False
    if each.pattern_type == PatternType.PREFIXED:
        return name.startswith(each.resource_name)
    return each.resource_name in ("*", name)


def reaches(each: AccessControlEntry, operation: Operation) -> bool:
    if each.operation in (Operation.ALL, operation):
        return True
    if each.permission_type != PermissionType.ALLOW:
        return False
    if operation is Operation.DESCRIBE:
        implying = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
        return each.operation in implying
    return operation is Operation.DESCRIBE_CONFIGS and each.operation == Operation.ALTER_CONFIGS


def may(
    entries: Collection[AccessControlEntry],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    allows_unmentioned: bool,
) -> bool:
    """Whether a principal from a host may do it to the resource of that name."""
    about = [each for each in entries if is_about(each, kind, name)]
    if not about:
        return allows_unmentioned
    found = {
        each.permission_type
        for each in about
        if concerns(each, principal, host, kind) and reaches(each, operation)
    }
    return PermissionType.DENY not in found and PermissionType.ALLOW in found


def may_by_type(
    entries: Collection[AccessControlEntry],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    *,
    allows_unmentioned: bool,
) -> bool:
    """KIP-679, in its words: any resource that an ALLOW names and no DENY covers."""
    question = (entries, principal, host, operation, kind)
    if may(*question, "hardcode", allows_unmentioned=allows_unmentioned):
        return True
    mine = [
        each
        for each in entries
        if concerns(each, principal, host, kind) and each.operation in (operation, Operation.ALL)
    ]
    denied = {each[1:3] for each in mine if each.permission_type == PermissionType.DENY}
    allowed = {each[1:3] for each in mine if each.permission_type == PermissionType.ALLOW}
    if ("*", PatternType.LITERAL) in denied:
        return False
    if ("*", PatternType.LITERAL) in allowed:
        return True
    prefixes = {name for name, pattern in denied if pattern == PatternType.PREFIXED}
    return any(
        not any(name.startswith(prefix) for prefix in prefixes)
        and not (pattern == PatternType.LITERAL and (name, pattern) in denied)
        for name, pattern in allowed
    )
