"""Which partition of an internal topic a group or a transactional id belongs to.

Clients never compute the hash, but every broker of a cluster, of whatever maker, must find the same
partition, and what is on disk was placed by it. The number of partitions is part of the placement:
with another one nearly every key belongs elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
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


def _absolute_hash(key: str) -> int:
    """The absolute value of the signed hash, and 0 for the one hash that has none in 32 bits
    (`Utils.abs` of Apache Kafka).
    """
    value = java_string_hash(key)
    return (_UINT32 + 1 - value) & ~_SIGN if value >= _SIGN else value


def partition_for(key: str, partition_count: int) -> int:
    return _absolute_hash(key) % partition_count


def multiple_of_counts(keys: Iterable[str], partition_index: int) -> int:
    """A number that tells how many partitions there can have been when `keys` were placed in that
    partition: each count above `partition_index` that divides it, and no other. 0 without keys.
    """
    return gcd(*(_absolute_hash(key) - partition_index for key in keys))
