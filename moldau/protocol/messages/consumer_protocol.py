"""The payloads of JoinGroup and SyncGroup in a classic consumer group, each behind its version."""

from struct import Struct as PackedStruct
from typing import Final, TypeVar

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.schema import Message, Struct, field
from moldau.protocol.types import Buffer, Bytes, Int32, String

NEWEST_VERSION: Final = 3
_VERSION: Final = PackedStruct(">h")

Payload = TypeVar("Payload", bound=Message)


class OwnedTopic(Struct):
    topic: String = field("", since=1)
    partitions: list[Int32] = field(since=1)


class ConsumerProtocolSubscription(Message, versions="0-3", flexible="none"):
    """What a member asks for."""

    topics: list[String] = field()
    user_data: Bytes | None = field(None, nullable="0+")
    owned_partitions: list[OwnedTopic] = field(since=1, ignorable=True)
    generation_id: Int32 = field(-1, since=2, ignorable=True)
    rack_id: String | None = field(None, since=3, nullable="3+", ignorable=True)


class TopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = field()


class ConsumerProtocolAssignment(Message, versions="0-3", flexible="none"):
    """What the leader assigns to one member."""

    assigned_partitions: list[TopicPartition] = field()
    user_data: Bytes | None = field(None, nullable="0+")


def payload_version(payload: Buffer) -> int:
    """The version in which to read these bytes: the newest known one for newer ones, as the
    protocol demands. Raises: RemoteProtocolError.
    """
    if len(payload) < _VERSION.size:
        raise RemoteProtocolError(f"{len(payload)} bytes are no consumer protocol")
    version: int = _VERSION.unpack_from(payload)[0]
    if version < 0:
        raise RemoteProtocolError(f"version {version} of the consumer protocol")
    return min(version, NEWEST_VERSION)


def decode_payload(kind: type[Payload], payload: Buffer) -> Payload:
    """Raises: RemoteProtocolError."""
    return kind.decode(payload, payload_version(payload), _VERSION.size)[0]


def encode_payload(message: Message, version: int) -> bytes:
    return _VERSION.pack(version) + message.to_bytes(version)
