"""Decides by access control entries as Kafka's StandardAuthorizer does (KIP-11, KIP-290, KIP-801).

Owns an index of the entries that the metadata have, by principal, host and resource: a decision
costs more with the lengths of prefixes that a principal has, not with the number of entries. Must
not authenticate, nor change an entry: the controller does, and every node follows the image.
Invariants: a DENY that matches decides, whatever is allowed beside it; without an entry that
matches the answer is no, unless no entry is about the resource and the node allows that then
(`allow.everyone.if.no.acl.found`); the cluster's nodes may do what nodes need, whatever the entries
say; until the first image has come, they and `super.users` alone are allowed anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Generic, TypeVar
from uuid import UUID

from moldau.addresses import canonical_address
from moldau.config import NodeConfig
from moldau.config.principals import NodePrincipals
from moldau.metadata.image.security import AccessControlEntry, EntryChanges
from moldau.protocol.access_control import (
    ANY_PRINCIPAL,
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from moldau.protocol.coordinator_records import INTERNAL_TOPICS
from moldau.runtime.clock import Clock, SystemClock
from moldau.server.audit_log import DecisionLog, Rule
from moldau.server.authorizer import Authorizer

EVERYTHING: Final = sum(1 << each for each in Operation)
_DESCRIBE: Final = 1 << Operation.DESCRIBE
IMPLIED: Final[Mapping[int, int]] = {
    **dict.fromkeys(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER), _DESCRIBE
    ),
    Operation.ALTER_CONFIGS: 1 << Operation.DESCRIBE_CONFIGS,
}
"""What is allowed with an operation that is, as bits by operation. A denial implies nothing."""
_TOPIC, _CLUSTER = int(ResourceType.TOPIC), int(ResourceType.CLUSTER)
_CREATE: Final = 1 << Operation.CREATE
_OF_NODES: Final = _DESCRIBE | 1 << Operation.CLUSTER_ACTION
"""What nodes may do to the cluster, as bits by operation: DESCRIBE is how far the metadata go."""
MAX_OPERATION: Final = 0x7F
ANY_RESOURCE: Final = "hardcode"
"""The name by which Kafka asks whether a principal may do something to any resource of a type."""
Value = TypeVar("Value")


def may_as_node(
    nodes: NodePrincipals, principal: str, operation: int, resource_type: int, resource_name: str
) -> bool:
    """Whether a principal may do this by being a node of the cluster.

    Nodes act on the cluster, ask leaders where logs begin and end, and create the topics that
    coordinators keep their state in.
    """
    bit = 1 << operation
    if resource_type == _CLUSTER:
        is_needed = bool(bit & _OF_NODES)
    elif resource_type == _TOPIC:
        is_needed = bit == _DESCRIBE or (bit == _CREATE and resource_name in INTERNAL_TOPICS)
    else:
        is_needed = False
    return is_needed and nodes.is_node(principal)


class _Patterns(Generic[Value]):
    """Values by pattern, and those whose pattern matches a resource's name.

    The prefixes of 16 to 31 characters lie behind their first 16, those of 8 to 15 behind their
    first 8, and so on: a name is asked for once a span, and only for the lengths of the prefixes
    that begin as it does. (Measured: with 5,000 prefixes of 20 lengths, half of the time that a
    question for every length takes.)
    """

    __slots__ = ("_count_by_span", "_lengths", "_spans", "literals", "prefixes")

    def __init__(self) -> None:
        self.literals: dict[str, Value] = {}
        self.prefixes: dict[str, Value] = {}
        self._lengths: dict[str, dict[int, int]] = {}
        self._count_by_span: Counter[int] = Counter()
        self._spans: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.literals or self.prefixes)

    def of(self, pattern_type: int) -> dict[str, Value]:
        return self.prefixes if pattern_type == PatternType.PREFIXED else self.literals

    def put(self, pattern_type: int, name: str, value: Value | None) -> None:
        """Set the value of a pattern; None removes it."""
        values = self.of(pattern_type)
        before = len(values)
        if value is None:
            del values[name]
        else:
            values[name] = value
        if values is self.prefixes and len(values) != before:
            self._count(name, len(values) - before)

    def _count(self, prefix: str, more: int) -> None:
        """How many prefixes of its length, and of its span, begin as this one does."""
        length = len(prefix)
        span = 1 << length.bit_length() - 1 if length else 0
        head = prefix[:span]
        counts = self._lengths.get(head, {})
        counts[length] = counts.get(length, 0) + more
        self._lengths[head] = {each: counts[each] for each in sorted(counts) if counts[each]}
        if not self._lengths[head]:
            del self._lengths[head]
        spans = self._count_by_span
        spans[span] += more
        if not spans[span]:
            del spans[span]
        if len(spans) != len(self._spans):
            self._spans = tuple(sorted(spans))

    def matching(self, name: str) -> list[Value]:
        """The values of all patterns that match a resource's name."""
        found = self.of_prefixes(name)
        literals = self.literals
        if name in literals:
            found.append(literals[name])
        if name != WILDCARD and WILDCARD in literals:
            found.append(literals[WILDCARD])
        return found

    def of_prefixes(self, name: str) -> list[Value]:
        """The values of the prefixes that a name begins with."""
        found: list[Value] = []
        size = len(name)
        for span in self._spans:
            if span > size:
                break
            if (lengths := self._lengths.get(name[:span])) is None:
                continue
            for length in lengths:
                if length > size:
                    break
                if (value := self.prefixes.get(name[:length])) is not None:
                    found.append(value)
        return found


