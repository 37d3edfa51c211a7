"""Which limit holds for which client: the most specific one that is set.

Owns: the limits of one key, by entity. Must not: know what was used. Invariant: the limits are what
the last changes say, whatever order they came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from moldau.metadata.quota_entities import CLIENT_ID, IP, USER, QuotaEntity

ABSENT: Final = ""
"""Stands for the part that an entity does not have: names are never empty."""

QuotaChanges: TypeAlias = Mapping[QuotaEntity, Mapping[str, float | None]]
"""Changed values by entity and key; None removes."""


class ClientLimit(NamedTuple):
    """The limit of a client, and which clients share it: those with the same user and client id
    here, of which one may be ABSENT.
    """

    user: str
    client_id: str
    limit: float


class ClientLimits:
    """The limits of one key for users and client ids (KIP-55).

    They are looked for in this order: user and client id, user and default client id, user, default
    user and client id, default user and default client id, default user, client id, default client
    id. A limit for a default is used up by each name for itself.
    """

    __slots__ = ("_by_entity", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self._by_entity: dict[tuple[str | None, str | None], float] = {}

    def __len__(self) -> int:
        return len(self._by_entity)

    def change(self, changes: QuotaChanges) -> None:
        for entity, values in changes.items():
            if self.key not in values:
                continue
            parts = dict(entity)
            if IP in parts:
                continue
            where = parts.get(USER, ABSENT), parts.get(CLIENT_ID, ABSENT)
            value = values[self.key]
            if value is None:
                self._by_entity.pop(where, None)
            else:
                self._by_entity[where] = value

    def find(self, user: str, client_id: str) -> ClientLimit | None:
        """The limit of a client, None when it has none. An empty client id has only the limits of
        its user, as in Kafka.
        """
        limits = self._by_entity
        for user_part, client_part in _order(user, client_id):
            limit = limits.get((user_part, client_part))
            if limit is not None:
                return ClientLimit(
                    ABSENT if user_part == ABSENT else user,
                    ABSENT if client_part == ABSENT else client_id,
                    limit,
                )
        return None


def _order(user: str, client_id: str) -> Iterable[tuple[str | None, str | None]]:
    if not client_id:
        return (user, ABSENT), (None, ABSENT)
    return (
        (user, client_id),
        (user, None),
        (user, ABSENT),
        (None, client_id),
        (None, None),
        (None, ABSENT),
        (ABSENT, client_id),
        (ABSENT, None),
    )
