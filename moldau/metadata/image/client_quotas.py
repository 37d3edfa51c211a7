"""Client quotas: image and delta.

Owns: what ClientQuotaRecord says (KIP-546). Must not: enforce anything. Invariant: an entity
without a quota is absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from moldau.protocol.metadata_records import ClientQuotaRecord
from moldau.protocol.metadata_records.client_quota_record import EntityData
from moldau.protocol.schema import Message

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Sorted pairs of entity type (user,
client-id, ip) and name; the name None is the type's default."""


@dataclass(frozen=True, slots=True)
class ClientQuotasImage:
    """Quota values by entity, then by key."""

    quotas_by_entity: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)

    def write(self) -> Iterator[tuple[Message, int]]:
        """The records that make this image."""
        for entity in sorted(self.quotas_by_entity, key=_sort_key):
            for key, value in sorted(self.quotas_by_entity[entity].items()):
                parts = [
                    EntityData(entity_type=entity_type, entity_name=name)
                    for entity_type, name in entity
                ]
                yield ClientQuotaRecord(entity=parts, key=key, value=value, remove=False), 0


class ClientQuotasDelta:
    """Changed quotas by entity; None stands for one that was removed."""

    __slots__ = ("_image", "changes")

    def __init__(self, image: ClientQuotasImage) -> None:
        self._image = image
        self.changes: dict[QuotaEntity, dict[str, float | None]] = {}

    def replay_client_quota(self, record: ClientQuotaRecord) -> None:
        """Set or remove one quota."""
        entity = tuple(
            sorted(((part.entity_type, part.entity_name) for part in record.entity), key=_part_key)
        )
        changes = self.changes.setdefault(entity, {})
        changes[record.key] = None if record.remove else record.value

    def finish_snapshot(self) -> None:
        """Remove what the snapshot did not mention."""
        for entity, quotas in self._image.quotas_by_entity.items():
            changes = self.changes.setdefault(entity, {})
            for key in quotas:
                changes.setdefault(key, None)

    def apply(self) -> ClientQuotasImage:
        """The image with the changes made."""
        by_entity = dict(self._image.quotas_by_entity)
        for entity, changes in self.changes.items():
            quotas = dict(by_entity.get(entity, {}))
            for key, value in changes.items():
                if value is None:
                    quotas.pop(key, None)
                else:
                    quotas[key] = value
            if quotas:
                by_entity[entity] = quotas
            else:
                by_entity.pop(entity, None)
        return ClientQuotasImage(by_entity)


def _part_key(part: tuple[str, str | None]) -> tuple[str, bool, str]:
    return part[0], part[1] is not None, part[1] or ""


def _sort_key(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    return tuple(_part_key(part) for part in entity)
