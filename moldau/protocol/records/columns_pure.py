"""Flat columns in plain Python: the fallback for the two column functions of `_native`.

Owns nothing but them; the layout is explained in `columns`. Invariant: same buffers, bit for bit,
and same errors as `_native` for the same input.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, TypeAlias

from moldau.protocol.records.crc import Buffer
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.pure import decode_records, encode_record_parts, encode_varint

MAX_INT32: Final = 2**31 - 1

Section: TypeAlias = tuple[int, Buffer, int, int, int, int | None]
"""(position of the batch, records section, count, base offset, base timestamp, append time)"""

StringColumn: TypeAlias = tuple[Any, Any, Any]
"""(int32 offsets or None, validity bitmap or None, data or None), raw buffers in native order."""

DecodedColumns: TypeAlias = tuple[int, Any, Any, StringColumn, StringColumn, Any]
RowBuffers: TypeAlias = tuple[Any, StringColumn, StringColumn, Any, StringColumn, StringColumn]


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

    def finish(self) -> StringColumn:
        validity = self.bitmap if self.null_count else None
        return bytearray(self.ends), validity, self.data


def decode_column_sections(sections: list[Section]) -> DecodedColumns:
    """Decode all sections, in order, into one set of columns.

    Returns (count, int64 offsets, int64 timestamps, keys, values, headers); headers are None when
    no record has any, else (int32 list offsets, key offsets, key data, values).
    Raises: InvalidBatch at the position of the batch at fault.
    """
    total_bytes = sum(len(section[1]) for section in sections)
    if total_bytes > MAX_INT32:
        raise InvalidBatch(
            InvalidBatchReason.TOO_LARGE, f"{total_bytes} bytes do not fit 32-bit columns"
        )
    offsets = array("q")
    timestamps = array("q")
    keys, values = _StringWriter(), _StringWriter()
    header_ends = array("i", (0,))
    header_keys, header_values = _StringWriter(), _StringWriter()
    for position, section, count, base_offset, base_timestamp_ms, append_time_ms in sections:
        try:
            records = decode_records(
                section, count, base_offset, base_timestamp_ms, append_time_ms, key_of=bytes
            )
        except InvalidBatch as error:
            raise error.at(position) from None
        for record in records:
            offsets.append(record.offset)
            timestamps.append(record.timestamp_ms)
            keys.append(record.key)
            values.append(record.value)
            for header_key, header_value in record.headers:
                header_keys.append(header_key)  # type: ignore[arg-type]  # bytes here, see key_of
                header_values.append(header_value)
            header_ends.append(len(header_keys.ends) - 1)
    headers = None
    if header_ends[-1]:
        key_ends, _, key_data = header_keys.finish()
        headers = bytearray(header_ends), key_ends, key_data, header_values.finish()
    return (
        len(offsets),
        bytearray(offsets),
        bytearray(timestamps),
        keys.finish(),
        values.finish(),
        headers,
    )


class _Strings:
    """Checked reading of a column of nullable bytes."""

    __slots__ = ("data", "ends", "validity")

    def __init__(self, column: StringColumn) -> None:
        ends, validity, data = column
        self.ends = None if ends is None else _int32s(ends)
        self.validity = None if validity is None else memoryview(validity).cast("B")
        self.data = memoryview(b"" if data is None else data).cast("B")

    def at(self, index: int) -> memoryview | None:
        if self.ends is None:
            return None
        begin, end = _range_at(self.ends, index, len(self.data))
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return self.data[begin:end]


def _int32s(buffer: Buffer) -> memoryview:
    raw = memoryview(buffer).cast("B")
    return raw[: len(raw) & ~3].cast("i")


def _range_at(ends: memoryview, index: int, limit: int) -> tuple[int, int]:
    begin, end = ends[index], ends[index + 1]
    if not 0 <= begin <= end <= limit:
        raise IndexError(f"{begin}..{end} of {limit}")
    return begin, end


def _headers_at(ends: memoryview | None, index: int, keys: _Strings, values: _Strings) -> bytes:
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
) -> tuple[bytearray, int, int, int]:
    """Encode rows from `start` up to `stop`, as many as fit into `max_bytes`, at least one.

    `buffers`: timestamps, keys, values, header list offsets, header keys, header values.
    `header_space`: zero bytes left in front. `timestamp_ms`: for all when there is no timestamp
    column. Returns (buffer, next row, base timestamp, largest timestamp). Raises: ValueError on
    offsets that lead outside the buffers, OverflowError on a batch of more than 2 GB.
    """
    timestamps, keys_column, values_column, header_ends, header_keys, header_values = buffers
    keys, values = _Strings(keys_column), _Strings(values_column)
    names, contents = _Strings(header_keys), _Strings(header_values)
    ends = None if header_ends is None else _int32s(header_ends)
    times = None
    if timestamps is not None:
        raw = memoryview(timestamps).cast("B")
        times = raw[: len(raw) & ~7].cast("q")
    if start < 0 or start >= stop or (times is not None and start >= len(times)):
        raise ValueError(f"no rows {start}..{stop} in these columns")
    out = bytearray(header_space)
    base_ms = highest_ms = timestamp_ms if times is None else times[start]
    row = start
    try:
        for row in range(start, stop):
            row_ms = timestamp_ms if times is None else times[row]
            if not -(2**63) <= row_ms - base_ms < 2**63:
                raise IndexError("timestamps too far apart")
            encoded = encode_record_parts(
                row - start,
                row_ms - base_ms,
                keys.at(row),
                values.at(row),
                _headers_at(ends, row, names, contents),
            )
            if row > start and len(out) + len(encoded) > max_bytes:
                return out, row, base_ms, highest_ms
            out += encoded
            highest_ms = max(highest_ms, row_ms)
    except IndexError:
        raise ValueError(f"row {row}: offsets outside the column's buffers") from None
    if len(out) > MAX_INT32:
        raise OverflowError(f"row {row}: a batch of more than 2 GB")
    return out, stop, base_ms, highest_ms
