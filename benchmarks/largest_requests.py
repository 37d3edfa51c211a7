"""The largest requests of every API: each array of its schema filled until the limit is reached.

Owns what stands in the fields, so that handlers come far, and the sizes. Must not: send anything.
Invariant: every request is encodable and about `size_bytes` long, or has no array and no text that
could make it so.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import LocalProtocolError
from moldau.protocol.messages.p32_describe_configs import DescribeConfigsRequest
from moldau.protocol.records import Record, encode_batch
from moldau.protocol.schema import Message
from moldau.protocol.structs import ArrayType, FieldSpec, Struct, StructType

MAX_TEXT: Final = "x" * 32_000
KNOWN_TOPICS: Final = 200
WIDE_PARTITIONS: Final = 500
PRODUCER_ID: Final = 0
"""The first one that a cluster gives."""

OTHER_BROKER: Final = 99
"""A broker that does not run: requests in its name move nothing."""

WITHOUT_TEXTS: Final = ("v3_and_below",)

COMMITS: Final = (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT)
BATCH_SHARE: Final = 25
"""Percent of the size whose offsets fit into one batch of the group coordinator's log."""


class Names(NamedTuple):
    """What topics and groups are called: those that there are, or none that there is."""

    label: str
    topic: Callable[[int], str]
    topic_id: Callable[[int], uuid.UUID]


class Largest(NamedTuple):
    """One request and what is large in it."""

    what: str
    message: Message


def known_topic(index: int) -> str:
    """A topic that was created before."""
    return f"known-{index % KNOWN_TOPICS}"


