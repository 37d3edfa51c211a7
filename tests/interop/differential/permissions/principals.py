"""Whom both clusters are asked by: one principal for each way of having a right, and its rules.

Owns the names of resources, because a rule's pattern must match them. Invariant: no rule of one
principal touches another, so all rules can be there at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from moldau.protocol.access_control import (
    CLUSTER_RESOURCE_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)

TOPIC_PREFIX, GROUP_PREFIX, ID_PREFIX, USER_PREFIX = "t-", "g-", "x-", "User:o"
HERE, GONE, DOOMED = "t-here", "t-gone", "t-doomed"
OTHER, OTHER_GONE = "other-here", "other-gone"
"""Topics that rights by name or prefix do not cover."""

GROUP, MODERN, NO_GROUP, DOOMED_GROUP = "g-here", "g-modern", "g-gone", "g-doomed"
OTHER_GROUP, OTHER_NO_GROUP = "other-group", "other-no-group"
TRANSACTION, NO_TRANSACTION, OTHER_TRANSACTION = "x-here", "x-gone", "other-transaction"
OWNER: Final = "owner"
"""A super user, to whom the delegation token belongs."""

TOKEN_PLACE: Final = "TOKEN"
"""Stands for the token's id, which is each cluster's own, in the name of a resource."""

NAMES: Final[dict[ResourceType, tuple[str, ...]]] = {
    ResourceType.TOPIC: (HERE, GONE, DOOMED),
    ResourceType.GROUP: (GROUP, MODERN, NO_GROUP, DOOMED_GROUP),
    ResourceType.CLUSTER: (CLUSTER_RESOURCE_NAME,),
    ResourceType.TRANSACTIONAL_ID: (TRANSACTION, NO_TRANSACTION),
    ResourceType.DELEGATION_TOKEN: (TOKEN_PLACE,),
    ResourceType.USER: (f"User:{OWNER}",),
}
PREFIXES: Final[dict[ResourceType, str]] = {
    ResourceType.TOPIC: TOPIC_PREFIX,
    ResourceType.GROUP: GROUP_PREFIX,
    ResourceType.CLUSTER: CLUSTER_RESOURCE_NAME,
    ResourceType.TRANSACTIONAL_ID: ID_PREFIX,
    ResourceType.DELEGATION_TOKEN: TOKEN_PLACE,
    ResourceType.USER: USER_PREFIX,
}
ELSEWHERE: Final[dict[ResourceType, str]] = {
    ResourceType.TOPIC: OTHER,
    ResourceType.GROUP: OTHER_GROUP,
    ResourceType.TRANSACTIONAL_ID: OTHER_TRANSACTION,
    ResourceType.DELEGATION_TOKEN: "no-such-token",
    ResourceType.USER: "User:x",
}
"""A resource of the kind that is not the one asked about; there is but one cluster."""

LITERAL, PREFIXED, EVERY = "by name", "by prefix", "by wildcard"
PATTERNS: Final = (LITERAL, PREFIXED, EVERY)
IMPLIED: Final = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}

Rule = dict[str, Any]
"""The fields of an access control entry, without its principal and host."""


@dataclass(frozen=True)
class Principal:
    """A user and its rules.

    Attributes:
        name: of the user.
        word: the way of having a right, for people.
        rules: its access control entries.
        kind: the kind of resource that its own right is about; None when it has none or all.
        is_asked_all: whether every question in every version comes from it, else one version of
            those that touch its kind.
    """

    name: str
    word: str
    rules: tuple[Rule, ...] = ()
    kind: ResourceType | None = None
    is_asked_all: bool = False

    @property
    def entries(self) -> list[dict[str, Any]]:
        """As CreateAcls takes them."""
        return [{**rule, "principal": f"User:{self.name}", "host": "*"} for rule in self.rules]


def rules(
    kind: ResourceType,
    operation: Operation,
    pattern: str,
    permission: PermissionType = PermissionType.ALLOW,
) -> tuple[Rule, ...]:
    """Those that allow, or deny, one operation on the resources of a kind."""
    how = PatternType.PREFIXED if pattern == PREFIXED else PatternType.LITERAL
    names = {LITERAL: NAMES[kind], PREFIXED: (PREFIXES[kind],), EVERY: (WILDCARD,)}[pattern]
    return tuple(
        {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": how,
            "operation": operation,
            "permission_type": permission,
        }
        for name in names
    )


def principals() -> list[Principal]:
    """All of them."""
    ways = [("no rights", (), None, True), ("all rights", _everything(), None, True), *_ways()]
    return [Principal(f"u{number}", *way) for number, way in enumerate(ways)]


def _patterns(kind: ResourceType) -> tuple[str, ...]:
    """A cluster's rules have no wildcard: both refuse them."""
    return PATTERNS[:2] if kind is ResourceType.CLUSTER else PATTERNS


def _everything() -> tuple[Rule, ...]:
    return tuple(rule for kind in NAMES for rule in rules(kind, Operation.ALL, _patterns(kind)[-1]))


def _ways() -> Iterator[tuple[str, tuple[Rule, ...], ResourceType | None, bool]]:
    for kind in NAMES:
        for operation in (*SUPPORTED_OPERATIONS[kind], Operation.ALL):
            for word, given in _ways_of(kind, operation):
                is_plain = word == LITERAL
                yield f"{operation.name} {kind.name} {word}", given, kind, is_plain


def _ways_of(kind: ResourceType, operation: Operation) -> Iterator[tuple[str, tuple[Rule, ...]]]:
    patterns = _patterns(kind)
    for pattern in patterns:
        yield pattern, rules(kind, operation, pattern)
    for number, pattern in enumerate(patterns):
        denied = rules(kind, operation, pattern, PermissionType.DENY)
        allowed = patterns[(number + 1) % len(patterns)]
        yield f"allowed {allowed}, denied {pattern}", rules(kind, operation, allowed) + denied
        yield f"denied {pattern}, all else allowed", _everything() + denied
    yield "denied and never allowed", rules(kind, operation, LITERAL, PermissionType.DENY)
    yield (
        "allowed, all denied by prefix",
        rules(kind, operation, LITERAL) + rules(kind, Operation.ALL, PREFIXED, PermissionType.DENY),
    )
    implied = IMPLIED.get(operation)
    if implied in SUPPORTED_OPERATIONS[kind]:
        yield (
            f"allowed, {implied.name} denied",
            rules(kind, operation, LITERAL) + rules(kind, implied, LITERAL, PermissionType.DENY),
        )
    if kind in ELSEWHERE:
        [pattern_rule] = rules(kind, operation, EVERY)
        yield "on another resource", ({**pattern_rule, "resource_name": ELSEWHERE[kind]},)
