"""Which access control entries a filter of DescribeAcls and DeleteAcls means (KIP-290).

Must not know a cluster. Invariant: a filter without anything matches every entry.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import (
    WILDCARD,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)


class RequestedFilter(Protocol):
    """The fields of a filter in requests."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class EntryFilter(NamedTuple):
    """Matches entries that agree in every field; None and ANY agree with everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @classmethod
    def of(cls, requested: RequestedFilter) -> EntryFilter:
        return cls(
            requested.resource_type_filter,
            requested.resource_name_filter,
            requested.pattern_type_filter,
            requested.principal_filter,
            requested.host_filter,
            requested.operation,
            requested.permission_type,
        )

    @property
    def unknown(self) -> str | None:
        """The field whose number stands for nothing, in words; None when all are known."""
        for name, known in FIELDS.items():
            value = getattr(self, name)
            if value not in known:
                return f"{name} {value}"
        return None

    def matches(self, entry: AccessControlEntry) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, entry.resource_type)
            and self._matches_pattern(entry)
            and (self.principal is None or self.principal == entry.principal)
            and (self.host is None or self.host == entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission_type in (PermissionType.ANY, entry.permission_type)
        )

    def _matches_pattern(self, entry: AccessControlEntry) -> bool:
        wanted, name = self.pattern_type, self.resource_name
        if wanted not in (PatternType.ANY, PatternType.MATCH, entry.pattern_type):
            return False
        if name is None or name == entry.resource_name:
            return True
        return wanted == PatternType.MATCH and _stands_for(entry, name)


def _stands_for(entry: AccessControlEntry, name: str) -> bool:
    """Whether the entry is about the resource of that name."""
    if entry.pattern_type == PatternType.PREFIXED:
        return name.startswith(entry.resource_name)
    return entry.resource_name in (name, WILDCARD)


def _names(kind: type[IntEnum]) -> dict[int, str]:
    return {int(each): each.name for each in kind if each.name != "UNKNOWN"}


FIELDS: Final[dict[str, dict[int, str]]] = {
    "resource_type": _names(ResourceType),
    "pattern_type": _names(PatternType),
    "operation": _names(Operation),
    "permission_type": _names(PermissionType),
}
"""What is known of the fields that are numbers: each one's name."""
