"""Which partition of an internal topic a group or a transactional id belongs to.

Clients never compute the hash, but every broker of a cluster, of whatever maker, must find the same
partition, and what is on disk was placed by it. The number of partitions is part of the placement:
with another one nearly every key belongs elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from struct import unpack
from typing import Final

_FACTOR: Final = 31
_UINT32: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000


def _absolute_hash(key: str) -> int:
    """The absolute value of Java's `String.hashCode` (over UTF-16 code units), and 0 for the one
    hash that has none in 32 bits (`Utils.abs` of Apache Kafka).
    """
    data = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(data) // 2}H", data):
        value = (value * _FACTOR + unit) & _UINT32
    return (_UINT32 + 1 - value) & ~_SIGN if value >= _SIGN else value


def partition_for(key: str, partition_count: int) -> int:
    return _absolute_hash(key) % partition_count


def multiple_of_counts(keys: Iterable[str], partition_index: int) -> int:
    """A number that shows how many partitions there can have been when `keys` were placed in that
    partition: each count above `partition_index` that divides it, and no other. 0 without keys.
    """
    return gcd(*(_absolute_hash(key) - partition_index for key in keys))
