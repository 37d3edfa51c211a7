"""What two answers have in common once each node's own is taken out, and where they differ.

Owns the rules of normalisation: what must differ between two clusters, and the order of arrays
that are sets. Must not excuse a difference: that is `differences.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, Struct, StructType
from moldau.protocol.types import ZERO_UUID
from tests.interop.differential.asking import Closed, Node

IDENTITY: Final = (
    "api_key",
    "resource_type",
    "resource_name",
    "pattern_type",
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "key",
    "feature",
    "partition_index",
    "partition",
    "index",
    "node_id",
    "broker_id",
    "replica_id",
    "member_id",
    "transactional_id",
    "log_dir",
    "entity_type",
    "user",
    "mechanism",
)
"""Fields that distinguish the elements of an array; what has none of them is known by its
place.
"""

ACCESS_IDENTITY: Final = (
    *("resource_type", "resource_name", "pattern_type"),
    *("principal", "host", "operation", "permission_type"),
)
"""Those of an access control entry."""

OWN: Final = frozenset(
    {
        "cluster_id",
        "throttle_time_ms",
        "port",
        "partition_size",
        "total_bytes",
        "usable_bytes",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "last_timestamp",
        "log_end_offset",
        "high_watermark",
        "finalized_features_epoch",
        "producer_id",
        "client_host",
        "transaction_start_time_ms",
        "issue_timestamp",
        "expiry_timestamp",
        "max_timestamp",
        "hmac",
    }
)
"""Fields whose values are each cluster's own: only whether there is one (above -1) is compared."""

TEXTS: Final = frozenset({"error_message", "documentation"})
"""For people: compared as null, empty, or some text. Each project words its own."""

SETS: Final = frozenset(
    {"replica_nodes", "isr_nodes", "offline_replicas", "eligible_leader_replicas", "partitions"}
)
"""Arrays of numbers whose order says nothing here: there is one broker, and partitions are sets."""


class Divergence(NamedTuple):
    """One place where the two answers differ."""

    path: str
    ours: str
    kafka: str


def normalise(answer: Message | Closed, node: Node) -> Any:
    """Plain dictionaries, with the words both nodes share in place of each one's own."""
    if isinstance(answer, Closed):
        return {"connection": "closed"}
    return _plain(answer, node)


def compare(ours: Any, kafka: Any) -> list[Divergence]:
    """Every leaf that is not the same on both sides."""
    return list(_differing("", ours, kafka))


def _plain(value: Struct, node: Node) -> dict[str, Any]:
    return {
        spec.name: _value(spec.name, getattr(value, spec.name), node, _has_structs(spec.type))
        for spec in type(value).spec().fields
    }


def _has_structs(kind: Any) -> bool:
    return isinstance(kind, ArrayType) and isinstance(kind.element, StructType)


def _value(name: str, value: Any, node: Node, has_structs: bool = False) -> Any:
    if isinstance(value, Struct):
        return _plain(value, node)
    if isinstance(value, list | tuple):
        if has_structs:
            return _by_identity([_plain(each, node) for each in value])
        elements = [_value("", each, node) for each in value]
        return sorted(elements) if name in SETS else elements
    if name in TEXTS:
        return "text" if value else value
    if name in OWN:
        return _presence(value)
    if isinstance(value, UUID):
        return _uuid_word(value, node)
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, str):
        for own, word in node.aliases.items():
            value = value.replace(own, word)
    return value


def _presence(value: Any) -> str:
    if value is None or isinstance(value, str | bytes | memoryview):
        return "text" if value else repr(value)
    return "some" if value > 0 else "none" if value < 0 else "zero"


def _uuid_word(value: UUID, node: Node) -> str:
    if value == ZERO_UUID:
        return "zero"
    for topic, topic_id in node.topic_ids.items():
        if topic_id == value:
            return f"id of {topic}"
    return str(value) if value.int < 1 << 32 else "an id"


def _by_identity(elements: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for place, element in enumerate(elements):
        names = IDENTITY if "permission_type" not in element else ACCESS_IDENTITY
        told_by = [str(element[name]) for name in names if element.get(name) is not None]
        if isinstance(element.get("entity"), Mapping):  # of a client quota: a set of parts
            told_by += sorted(
                f"{part['entity_type']}={part['entity_name']}"
                for part in element["entity"].values()
            )
        word = ":".join(told_by) if told_by else str(place)
        again = 1
        unique = word
        while unique in found:
            again += 1
            unique = f"{word} again {again}"
        found[unique] = element
    return found


def _differing(path: str, ours: Any, kafka: Any) -> Iterator[Divergence]:
    if isinstance(ours, Mapping) and isinstance(kafka, Mapping):
        for name in [*ours, *(each for each in kafka if each not in ours)]:
            inner = f"{path}/{name}" if path else str(name)
            if name not in ours:
                yield Divergence(inner, "absent", _shown(kafka[name]))
            elif name not in kafka:
                yield Divergence(inner, _shown(ours[name]), "absent")
            else:
                yield from _differing(inner, ours[name], kafka[name])
    elif ours != kafka:
        yield Divergence(path, _shown(ours), _shown(kafka))


def _shown(value: Any) -> str:
    return "present" if isinstance(value, Mapping) and value else repr(value)
