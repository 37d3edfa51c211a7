"""Confluent's wire format: a zero byte, a schema's id, for Protobuf the message's place, the data.

Must not know a schema. Invariant: `unframed` gives back what `framed` was given.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from moldau.client.errors import SerializationError
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.varint import read_seven_bit_groups, unsigned_varint

MAGIC: Final = 0
_HEAD: Final = struct.Struct(">bi")
MAX_VARINT_BYTES: Final = 10
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
    return b"".join(zigzag_varint(each) for each in (len(indexes), *indexes))


def decode_indexes(data: bytes) -> tuple[list[int], bytes]:
    """The indexes and what follows them. Raises: SerializationError"""
    count, at = read_zigzag_varint(data, 0)
    if count == 0:
        return [0], data[at:]
    if not 0 < count <= MAX_INDEXES:
        raise SerializationError(f"a Protobuf message's place has {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = read_zigzag_varint(data, at)
        indexes.append(index)
    return indexes, data[at:]


def zigzag_varint(number: int) -> bytes:
    """A whole number of up to 64 bits as Protobuf's sint and Avro's long: seven bits a byte."""
    return unsigned_varint((number << 1) ^ (number >> 63))


def read_zigzag_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it. Raises: SerializationError"""
    try:
        number, end = read_seven_bit_groups(data, at, MAX_VARINT_BYTES)
    except RemoteProtocolError:
        raise SerializationError(f"a number at byte {at} is cut off or damaged") from None
    return (number >> 1) ^ -(number & 1), end