class _Grant:
    """The entries of one principal, host and pattern, and as bits by operation what they allow,
    what they allow without what that implies, and what they deny.
    """

    __slots__ = ("allowed", "allowed_alone", "denied", "entries")

    def __init__(self) -> None:
        self.entries: dict[UUID, AccessControlEntry] = {}
        self.allowed = self.allowed_alone = self.denied = 0

    def change(self, entry_id: UUID, entry: AccessControlEntry | None) -> None:
        """Add an entry; None removes the one with that id."""
        if entry is None:
            del self.entries[entry_id]
        else:
            self.entries[entry_id] = entry
        self.allowed = self.allowed_alone = self.denied = 0
        for each in self.entries.values():
            if each.permission_type == PermissionType.DENY:
                self.denied |= _named(each)
            elif each.permission_type == PermissionType.ALLOW:
                self.allowed_alone |= _named(each)
                self.allowed |= _reach(each)


def _named(entry: AccessControlEntry) -> int:
    """The operations that an entry names, as bits."""
    operation = entry.operation
    return EVERYTHING if operation == Operation.ALL else 1 << (operation & MAX_OPERATION)


def _reach(entry: AccessControlEntry) -> int:
    """The operations that an entry allows or denies, as bits."""
    if entry.permission_type != PermissionType.ALLOW:
        return _named(entry)
    return _named(entry) | IMPLIED.get(entry.operation, 0)


def _concerned(entry: AccessControlEntry) -> tuple[int, str, str]:
    """Whom an entry is about: the type of the resource, the principal, the client's address."""
    return entry.resource_type, entry.principal, canonical_address(entry.host)


