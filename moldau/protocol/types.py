"""The wire's value types: what a message field may be annotated with, ids, uuids, topic names.

A type checker sees plain Python types (`Int32` is `int`, `String` is `str`); the schema reader sees
the `WireType` behind them. The one rule for topic names is here, for broker, controller, client and
tools.
"""

import base64
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NewType, Protocol, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    from random import Random

BrokerId = NewType("BrokerId", int)
TopicId = NewType("TopicId", UUID)
ProducerId = NewType("ProducerId", int)

ZERO_UUID = UUID(int=0)
"""The uuid that stands for "none" on the wire."""

METADATA_TOPIC_ID = UUID(int=1)
"""The fixed id of `__cluster_metadata`."""

RESERVED_TOPIC_IDS = frozenset(UUID(int=number) for number in range(100))
"""Ids that Kafka keeps for its own meanings; no topic or directory may get one."""


MAX_TOPIC_NAME_LENGTH: Final = 249
METADATA_TOPIC_NAME: Final = "__cluster_metadata"
"""The controllers' own log: a legal name, but no client may create such a topic."""
INTERNAL_PREFIX: Final = "__"
"""What names of topics begin with that brokers, or the tools around them, keep."""

_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class TopicPartition(NamedTuple):
    """A partition's name: the topic's name and the partition's index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions' indexes by topic, both in the order given."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    return topics


class RecordsSource(Protocol):
    """Anything that can stand in a `records` field: its length is the number of bytes it sends."""

    def __len__(self) -> int: ...


Buffer: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = bytes | bytearray | memoryview | RecordsSource
"""One piece of an encoded message; the pieces of a message follow each other on the wire."""


class WireType(NamedTuple):
    """A primitive type of the protocol; `format` is its struct letter when it is fixed-width."""

    name: str
    format: str = ""
    size: int = 0


Bool: TypeAlias = Annotated[bool, WireType("bool", "?", 1)]
Int8: TypeAlias = Annotated[int, WireType("int8", "b", 1)]
Int16: TypeAlias = Annotated[int, WireType("int16", "h", 2)]
Uint16: TypeAlias = Annotated[int, WireType("uint16", "H", 2)]
Int32: TypeAlias = Annotated[int, WireType("int32", "i", 4)]
Int64: TypeAlias = Annotated[int, WireType("int64", "q", 8)]
Float64: TypeAlias = Annotated[float, WireType("float64", "d", 8)]
Uuid: TypeAlias = Annotated[UUID, WireType("uuid", "16s", 16)]
String: TypeAlias = Annotated[str, WireType("string")]
Bytes: TypeAlias = Annotated[bytes, WireType("bytes")]
Records: TypeAlias = Annotated[bytes | bytearray | memoryview | RecordsSource, WireType("records")]
"""Record batches. Decoding gives a memoryview of the frame; encoding passes the value through."""


def uuid_to_base64(value: UUID) -> str:
    """Return Kafka's text form of `value`: 22 characters of url-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_base64(text: str) -> UUID:
    """Parse Kafka's text form of a uuid.

    Raises ValueError: `text` is not 22 to 24 characters of url-safe base64 for 16 bytes.
    """
    if not 22 <= len(text) <= 24:
        raise ValueError(f"{text!r} is not a base64 uuid: 22 characters are expected")
    unpadded = text.rstrip("=")
    try:
        raw = base64.b64decode(unpadded + "==", altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a base64 uuid: {error}") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a base64 uuid: it holds {len(raw)} bytes, not 16")
    return UUID(bytes=raw)


def random_topic_id(random: "Random") -> TopicId:
    """Draw a version 4 uuid that is not reserved and whose text does not begin with a dash."""
    while True:
        candidate = UUID(bytes=random.randbytes(16), version=4)
        if candidate not in RESERVED_TOPIC_IDS and not uuid_to_base64(candidate).startswith("-"):
            return TopicId(candidate)


def is_legal_topic_name(topic_name: str) -> bool:
    """Whether `topic_name` may name a topic.

    A legal name is also a legal directory name with every partition number below one million.
    """
    return topic_name_problem(topic_name) is None


def topic_name_problem(topic_name: str) -> str | None:
    """What is wrong with `topic_name`, in one sentence, or None when nothing is."""
    if not topic_name:
        return "a topic name may not be empty"
    if topic_name in (".", ".."):
        return "a topic may not be named '.' or '..'"
    if len(topic_name) > MAX_TOPIC_NAME_LENGTH:
        return (
            f"a topic name has at most {MAX_TOPIC_NAME_LENGTH} characters, "
            f"this one has {len(topic_name)}"
        )
    if _LEGAL_TOPIC_NAME.match(topic_name) is None:
        return (
            f"topic name {topic_name!r} has a character that is not allowed: "
            "letters, digits, '.', '_' and '-' are"
        )
    return None


def collision_key(topic_name: str) -> str:
    """Names with the same key collide in metric names, where '.' and '_' are one character."""
    return topic_name.replace(".", "_")
