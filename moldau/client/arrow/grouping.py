"""Rows sorted by topic and partition, as lists of row numbers.

Owns where a row goes: by its topic, its partition, its key's hash, in this order. Must not copy
rows, nor know batches. Invariant: every row is in exactly one group, and rows of one group keep
their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from moldau.client.arrow.from_arrow import ArrowRows
from moldau.client.arrow.library import pa, pc
from moldau.client.errors import SerializationError
from moldau.protocol.records import group_rows, partition_rows, string_buffers
from moldau.protocol.types import Buffer

ANY_PARTITION: Final = -1

RowPartitioner: TypeAlias = Callable[[bytes | None, bytes | None], int]
"""(key, value) → partition, for partitioners that want to see every record."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a record batch: from `start` to `stop` of `numbers` (int32 row numbers in native
    order), or of all rows, as they stand, where that is None.
    """

    numbers: Buffer | None
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


def rows_by_topic(rows: ArrowRows, topic: str | None) -> list[tuple[str, Rows]]:
    """The rows by topic: all to `topic` when it is given, whatever their column says. Raises:
    SerializationError on a row without a topic.
    """
    everything = Rows(None, 0, rows.columns.row_count)
    if topic is not None:
        return [(topic, everything)]
    if rows.topics is None:
        raise SerializationError("no topic: give one, or a column 'topic'")
    if rows.topics.null_count:
        raise SerializationError("column 'topic' has a null: give a topic for all rows instead")
    found = rows.topics
    if not pa.types.is_dictionary(found.type):
        found = found.dictionary_encode()
    names = found.dictionary.to_pylist()
    if None in names:
        raise SerializationError("column 'topic' has a null: give a topic for all rows instead")
    numbers, bounds = group_rows(_int32_buffer(found.indices), len(names))
    if len(bounds) == 1:
        return [(names[bounds[0][0]], everything)]
    return [(names[group], Rows(numbers, start, stop)) for group, start, stop in bounds]


def rows_by_partition(
    rows: ArrowRows,
    chosen: Rows,
    partition_count: int,
    *,
    ignore_keys: bool = False,
    partitioner: RowPartitioner | None = None,
) -> list[tuple[int, Rows]]:
    """The chosen rows by partition; `ANY_PARTITION` for rows that may go to any. Rows without their
    own partition go where `partitioner` says; without one the key's hash decides, or nothing with
    `ignore_keys`. Raises: SerializationError on a partition below 0; LookupError, whose only
    argument is the number, on one that does not exist.
    """
    places = _explicit(rows, chosen)
    has_gaps = places is None or places.null_count > 0
    if has_gaps and (partitioner is not None or not (ignore_keys or rows.key_column is None)):
        decided = _decided(rows, chosen, partition_count, partitioner)
        places = decided if places is None else pc.coalesce(places, decided)
    if places is None:
        return [(ANY_PARTITION, chosen)] if chosen.count else []
    if places.null_count:
        places = places.fill_null(ANY_PARTITION)
    highest = pc.max(places).as_py()
    if highest is not None and highest >= partition_count:
        raise LookupError(highest)
    if partition_count == 1:  # rows without a partition stay among the others
        return [(0, chosen)] if chosen.count else []
    numbers, bounds = group_rows(_int32_buffer(places), partition_count)
    if len(bounds) == 1:
        return [(bounds[0][0], chosen)]
    composed = _composed(chosen, numbers)
    return [(group, Rows(composed, start, stop)) for group, start, stop in bounds]


def _explicit(rows: ArrowRows, chosen: Rows) -> pa.Array | None:
    found = rows.partitions
    if found is None or found.null_count == len(found):
        return None
    if chosen.numbers is not None:
        found = found.take(_int32_array(chosen.numbers).slice(chosen.start, chosen.count))
    lowest = pc.min(found).as_py()
    if lowest is not None and lowest < 0:
        raise SerializationError(f"column 'partition' has {lowest}; null leaves it to the key")
    return found


def _decided(
    rows: ArrowRows, chosen: Rows, partition_count: int, partitioner: RowPartitioner | None
) -> pa.Array:
    """The chosen rows' partitions by key or partitioner, `ANY_PARTITION` without a key."""
    if partitioner is None:
        numbers = None
        if chosen.numbers is not None:
            numbers = memoryview(chosen.numbers)[4 * chosen.start : 4 * chosen.stop]
        hashed = partition_rows(
            string_buffers(rows.columns.keys), chosen.count, partition_count, numbers
        )
        return _int32_array(hashed)
    keys, values = rows.key_column, rows.value_column
    if chosen.numbers is not None:
        at = _int32_array(chosen.numbers).slice(chosen.start, chosen.count)
        keys, values = None if keys is None else keys.take(at), values.take(at)
    contents = [None if each is None else _bytes_of(each) for each in values.to_pylist()]
    names = [None] * len(contents) if keys is None else [_bytes_of(k) for k in keys.to_pylist()]
    return pa.array(
        [partitioner(key, value) for key, value in zip(names, contents, strict=True)], pa.int32()
    )


def _bytes_of(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _composed(chosen: Rows, numbers: Buffer) -> Buffer:
    if chosen.numbers is None:
        return numbers
    base = _int32_array(chosen.numbers).slice(chosen.start, chosen.count)
    return _int32_buffer(base.take(_int32_array(numbers)))


def _int32_array(buffer: Buffer) -> pa.Array:
    size = len(memoryview(buffer).cast("B")) // 4
    return pa.Array.from_buffers(pa.int32(), size, [None, pa.py_buffer(buffer)])


def _int32_buffer(values: pa.Array) -> Buffer:
    """The numbers of an array without nulls."""
    if values.type != pa.int32():
        values = values.cast(pa.int32())
    buffer: Buffer = memoryview(values.buffers()[1])[
        4 * values.offset : 4 * (values.offset + len(values))
    ]
    return buffer
