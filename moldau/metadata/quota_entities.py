"""What client quotas may be for, and which keys each kind of entity has (KIP-546, KIP-612).

Owns: the names of entity types and keys, and an entity's form in images. Must not: enforce quotas.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, TypeAlias

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Sorted pairs of entity type (user, client-id, ip) and name; the name None is the type's default.
"""


class QuotaType(Enum):
    """The largest value of a key, and whether it must be a whole number."""

    INT = (float(2**31 - 1), True)
    LONG = (float(2**63), True)
    DOUBLE = (float("inf"), False)

    def __init__(self, maximum: float, is_whole: bool) -> None:
        self.maximum = maximum
        self.is_whole = is_whole


CLIENT_KEYS: Final = {
    PRODUCER_BYTE_RATE: QuotaType.LONG,
    CONSUMER_BYTE_RATE: QuotaType.LONG,
    REQUEST_PERCENTAGE: QuotaType.DOUBLE,
    CONTROLLER_MUTATION_RATE: QuotaType.DOUBLE,
}
"""The keys of users, client ids, and pairs of them."""

IP_KEYS: Final = {CONNECTION_CREATION_RATE: QuotaType.INT}
"""The keys of IP addresses."""


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of these pairs of type and name, in whatever order they come."""
    return tuple(sorted(parts, key=part_key))


def part_key(part: tuple[str, str | None]) -> tuple[str, bool, str]:
    """Sorts pairs of type and name, the default before names."""
    return part[0], part[1] is not None, part[1] or ""
