"""Random messages for the codecs' tests: any class, any version, all that the version can carry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from moldau.protocol import registry
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.headers import RequestHeader, ResponseHeader
from moldau.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from moldau.protocol.messages.p58_envelope import DefaultPrincipalData
from moldau.protocol.messages.quorum_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from moldau.protocol.metadata_records import frame
from moldau.protocol.metadata_records.frame import record_class
from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, FieldSpec, FieldType, Struct, StructType

PAYLOADS: tuple[type[Message], ...] = (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    DefaultPrincipalData,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
"""The messages that belong to no API."""

NOT_SPOKEN = frozenset(
    {
        *("GetTelemetrySubscriptions", "PushTelemetry"),
        *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
        *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState"),
        *("DeleteShareGroupState", "ReadShareGroupStateSummary"),
        *("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
        *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
        # Control records' keys and markers are written by `records.control`, the quorum's state as
        # JSON by `raft.quorum_state`.
        *("ControlRecordTypeSchema", "EndTxnMarker", "QuorumStateData"),
    }
)
"""Apache Kafka's APIs and payloads without a class here: nothing in Moldau speaks them."""


def is_spoken(message_name: str) -> bool:
    """Whether a message of Apache Kafka has a class here, by its name or its field's path."""
    name = message_name.partition(".")[0].removesuffix("Request").removesuffix("Response")
    return name not in NOT_SPOKEN


_ALPHABET = "abz019._- äß€漢字\U0001f980"
_EDGES = {
    "int8": (-128, -1, 0, 1, 127),
    "int16": (-32768, -1, 0, 1, 32767),
    "uint16": (0, 1, 9092, 65535),
    "int32": (-(2**31), -1, 0, 1, 2**31 - 1),
    "int64": (-(2**63), -1, 0, 1, 2**63 - 1),
}


def api_classes() -> Iterator[type[Message]]:
    """Every request and response."""
    for api_key in registry.api_keys():
        yield registry.request_class(api_key)
        yield registry.response_class(api_key)


def record_classes() -> Iterator[type[Message]]:
    """Every metadata record, and every coordinator record's key and value."""
    for type_id in frame.record_types():
        yield record_class(type_id)
    for log in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        for type_id in log.record_types():
            yield log.key_class(type_id)
            yield log.value_class(type_id)


def all_classes() -> Iterator[type[Message]]:
    """Every message there is."""
    yield from api_classes()
    yield from record_classes()
    yield from (RequestHeader, ResponseHeader)
    yield from PAYLOADS


def all_versions() -> list[tuple[type[Message], int]]:
    """Every message class with every version it has."""
    return [
        (message_class, version)
        for message_class in all_classes()
        for version in range(message_class.MIN_VERSION, message_class.MAX_VERSION + 1)
    ]


def fields_of(struct_class: type[Struct], version: int) -> list[FieldSpec]:
    """The fields a struct has in a version."""
    return [field for field in struct_class.spec().fields if version in field.versions]


class InstanceMaker:
    """Makes random instances of message classes; the same seed makes the same instances."""

    def __init__(self, seed: int, *, max_elements: int = 3, long_values: bool = True) -> None:
        self._random = random.Random(seed)
        self._max_elements = max_elements
        self._long_values = long_values

    def make(self, struct_class: type[Struct], version: int) -> Any:
        """A random instance that `version` can carry."""
        values = {
            field.name: self._content(field, version)
            for field in fields_of(struct_class, version)
            # Sometimes a field keeps its default, which matters most for tagged ones.
            if self._random.random() < 0.8
        }
        for field in fields_of(struct_class, version):
            has_no_default = field.default is None and field.fresh_default is None
            if field.name not in values and has_no_default and version not in field.nullable:
                values[field.name] = self._content(field, version)
        return struct_class(**values)

    def _content(self, field: FieldSpec, version: int) -> Any:
        if version in field.nullable and self._random.random() < 0.2:
            return None
        return self._value(field.type, version)

    def _value(self, kind: FieldType, version: int) -> Any:
        chosen = self._random
        if isinstance(kind, StructType):
            return self.make(kind.struct, version)
        if isinstance(kind, ArrayType):
            count = chosen.randint(0, self._max_elements)
            if not isinstance(kind.element, StructType) and self._is_long():
                count = chosen.randint(120, 140)
            return [self._value(kind.element, version) for _ in range(count)]
        if kind.name == "bool":
            return chosen.random() < 0.5
        if kind.name == "float64":
            return chosen.choice((0.0, -1.5, 1e300, chosen.random()))
        if kind.name == "uuid":
            return UUID(bytes=chosen.randbytes(16))
        if kind.name == "string":
            length = chosen.randint(120, 300) if self._is_long() else chosen.randint(0, 12)
            return "".join(chosen.choices(_ALPHABET, k=length))
        if kind.name in ("bytes", "records"):
            return chosen.randbytes(
                chosen.randint(120, 20_000) if self._is_long() else chosen.randint(0, 20)
            )
        if chosen.random() < 0.3:
            return chosen.choice(_EDGES[kind.name])
        low, *_, high = _EDGES[kind.name]
        return chosen.randint(low, high)

    def _is_long(self) -> bool:
        return self._long_values and self._random.random() < 0.05
