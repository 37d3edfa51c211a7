"""Which partition of an internal topic a group or a transactional id belongs to.

Owns the hash: clients never compute it, but every broker of a cluster, of whatever maker, must find
the same partition, and what is on disk was placed by it.
"""

from __future__ import annotations

from typing import Final

_FACTOR: Final = 31
_UINT32: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, as an unsigned number of 32 bits."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (value * _FACTOR + unit) & _UINT32
        return value
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * _FACTOR + (units[at] << 8 | units[at + 1])) & _UINT32
    return value


def partition_for(key: str, partition_count: int) -> int:
    """The index of the partition that `key` is kept in: by the absolute value of its signed hash,
    and 0 for the one hash that has none in 32 bits (`Utils.abs` of Apache Kafka).
    """
    value = java_string_hash(key)
    if value >= _SIGN:
        value = (_UINT32 + 1 - value) & ~_SIGN
    return value % partition_count
