"""Which partition a key belongs to, and rows put in order by partition: the fallback of `_native`.

Owns the hash by which Kafka's default partitioner spreads keys (MurmurHash2 by Austin Appleby,
32 bits, with the seed that the Java client uses). Invariant: same numbers as `_native` and as the
Java client, for every key.
"""

from __future__ import annotations

from typing import Final

from moldau.protocol.records.columns_pure import StringColumn, StringReader, int32s
from moldau.protocol.records.crc import Buffer

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_MAX_INT32: Final = 2**31 - 1


def murmur2(key: Buffer) -> int:
    """The hash of a key, unsigned, 32 bits."""
    data = memoryview(key).cast("B")
    size = len(data)
    digest = _SEED ^ size & _MASK
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        digest = digest * _MULTIPLIER & _MASK ^ word
    if whole < size:
        digest ^= int.from_bytes(data[whole:], "little")
        digest = digest * _MULTIPLIER & _MASK
    digest = (digest ^ digest >> 13) * _MULTIPLIER & _MASK
    return digest ^ digest >> 15


def murmur2_partition(key: Buffer, partition_count: int) -> int:
    """The partition of a key. Raises: ValueError without partitions, TypeError without a key."""
    if partition_count <= 0:
        raise ValueError(f"{partition_count} partitions")
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def partition_rows(
    keys: StringColumn, row_count: int, partition_count: int, selection: Buffer | None = None
) -> bytearray:
    """The partition of each row's key as int32 in native order, -1 where the key is null.

    `selection`: int32 numbers of the rows that are meant, in their order; None: the first
    `row_count`. Raises: ValueError without partitions, or on what lies outside the buffers.
    """
    if partition_count <= 0:
        raise ValueError(f"{partition_count} partitions")
    chosen = range(row_count) if selection is None else int32s(selection)
    if len(chosen) < row_count:
        raise ValueError(f"{row_count} rows in a selection of {len(chosen)}")
    out = bytearray(4 * row_count)
    partitions = memoryview(out).cast("i")
    column = StringReader(keys)
    row = 0
    try:
        for row in range(row_count):
            if chosen[row] < 0:
                raise IndexError("negative row number")
            key = column.at(chosen[row])
            partitions[row] = -1 if key is None else murmur2_partition(key, partition_count)
    except IndexError:
        raise ValueError(f"row {row}: offsets outside the column's buffers") from None
    partitions.release()
    return out


def group_rows(groups: Buffer, group_count: int) -> tuple[bytearray, list[tuple[int, int, int]]]:
    """Row numbers in the order of their groups (int32 each, -1 to `group_count` - 1).

    Returns (int32 row numbers, rows of one group in their order; [(group, first place, end), …] of
    the groups that have rows). Raises: ValueError on a group out of range.
    """
    column = int32s(groups)
    if group_count < 0 or len(column) > _MAX_INT32:
        raise ValueError(f"{len(column)} rows in {group_count} groups")
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(column):
        if not -1 <= group < group_count:
            raise ValueError(f"row {row}: group {group} of {group_count}")
        rows_of.setdefault(group, []).append(row)
    selection = bytearray(4 * len(column))
    places = memoryview(selection).cast("i")
    bounds = []
    place = 0
    for group in sorted(rows_of):
        rows = rows_of[group]
        for at, row in enumerate(rows, place):
            places[at] = row
        bounds.append((group, place, place + len(rows)))
        place += len(rows)
    places.release()
    return selection, bounds
