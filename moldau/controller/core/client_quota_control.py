"""AlterClientQuotas: checks, and the records of client quotas that are set and removed (KIP-546).

Owns: what is wrong with an entity, a key and a value. Must not: change state, or enforce quotas
(`server.quotas` does). Invariants: an entity is changed in all that the request says of it, or not
at all; what one entity is refused for leaves the others alone; an unchanged quota makes no record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Asked,
    ControllerResult,
    Refusal,
    VersionedRecord,
)
from moldau.controller.core.state import ControllerState
from moldau.metadata.image.configs import client_quota_record
from moldau.metadata.quota_entities import (
    CLIENT_KEYS,
    ENTITY_TYPES,
    IP,
    IP_KEYS,
    QuotaEntity,
    QuotaType,
    quota_entity,
)
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.messages import p49_alter_client_quotas as p49
from moldau.protocol.messages.p48_describe_client_quotas import EntityData

FRACTION: Final = 1e-6
"""A whole number may be off by so much: it travels as a double."""

_NO_QUOTAS: Final[Mapping[str, float]] = {}


def alter_client_quotas(
    state: ControllerState, request: p49.AlterClientQuotasRequest, _asked: Asked
) -> Steps[ControllerResult[p49.AlterClientQuotasResponse]]:
    """AlterClientQuotas: removing a quota that is not there is no error, and makes no record."""
    result = ControllerResult(p49.AlterClientQuotasResponse())
    answers = result.response.entries
    entities = [_entity(entry) for entry in request.entries]
    named_twice = yield from repeated(entities)
    answered: set[QuotaEntity] = set()
    for entity, entry in zip(entities, request.entries, strict=True):
        yield
        if entity in answered:
            continue
        answered.add(entity)
        answer = p49.EntryDataResponse(
            error_message=None,
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        )
        answers.append(answer)
        try:
            if entity in named_twice:
                raise Refusal.invalid("the entity is named more than once")
            result.records += _records(state, entity, entry)
        except Refusal as refusal:
            refusal.tell(answer)
    if len(result.records) > MAX_RECORDS_PER_REQUEST:
        most = f"one request may change at most {MAX_RECORDS_PER_REQUEST} quotas"
        Refusal.too_many(most).tell(*answers)
        result.records = []
    if request.validate_only:
        result.records = []
    return result


def _entity(entry: p49.EntryData) -> QuotaEntity:
    """What an entry is about; of parts of the same type the last one counts, as in Kafka."""
    parts = {part.entity_type: part.entity_name for part in entry.entity}
    return quota_entity(parts.items())


def _records(
    state: ControllerState, entity: QuotaEntity, entry: p49.EntryData
) -> list[VersionedRecord]:
    """The records that make the change. Raises: Refusal."""
    types = _types_by_key(entity)
    current = state.image.client_quotas.quotas_by_entity.get(entity, _NO_QUOTAS)
    records: list[VersionedRecord] = []
    seen: set[str] = set()
    for op in entry.ops:
        if op.key in seen:
            raise Refusal.invalid(f"{op.key} is given twice for one entity")
        seen.add(op.key)
        if op.remove:
            if op.key in current:
                records.append(client_quota_record(entity, op.key, None))
            continue
        _check_value(types, op.key, op.value)
        if current.get(op.key) != op.value:
            records.append(client_quota_record(entity, op.key, op.value))
    return records


def _types_by_key(entity: QuotaEntity) -> Mapping[str, QuotaType]:
    """The keys that such an entity has. Raises: Refusal."""
    parts = dict(entity)
    if not parts:
        raise Refusal.invalid("the entity is empty: it names no type")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise Refusal.invalid(f"entity type {kind!r} is none of {', '.join(ENTITY_TYPES)}")
        if name == "":
            raise Refusal.invalid(f"the name of the {kind} is empty")
    if IP not in parts:
        return CLIENT_KEYS
    if len(parts) > 1:
        raise Refusal.invalid(
            "quotas are for an IP address, or for a user and a client id, not for both"
        )
    address = parts[IP]
    if address is not None and not _is_address(address):
        raise Refusal.invalid(f"{address!r} is no IP address")
    return IP_KEYS


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(types: Mapping[str, QuotaType], key: str, value: float) -> None:
    """Raises: Refusal."""
    kind = types.get(key)
    if kind is None:
        raise Refusal.invalid(
            f"{key!r} is no quota of such an entity; these are: {', '.join(types)}"
        )
    if math.isnan(value) or value <= 0:
        raise Refusal.invalid(f"{key} must be greater than 0, not {value}")
    if value > kind.maximum:
        raise Refusal.invalid(f"{key}={value} is too large for {kind.name}")
    if kind.is_whole and math.fmod(value, 1.0) > FRACTION:
        raise Refusal.invalid(f"{key} must be a whole number, not {value}")