class StandardAuthorizer(Authorizer):
    """Decides by the entries of the last image that it was given.

    Args:
        super_users: principals that may do everything, whatever the entries say.
        allows_unmentioned: whether every principal may do what no entry is about.
        log: where decisions are written.
        nodes: which principals are nodes.
    """

    __slots__ = (
        "_entries",
        "_is_loaded",
        "_mentioned",
        "_nodes",
        "_patterns",
        "allows_unmentioned",
        "log",
        "super_users",
    )

    def __init__(
        self,
        super_users: Collection[str],
        *,
        allows_unmentioned: bool,
        log: DecisionLog | None = None,
        nodes: NodePrincipals | None = None,
    ) -> None:
        self.log = log
        self._nodes = nodes or None
        self.super_users = frozenset(super_users)
        self.allows_unmentioned = allows_unmentioned
        self._is_loaded = False
        self._entries: dict[UUID, AccessControlEntry] = {}
        self._patterns: dict[tuple[int, str, str], _Patterns[_Grant]] = {}
        self._mentioned: defaultdict[int, _Patterns[int]] = defaultdict(_Patterns)

    @classmethod
    def of(cls, config: NodeConfig, clock: Clock | None = None) -> Authorizer:
        """The authorizer that a node is configured to have; `clock` is that of its loop."""
        if not config.has_authorizer:
            return Authorizer()
        users = (each.strip() for each in config["super.users"].split(";"))
        return cls(
            [each for each in users if each],
            allows_unmentioned=config["allow.everyone.if.no.acl.found"],
            log=DecisionLog(clock or SystemClock(), config["moldau.audit.log.max.lines"]),
            nodes=config.principals,
        )

    # -- entries ---------------------------------------------------------------------------------

    def change(self, entries: EntryChanges) -> None:
        for entry_id, entry in entries.items():
            if (old := self._entries.pop(entry_id, None)) is not None:
                self._remove(entry_id, old)
            if entry is not None:
                self._entries[entry_id] = entry
                self._add(entry_id, entry)
        self._is_loaded = True

    def _add(self, entry_id: UUID, entry: AccessControlEntry) -> None:
        kind, name = entry.pattern_type, entry.resource_name
        key = _concerned(entry)
        patterns = self._patterns.get(key)
        if patterns is None:
            patterns = self._patterns[key] = _Patterns()
        grant = patterns.of(kind).get(name)
        if grant is None:
            grant = _Grant()
            patterns.put(kind, name, grant)
        grant.change(entry_id, entry)
        mentioned = self._mentioned[entry.resource_type]
        mentioned.put(kind, name, mentioned.of(kind).get(name, 0) + 1)

    def _remove(self, entry_id: UUID, entry: AccessControlEntry) -> None:
        kind, name = entry.pattern_type, entry.resource_name
        key = _concerned(entry)
        patterns = self._patterns[key]
        grant = patterns.of(kind)[name]
        grant.change(entry_id, None)
        if not grant.entries:
            patterns.put(kind, name, None)
            if not patterns:
                del self._patterns[key]
        mentioned = self._mentioned[entry.resource_type]
        mentioned.put(kind, name, mentioned.of(kind)[name] - 1 or None)

    # -- decisions -------------------------------------------------------------------------------

    def authorize(
        self,
        principal: str,
        client_host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
    ) -> bool:
        if principal in self.super_users:
            return True
        nodes = self._nodes
        if nodes is not None and may_as_node(
            nodes, principal, operation, resource_type, resource_name
        ):
            return True
        bit, is_allowed = 1 << operation, False
        for patterns in self._of(principal, client_host, resource_type):
            for grant in patterns.matching(resource_name):
                if grant.denied & bit:
                    return False
                is_allowed |= bool(grant.allowed & bit)
        return is_allowed or (
            self.allows_unmentioned and self._is_unmentioned(resource_type, resource_name)
        )

    def rule(
        self,
        principal: str,
        client_host: str,
        operation: Operation,
        resource_type: ResourceType,
        resource_name: str,
    ) -> Rule:
        if principal in self.super_users:
            return Rule("SuperUser")
        nodes = self._nodes
        if nodes is not None and may_as_node(
            nodes, principal, operation, resource_type, resource_name
        ):
            return Rule("NodePrincipal")
        bit = 1 << operation
        allowing: AccessControlEntry | None = None
        for patterns in self._of(principal, client_host, resource_type):
            for grant in patterns.matching(resource_name):
                for entry in grant.entries.values():
                    if not _reach(entry) & bit:
                        continue
                    if entry.permission_type == PermissionType.DENY:
                        return Rule("MatchingAcl", entry)
                    if entry.permission_type == PermissionType.ALLOW:
                        allowing = allowing or entry
        if allowing is not None:
            return Rule("MatchingAcl", allowing)
        is_free = self.allows_unmentioned and self._is_unmentioned(resource_type, resource_name)
        return Rule("NoAclFound" if is_free else "DefaultDeny")

    def authorize_by_resource_type(
        self, principal: str, client_host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        if self.authorize(principal, client_host, operation, resource_type, ANY_RESOURCE):
            return True
        bit = 1 << operation
        mine = list(self._of(principal, client_host, resource_type))
        denied: _Patterns[bool] = _Patterns()
        for patterns in mine:
            for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
                for name, grant in patterns.of(pattern_type).items():
                    if grant.denied & bit:
                        denied.put(pattern_type, name, True)
        if WILDCARD in denied.literals:
            return False
        return any(
            grant.allowed_alone & bit
            and (name == WILDCARD or not (name in denied.literals or denied.of_prefixes(name)))
            for patterns in mine
            for name, grant in patterns.literals.items()
        ) or any(
            grant.allowed_alone & bit and not denied.of_prefixes(name)
            for patterns in mine
            for name, grant in patterns.prefixes.items()
        )

    def _of(
        self, principal: str, client_host: str, resource_type: ResourceType
    ) -> Iterator[_Patterns[_Grant]]:
        """What concerns a principal that comes from a host."""
        found = self._patterns
        for who in (principal, ANY_PRINCIPAL):
            for host in (client_host, WILDCARD):
                if (patterns := found.get((resource_type, who, host))) is not None:
                    yield patterns

    def _is_unmentioned(self, resource_type: ResourceType, resource_name: str) -> bool:
        return self._is_loaded and not self._mentioned[resource_type].matching(resource_name)
