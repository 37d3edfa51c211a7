"""Flat columns in plain Python: the fallback for the functions of `_native` that take columns.

The layout is explained in `columns`. Invariant: same buffers, bit for bit, and same errors as
`_native` for the same input; the partition of a key is the one that the Java client chooses.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, TypeAlias

from moldau.constants import MAX_INT32, MAX_INT64, MAX_UINT32, MIN_INT64
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.pure import decode_records, encode_record_parts, encode_varint
from moldau.protocol.records.record import Record
from moldau.protocol.types import Buffer

_MURMUR2_SEED: Final = 0x9747B28C
_MURMUR2_FACTOR: Final = 0x5BD1E995

Section: TypeAlias = tuple[int, Buffer, int, int, int, int | None]
"""(position of the batch, records section, count, base offset, base timestamp, append time)"""

StringColumn: TypeAlias = tuple[Buffer | None, Buffer | None, Buffer | None]
"""(int32 offsets or None, validity bitmap or None, data or None), raw buffers in native order."""

DecodedString: TypeAlias = tuple[bytearray, bytearray | None, bytearray]
DecodedHeaders: TypeAlias = tuple[bytearray, bytearray, bytearray, DecodedString]
DecodedColumns: TypeAlias = tuple[
    int, bytearray, bytearray, DecodedString, DecodedString, DecodedHeaders | None
]
RowBuffers: TypeAlias = tuple[
    Buffer | None, StringColumn, StringColumn, Buffer | None, StringColumn, StringColumn
]


class _StringWriter:
    """A column of nullable bytes being filled."""

    __slots__ = ("bitmap", "data", "ends", "null_count")

    def __init__(self) -> None:
        self.ends = array("i", (0,))
        self.data = bytearray()
        self.bitmap = bytearray()
        self.null_count = 0

    def append(self, value: bytes | None) -> None:
        row = len(self.ends) - 1
        if not row & 7:
            self.bitmap.append(0)
        if value is None:
            self.null_count += 1
        else:
            self.bitmap[-1] |= 1 << (row & 7)
            self.data += value
        self.ends.append(len(self.data))

    def finish(self) -> DecodedString:
        validity = self.bitmap if self.null_count else None
        return bytearray(self.ends), validity, self.data


def decode_column_sections(sections: list[Section]) -> DecodedColumns:
    """Decode all sections, in order, into one set of columns.

    Returns (count, int64 offsets, int64 timestamps, keys, values, headers); headers are None when
    no record has any, else (int32 list offsets, key offsets, key data, values).
    Raises InvalidBatch at the position of the batch at fault.
    """
    total_bytes = sum(len(section[1]) for section in sections)
    if total_bytes > MAX_INT32:
        raise InvalidBatch(
            InvalidBatchReason.TOO_LARGE, f"{total_bytes} bytes do not fit 32-bit columns"
        )
    columns = ColumnWriter()
    for position, section, count, base_offset, base_timestamp_ms, append_time_ms in sections:
        try:
            records = decode_records(
                section, count, base_offset, base_timestamp_ms, append_time_ms, key_of=bytes
            )
        except InvalidBatch as error:
            raise error.at(position) from None
        columns.extend(records)
    return columns.finish()


class ColumnWriter:
    """All columns being filled from records whose header keys are bytes."""

    __slots__ = ("_header_ends", "_header_keys", "_header_values", "_keys", "_offsets", "_times",
                 "_values")  # fmt: skip

    def __init__(self) -> None:
        self._offsets = array("q")
        self._times = array("q")
        self._keys, self._values = _StringWriter(), _StringWriter()
        self._header_ends = array("i", (0,))
        self._header_keys, self._header_values = _StringWriter(), _StringWriter()

    def extend(self, records: Iterable[Record]) -> None:
        for record in records:
            self._offsets.append(record.offset)
            self._times.append(record.timestamp_ms)
            self._keys.append(record.key)
            self._values.append(record.value)
            for header_key, header_value in record.headers:
                # Bytes here, see `key_of`.
                self._header_keys.append(header_key)  # type: ignore[arg-type]
                self._header_values.append(header_value)
            self._header_ends.append(len(self._header_keys.ends) - 1)

    @property
    def row_count(self) -> int:
        return len(self._offsets)

    def finish(self) -> DecodedColumns:
        headers: DecodedHeaders | None = None
        if self._header_ends[-1]:
            key_ends, _, key_data = self._header_keys.finish()
            values = self._header_values.finish()
            headers = bytearray(self._header_ends), key_ends, key_data, values
        return (
            len(self._offsets),
            bytearray(self._offsets),
            bytearray(self._times),
            self._keys.finish(),
            self._values.finish(),
            headers,
        )


class StringReader:
    """Checked reading of a column of nullable bytes."""

    __slots__ = ("data", "ends", "validity")

    def __init__(self, column: StringColumn) -> None:
        ends, validity, data = column
        self.ends = None if ends is None else int32s(ends)
        self.validity = None if validity is None else memoryview(validity).cast("B")
        self.data = memoryview(b"" if data is None else data).cast("B")

    def at(self, index: int) -> memoryview | None:
        """The bytes of a row, None for null. Raises IndexError when they lie outside the data."""
        if self.ends is None:
            return None
        begin, end = _range_at(self.ends, index, len(self.data))
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return self.data[begin:end]


def int32s(buffer: Buffer) -> memoryview:
    """The whole native-endian 32-bit numbers of a buffer."""
    raw = memoryview(buffer).cast("B")
    return raw[: len(raw) & ~3].cast("i")


def _range_at(ends: memoryview, index: int, limit: int) -> tuple[int, int]:
    begin, end = ends[index], ends[index + 1]
    if not 0 <= begin <= end <= limit:
        raise IndexError(f"{begin}..{end} of {limit}")
    return begin, end


def _headers_at(
    ends: memoryview | None, index: int, keys: StringReader, values: StringReader
) -> bytes:
    if ends is None:
        return b"\x00"
    first, last = _range_at(ends, index, MAX_INT32)
    out = bytearray(encode_varint(last - first))
    for header in range(first, last):
        key = keys.at(header)
        if key is None:
            raise IndexError("null header key")
        out += encode_varint(len(key)) + key
        value = values.at(header)
        out += b"\x01" if value is None else encode_varint(len(value)) + value
    return bytes(out)


def encode_rows(
    buffers: RowBuffers,
    start: int,
    stop: int,
    max_bytes: int,
    header_space: int,
    timestamp_ms: int,
    selection: Buffer | None = None,
) -> tuple[bytearray, int, int, int]:
    """Encode rows from `start` up to `stop`, as many as fit into `max_bytes`, at least one.

    `selection`: int32 row numbers; `start` and `stop` then count its entries, and so does the
    returned next row.
    `buffers`: timestamps, keys, values, header list offsets, header keys, header values.
    `header_space`: zero bytes left in front. `timestamp_ms`: for all when there is no timestamp
    column. Returns (buffer, next row, base timestamp, largest timestamp). Raises ValueError on
    offsets that lead outside the buffers, OverflowError on a batch of more than 2 GB.
    """
    timestamps, keys_column, values_column, header_ends, header_keys, header_values = buffers
    keys, values = StringReader(keys_column), StringReader(values_column)
    names, contents = StringReader(header_keys), StringReader(header_values)
    ends = None if header_ends is None else int32s(header_ends)
    times = None
    if timestamps is not None:
        raw = memoryview(timestamps).cast("B")
        times = raw[: len(raw) & ~7].cast("q")
    chosen = range(stop) if selection is None else int32s(selection)
    if not 0 <= start < stop <= len(chosen) or (
        times is not None and not 0 <= chosen[start] < len(times)
    ):
        raise ValueError(f"no rows {start}..{stop} in these columns")
    out = bytearray(header_space)
    base_ms = highest_ms = timestamp_ms if times is None else times[chosen[start]]
    at = start
    try:
        for at in range(start, stop):
            if (row := chosen[at]) < 0:
                raise IndexError("negative row number")
            row_ms = timestamp_ms if times is None else times[row]
            if not MIN_INT64 <= row_ms - base_ms <= MAX_INT64:
                raise IndexError("timestamps too far apart")
            encoded = encode_record_parts(
                at - start,
                row_ms - base_ms,
                keys.at(row),
                values.at(row),
                _headers_at(ends, row, names, contents),
            )
            if at > start and len(out) + len(encoded) > max_bytes:
                return out, at, base_ms, highest_ms
            out += encoded
            highest_ms = max(highest_ms, row_ms)
    except IndexError:
        raise ValueError(f"row {at}: offsets outside the column's buffers") from None
    if len(out) > MAX_INT32:
        raise OverflowError(f"row {at}: a batch of more than 2 GB")
    return out, stop, base_ms, highest_ms


def scaled_int64s(numbers: Buffer, factor: int) -> bytearray:
    """The int64s times a positive factor; what does not fit becomes the largest or smallest one."""
    if factor < 1:
        raise ValueError(f"factor {factor}")
    raw = memoryview(numbers).cast("B")
    column = raw[: len(raw) & ~7].cast("q")
    limit = MAX_INT64 // factor
    scaled = (
        MAX_INT64 if number > limit else MIN_INT64 if number < -limit else number * factor
        for number in column
    )
    return bytearray(array("q", scaled))


def murmur2(key: Buffer) -> int:
    """The hash of a key, unsigned, 32 bits, by which Kafka's default partitioner spreads keys.

    MurmurHash2 by Austin Appleby with the seed that the Java client uses.
    """
    data = memoryview(key).cast("B")
    size = len(data)
    digest = _MURMUR2_SEED ^ size & MAX_UINT32
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR2_FACTOR & MAX_UINT32
        word = (word ^ word >> 24) * _MURMUR2_FACTOR & MAX_UINT32
        digest = digest * _MURMUR2_FACTOR & MAX_UINT32 ^ word
    if whole < size:
        digest ^= int.from_bytes(data[whole:], "little")
        digest = digest * _MURMUR2_FACTOR & MAX_UINT32
    digest = (digest ^ digest >> 13) * _MURMUR2_FACTOR & MAX_UINT32
    return digest ^ digest >> 15


def murmur2_partition(key: Buffer, partition_count: int) -> int:
    """The partition of a key. Raises ValueError without partitions, TypeError without a key."""
    if partition_count <= 0:
        raise ValueError(f"{partition_count} partitions")
    return (murmur2(key) & MAX_INT32) % partition_count


def partition_rows(
    keys: StringColumn, row_count: int, partition_count: int, selection: Buffer | None = None
) -> bytearray:
    """The partition of each row's key as int32 in native order, -1 where the key is null.

    `selection`: int32 numbers of the rows that are meant, in their order; None: the first
    `row_count`. Raises ValueError without partitions, or on what lies outside the buffers.
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
    the groups that have rows). Raises ValueError on a group out of range.
    """
    column = int32s(groups)
    if group_count < 0 or len(column) > MAX_INT32:
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
