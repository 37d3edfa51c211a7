"""How many topics and partitions a Produce request has, counted before it is decoded.

Decoding reports what is wrong with the body; the walk takes at most as many steps as it may count.
"""

from __future__ import annotations

from struct import Struct as PackedStruct
from struct import error as PackingError
from typing import Final

from moldau.protocol.compiler import skip_tagged_fields
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.types import Buffer
from moldau.protocol.varint import read_unsigned_varint

FIRST_FLEXIBLE: Final = 9
FIRST_BY_TOPIC_ID: Final = 13

_INT16: Final = PackedStruct(">h")
_INT32: Final = PackedStruct(">i")
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_INDEX_BYTES: Final = 4
_TOPIC_ID_BYTES: Final = 16
_MORE_BYTES: Final = 0x80
"""A length from here on takes more than one byte."""
_ONE_TOPIC: Final = 2
"""The length of such an array: one is added to each."""


def has_more_parts(body: Buffer, api_version: int, limit: int) -> bool:
    """Whether a Produce request has more than `limit` topics and partitions."""
    try:
        by_id = api_version >= FIRST_BY_TOPIC_ID
        is_flexible = api_version >= FIRST_FLEXIBLE
        if is_flexible and (count := _few(body, by_id)):
            return count > limit
        return _Walk(body, is_flexible).counts_more(limit, by_id=by_id)
    except (RemoteProtocolError, PackingError, IndexError):
        return False


def _few(body: Buffer, by_id: bool) -> int:
    """The topic and the partitions of a flexible request for one topic, whose lengths all take one
    byte, as most do; 0 of others.
    """
    id_bytes = body[0]
    position = (id_bytes or 1) + _ACKS_AND_TIMEOUT_BYTES
    if id_bytes >= _MORE_BYTES or body[position] != _ONE_TOPIC:
        return 0
    name_bytes = _TOPIC_ID_BYTES if by_id else body[position + 1]
    if not 0 < name_bytes < _MORE_BYTES:
        return 0
    partitions = body[position + 1 + name_bytes]
    return (partitions or 1) if partitions < _MORE_BYTES else 0


class _Walk:
    """A place in the body."""

    __slots__ = ("_body", "_is_flexible", "_position")

    def __init__(self, body: Buffer, is_flexible: bool) -> None:
        self._body = body
        self._is_flexible = is_flexible
        self._position = 0

    def counts_more(self, limit: int, *, by_id: bool) -> bool:
        self._skip(self._length(_INT16))
        self._position += _ACKS_AND_TIMEOUT_BYTES
        left = limit
        topics = self._length(_INT32)
        for number in range(topics):
            if by_id:
                self._position += _TOPIC_ID_BYTES
            else:
                self._skip(self._length(_INT16))
            partitions = max(self._length(_INT32), 0)
            left -= 1 + partitions
            if left < 0:
                return True
            if number == topics - 1:
                break
            for _ in range(partitions):
                self._position += _INDEX_BYTES
                self._skip(self._length(_INT32))
                self._skip_tags()
            self._skip_tags()
        return False

    def _length(self, packing: PackedStruct) -> int:
        """The next length; -1 for null."""
        if self._is_flexible:
            length, self._position = read_unsigned_varint(self._body, self._position)
            return length - 1
        (found,) = packing.unpack_from(self._body, self._position)
        self._position += packing.size
        return int(found)

    def _skip(self, size_bytes: int) -> None:
        if size_bytes > 0:
            self._position += size_bytes

    def _skip_tags(self) -> None:
        if self._is_flexible:
            count, position = read_unsigned_varint(self._body, self._position)
            if count:
                position = skip_tagged_fields(self._body, position, count)
            self._position = position
