"""Whom both clusters are asked by: one principal for each way of having a right, and its rules.

Owns the names of resources, because a rule's pattern must match them. Invariant: no rule of one
principal touches another, so all rules can be there at once, but for those for every user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
ODD_GROUP, ODD_TRANSACTION = "g-\0\n\x1b[31m", "x-\0\n\x1b[31m"
"""They exist, too: names of groups and transactions may have any character."""

OWNER: Final = "owner"
"""A super user, to whom the delegation token belongs."""

TOKEN_PLACE: Final = "TOKEN"
"""Stands for the token's id, which is each cluster's own, in the name of a resource."""

NAMES: Final[dict[ResourceType, tuple[str, ...]]] = {
    ResourceType.TOPIC: (HERE, GONE, DOOMED),
    ResourceType.GROUP: (GROUP, MODERN, NO_GROUP, DOOMED_GROUP, ODD_GROUP),
    ResourceType.CLUSTER: (CLUSTER_RESOURCE_NAME,),
    ResourceType.TRANSACTIONAL_ID: (TRANSACTION, NO_TRANSACTION, ODD_TRANSACTION),
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

HOST, OTHER_HOST = "127.0.0.1", "10.9.8.7"
"""Where all of them come from, and where none does."""

NETWORK = "127.0.0.0/8"
"""HOST is in it; to Apache Kafka before KIP-1276 it is a host that no client comes from."""

EVERY_USER: Final = "User:*"
NARROW: Final = (
    (ResourceType.TOPIC, Operation.READ),
    (ResourceType.TOPIC, Operation.CREATE),
    (ResourceType.GROUP, Operation.READ),
    (ResourceType.CLUSTER, Operation.ALTER),
    (ResourceType.TRANSACTIONAL_ID, Operation.WRITE),
)
"""What rules by host, and those for every user, are about."""

Rule = dict[str, Any]
"""The fields of an access control entry; without a principal it is for its owner, without a host
for all.
"""


@dataclass(frozen=True)
class Principal:
    """A user and its rules.

    Attributes:
        name: of the user.
        word: the way of having a right, for people.
        rules: its access control entries.
        shared: entries for every user, which exist only while it asks.
        kind: the kind of resource that its own right is about; None when it has none or all.
        is_asked_all: whether every question in every version comes from it, else one version of
            those that touch its kind.
    """

    name: str
    word: str
    rules: tuple[Rule, ...] = ()
    kind: ResourceType | None = None
    is_asked_all: bool = False
    shared: tuple[Rule, ...] = ()

    @property
    def entries(self) -> list[dict[str, Any]]:
        """As CreateAcls takes them."""
        own = {"principal": f"User:{self.name}", "host": WILDCARD}
        return [{**own, **rule} for rule in self.rules]

    @property
    def shared_entries(self) -> list[dict[str, Any]]:
        """As CreateAcls takes them."""
        return [{"principal": EVERY_USER, "host": WILDCARD, **rule} for rule in self.shared]


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
    """All with rules of their own."""
    ways = [
        ("no rights", (), None, True),
        ("all rights", _everything(), None, True),
        *_ways(),
        *_ways_by_host(),
    ]
    return [Principal(f"u{number}", *way) for number, way in enumerate(ways)]


def sharing_principals() -> list[Principal]:
    """Those about whom rules for every user decide: the rules exist for one at a time."""
    found = []
    for kind, operation in NARROW:
        allowed = rules(kind, operation, LITERAL)
        denied = rules(kind, operation, LITERAL, PermissionType.DENY)
        what = f"{operation.name} {kind.name}"
        for word, own, shared in (
            ("allowed to every user", (), allowed),
            ("allowed to every user, denied to this", denied, allowed),
            ("allowed, denied to every user", allowed, denied),
            ("allowed to every user from here", (), _from(HOST, allowed)),
            ("allowed to every user from elsewhere", (), _from(OTHER_HOST, allowed)),
            ("allowed, denied to every user from elsewhere", allowed, _from(OTHER_HOST, denied)),
        ):
            name = f"s{len(found)}"
            found.append(Principal(name, f"{what} {word}", own, kind, shared=shared))
    return found


def controllers_principals(everybody: list[Principal]) -> list[Principal]:
    """Those of them that ask at a controller's listener: the rights by name on what controllers
    decide about, in one version each, and those by host.
    """
    kinds = (ResourceType.CLUSTER, ResourceType.TOPIC)
    ways = (LITERAL, "denied and never allowed", f"from {HOST}", f"from {OTHER_HOST}")
    return [
        *(each for each in everybody if each.kind is None),
        *(
            replace(each, is_asked_all=False)
            for each in everybody
            if each.kind in kinds and each.word.endswith(ways)
        ),
    ]


def _from(host: str, given: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple({**rule, "host": host} for rule in given)


def _ways_by_host() -> Iterator[tuple[str, tuple[Rule, ...], ResourceType | None, bool]]:
    for kind, operation in NARROW:
        allowed = rules(kind, operation, LITERAL)
        denied = rules(kind, operation, LITERAL, PermissionType.DENY)
        for word, given in (
            (f"allowed from {HOST}", _from(HOST, allowed)),
            (f"allowed from {OTHER_HOST}", _from(OTHER_HOST, allowed)),
            (f"allowed, denied from {HOST}", allowed + _from(HOST, denied)),
            (f"allowed, denied from {OTHER_HOST}", allowed + _from(OTHER_HOST, denied)),
            (f"allowed from {NETWORK}", _from(NETWORK, allowed)),
            (f"allowed, denied from {NETWORK}", allowed + _from(NETWORK, denied)),
            (f"denied, allowed from {HOST}", denied + _from(HOST, allowed)),
        ):
            yield f"{operation.name} {kind.name} {word}", given, kind, False


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
