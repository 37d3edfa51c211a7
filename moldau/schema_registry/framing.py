"""Confluent's wire format: a zero byte, a schema's id, for Protobuf the message's place, the data.

Must not know a schema. Invariant: `unframed` gives back what `framed` was given.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from moldau.client.errors import SerializationError

MAGIC: Final = 0
_HEAD: Final = struct.Struct(">bi")
MAX_INDEXES: Final = 1_000
"""Messages are not nested deeper than that; a larger count is garbage."""


def framed(schema_id: int, data: bytes) -> bytes:
    """The data of a schema, ready to be a key or value."""
    return _HEAD.pack(MAGIC, schema_id) + data


def unframed(data: bytes) -> tuple[int, bytes]:
    """A schema's id and the data. Raises: SerializationError: they are not in the wire format"""
    if len(data) < _HEAD.size or data[0] != MAGIC:
        begin = f"begins with {data[0]:#04x}" if data else "is empty"
        raise SerializationError(
            f"it was not written with a schema registry: it {begin}, and has {len(data)} bytes; "
            f"0x00 and a schema's id of four bytes are needed"
        )
    return _HEAD.unpack_from(data)[1], data[_HEAD.size :]


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """Where a message is in its file: the place of the outermost one, of the one in it, and so on.
    The first of all is one zero byte.
    """
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_varint(each) for each in (len(indexes), *indexes))


def decode_indexes(data: bytes) -> tuple[list[int], bytes]:
    """The indexes and what follows them. Raises: SerializationError"""
    count, at = _read_varint(data, 0)
    if count == 0:
        return [0], data[at:]
    if not 0 < count <= MAX_INDEXES:
        raise SerializationError(f"a Protobuf message's place has {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        indexes.append(index)
    return indexes, data[at:]


def _varint(number: int) -> bytes:
    """Zigzag, as Kafka's and Protobuf's sint."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise SerializationError("a Protobuf message's place is cut off or damaged")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