def largest_requests(
    message_class: type[Message],
    api_version: int,
    size_bytes: int,
    all_names: tuple[Names, ...],
    overrides: Mapping[str, Any],
) -> Iterator[Largest]:
    """Every way in which a request of one API can be large.

    Args:
        overrides: values of fields, by name, instead of the general ones.
    """
    for path in _arrays(message_class, api_version):
        for names in all_names:
            fill = _Filler(api_version, names, overrides, path, is_long=False)
            found = fill.largest(message_class, size_bytes)
            if found is not None:
                yield Largest(f"{'.'.join(path)}, {names.label}", found)
    if message_class.API_KEY in COMMITS:
        path = ("topics", "partitions")
        fill = _Filler(api_version, all_names[0], overrides, path, is_long=False)
        found = fill.largest(message_class, size_bytes * BATCH_SHARE // 100)
        if found is not None:
            yield Largest("topics.partitions, as many as a batch holds", found)
    fill = _Filler(api_version, all_names[0], overrides, (), is_long=True)
    try:
        found = fill.struct(message_class, 1)
        found.to_bytes(api_version)
    except LocalProtocolError:
        return
    yield Largest("texts of 32 KB", found)


def _arrays(struct: type[Struct], api_version: int) -> Iterator[tuple[str, ...]]:
    for field in struct.spec().fields:
        if api_version not in field.versions or not isinstance(field.type, ArrayType):
            continue
        yield (field.name,)
        if isinstance(field.type.element, StructType):
            for inner in _arrays(field.type.element.struct, api_version):
                yield (field.name, *inner)


class _Filler:
    """Makes values of a schema; `path` names the array that has many elements."""

    def __init__(
        self,
        api_version: int,
        names: Names,
        overrides: Mapping[str, Any],
        path: tuple[str, ...],
        *,
        is_long: bool,
    ) -> None:
        self._version = api_version
        self._names = names
        self._overrides = overrides
        self._path = path
        self._is_long = is_long
        self._index = 0

    def largest(self, message_class: type[Message], size_bytes: int) -> Message | None:
        """With as many elements as fit; None where the version cannot say it."""
        try:
            sizes = [len(self.struct(message_class, n).to_bytes(self._version)) for n in (10, 20)]
            each = max((sizes[1] - sizes[0]) / 10, 1)
            count = max(int((size_bytes - sizes[0]) / each), 1)
            return self.struct(message_class, count)
        except LocalProtocolError:
            return None

    def struct(self, struct: type[Any], count: int, path: tuple[str, ...] | None = None) -> Any:
        """A struct; the array at the end of the path has `count` elements."""
        path = self._path if path is None else path
        values: dict[str, Any] = {}
        for field in struct.spec().fields:
            if self._version not in field.versions or field.tag is not None:
                continue
            value = self._value(struct, field, count, path)
            if value is not None:
                values[field.name] = value
        return struct(**values)

    def _value(
        self, struct: type[Struct], field: FieldSpec, count: int, path: tuple[str, ...]
    ) -> Any:
        kind = field.type
        if isinstance(kind, StructType):
            return None
        if not isinstance(kind, ArrayType):
            return self._scalar(struct, field.name, kind.name, is_owner=bool(path))
        is_on_path = path[:1] == (field.name,)
        if not is_on_path and self._path and self._version in field.nullable:
            return None
        length = count if is_on_path and len(path) == 1 else 1
        rest = path[1:] if is_on_path else ()
        element = kind.element
        if isinstance(element, StructType):
            return [self.struct(element.struct, count, rest) for _ in range(length)]
        return [self._scalar(struct, field.name, element.name) for _ in range(length)]

    def _scalar(self, struct: type[Struct], name: str, kind: str, *, is_owner: bool = False) -> Any:
        """`is_owner`: a field beside the array with many elements, or above it. A topic that has
        so many partitions is the one that was created with many.
        """
        self._index += 1
        index = 0 if is_owner else self._index
        for key in (f"{struct.__name__}.{name}", name):
            if key in self._overrides:
                value = self._overrides[key]
                return value(index) if callable(value) else value
        if kind == "uuid":
            return self._names.topic_id(index) if name == "topic_id" else uuid.UUID(int=index)
        if kind == "records":
            return memoryview(bytes(encode_batch([Record(0, 1, None, b"v")])))
        if kind == "bytes":
            return b"\0" * 8
        if kind == "string":
            return self._text(struct, name, index)
        if "partition" in name:
            return index % WIDE_PARTITIONS
        return None if kind == "bool" else _NUMBERS.get(name)

    def _text(self, struct: type[Struct], name: str, index: int) -> str | None:
        fixed = _TEXTS.get(name)
        if fixed is not None:
            return fixed
        if name == "cluster_id" or name.startswith(WITHOUT_TEXTS):
            return None
        if self._is_long:
            return MAX_TEXT
        is_topic = "topic" in name or (name == "name" and "Topic" in struct.__name__)
        if is_topic or name == "resource_name":
            return self._names.topic(index)
        return f"n-{index}"


_NUMBERS: Final = {
    "acks": 1,
    "broker_id": OTHER_BROKER,
    "broker_ids": 1,
    "config_operation": 0,
    "controller_id": OTHER_BROKER,
    "count": 2,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "max_bytes": 1 << 20,
    "max_wait_ms": 0,
    "num_partitions": 1,
    "partition_max_bytes": 1 << 20,
    "producer_id": PRODUCER_ID,
    "rebalance_timeout_ms": 60_000,
    "replica_id": -1,
    "replicas": 1,
    "replication_factor": 1,
    "resource_type": 2,
    "response_partition_limit": 2000,
    "retention_time_ms": -1,
    "session_timeout_ms": 10_000,
    "timeout_ms": 5_000,
    "transaction_timeout_ms": 60_000,
    "voter_id": OTHER_BROKER,
}

_TEXTS: Final = {
    "group_id": "group",
    "member_id": "",
    "protocol_type": "consumer",
    "protocol_name": "range",
}

OVERRIDES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ConsumerGroupHeartbeat": {
        "member_id": lambda index: f"member-{index}",
        "member_epoch": 0,
        "instance_id": None,
        "server_assignor": None,
        "subscribed_topic_regex": None,
    },
    "OffsetFetch": {"group_id": lambda index: f"group-{index}"},
    "CreateTopics": {
        "CreatableTopic.num_partitions": -1,
        "CreatableTopic.replication_factor": -1,
        "CreatableReplicaAssignment.partition_index": lambda index: index,
        "validate_only": True,
        "CreatableTopicConfig.name": "retention.ms",
        "CreatableTopicConfig.value": "1000",
    },
    "CreatePartitions": {"validate_only": True},
    "AlterConfigs": {"AlterableConfig.name": "retention.ms", "AlterableConfig.value": "1000"},
    "IncrementalAlterConfigs": {
        "AlterableConfig.name": "retention.ms",
        "AlterableConfig.value": "1000",
    },
    "Metadata": {"allow_auto_topic_creation": False},
    "AlterPartitionReassignments": {"ReassignablePartition.partition_index": 0},
    "Fetch": {"replica_id": -1, "session_id": 0, "session_epoch": 0},
}
"""What general values would not reach: by API."""
assert DescribeConfigsRequest  # the widest answer: no configuration keys are all of them
