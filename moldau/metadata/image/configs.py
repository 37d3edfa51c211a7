"""Dynamic configuration and client quotas: images and deltas.

Owns: what ConfigRecord and ClientQuotaRecord (KIP-546) say. Must not: know what a key means, or
enforce anything. Invariant: a resource without a key, and an entity without a quota, are absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from moldau.metadata.image.overlay import NestedMappingDelta
from moldau.metadata.quota_entities import QuotaEntity, part_key, quota_entity
from moldau.protocol.metadata_records import ClientQuotaRecord, ConfigRecord
from moldau.protocol.metadata_records.cluster import EntityData
from moldau.protocol.schema import Message

_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})


class ConfigResourceType(IntEnum):
    """What a configuration belongs to; the wire's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource's type and name; brokers are named by id, "" being the default of all of them."""

    resource_type: int
    name: str


@dataclass(frozen=True, slots=True)
class ConfigsImage:
    """The keys that were set for each resource."""

    configs_by_resource: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)

    def get(self, resource_type: int, name: str) -> Mapping[str, str]:
        """What was set for one resource; empty when nothing was."""
        return self.configs_by_resource.get(ConfigResource(resource_type, name), _NO_CONFIG)

    def names(self, resource_type: int) -> list[str]:
        """The resources of one type that have a configuration, sorted."""
        return sorted(
            each.name for each in self.configs_by_resource if each.resource_type == resource_type
        )

    def write(self) -> Iterator[tuple[Message, int]]:
        for resource in sorted(self.configs_by_resource):
            for key, value in sorted(self.configs_by_resource[resource].items()):
                yield config_record(*resource, key, value)


def config_record(
    resource_type: int, resource_name: str, key: str, value: str | None
) -> tuple[Message, int]:
    """The record that sets a key of a resource, or removes it (None), with its version."""
    record = ConfigRecord(
        resource_type=resource_type, resource_name=resource_name, name=key, value=value
    )
    return record, 0


class ConfigsDelta(NestedMappingDelta[ConfigResource, str, ConfigsImage]):
    """Changed keys by resource."""

    def replay_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        self.changes.setdefault(resource, {})[record.name] = record.value

    def remove_topic(self, topic_name: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic_name)
        keys = {**self._base.get(resource, {}), **self.changes.get(resource, {})}
        if keys:
            self.changes[resource] = dict.fromkeys(keys)


@dataclass(frozen=True, slots=True)
class ClientQuotasImage:
    """Quota values by entity, then by key."""

    quotas_by_entity: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)

    def write(self) -> Iterator[tuple[Message, int]]:
        for entity in sorted(self.quotas_by_entity, key=lambda parts: [*map(part_key, parts)]):
            for key, value in sorted(self.quotas_by_entity[entity].items()):
                yield client_quota_record(entity, key, value)


def client_quota_record(entity: QuotaEntity, key: str, value: float | None) -> tuple[Message, int]:
    """The record that sets a quota of an entity, or removes it (None), with its version."""
    record = ClientQuotaRecord(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        key=key,
        value=value or 0.0,
        remove=value is None,
    )
    return record, 0


class ClientQuotasDelta(NestedMappingDelta[QuotaEntity, float, ClientQuotasImage]):
    """Changed quotas by entity."""

    def replay_client_quota(self, record: ClientQuotaRecord) -> None:
        entity = quota_entity((part.entity_type, part.entity_name) for part in record.entity)
        changes = self.changes.setdefault(entity, {})
        changes[record.key] = None if record.remove else record.value
