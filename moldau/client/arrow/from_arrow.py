"""Arrow record batches to the columns that the record codec takes.

Owns the names and types that a batch to be sent may have (those of Spark's Kafka sink) and their
meaning, and what the layouts of Arrow's string-like types have in common (offsets of 32 or 64 bits,
fixed widths, views, dictionaries, slices). Must not know topics' partitions, nor send. Invariants:
row i of a column is row i of the array, whatever slice of whichever buffers it was; keys, values
and headers are not copied where Arrow's layout is the codec's own, and never touched row by row in
Python.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from moldau.client.arrow.library import pa, pc
from moldau.client.errors import SerializationError
from moldau.protocol.records import BytesColumn, RecordColumns

SENT_COLUMNS: Final[tuple[str, ...]] = (
    "key",
    "value",
    "headers",
    "timestamp",
    "partition",
    "topic",
)
IGNORED_COLUMNS: Final[tuple[str, ...]] = ("offset", "timestampType")
"""Columns of `poll_arrow` that the broker decides again."""

INT32_BYTES: Final = 4
MAX_COLUMN_BYTES: Final = 2**31 - 1
"""What 32-bit offsets reach; batches are cut so that they stay below."""

_MILLIS_PER: Final[dict[str, int]] = {"s": 1000, "ms": 1}
_PER_MILLI: Final[dict[str, int]] = {"us": 1000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """A record batch, read.

    Attributes:
        columns: keys, values, headers and timestamps of all rows.
        partitions: int32 array with nulls where the key decides; None without that column.
        topics: string array; None without that column.
        key_column: the keys as an Arrow array, None without them; for partitioners that want
            every key by itself.
        value_column: the values, likewise.
    """

    columns: RecordColumns
    partitions: pa.Int32Array | None
    topics: pa.Array | None
    key_column: pa.Array | None
    value_column: pa.Array


def read_rows(batch: pa.RecordBatch, now_ms: int) -> ArrowRows:
    """The rows of a `pyarrow.RecordBatch` of less than 2 GB; rows without a timestamp get `now_ms`.
    Raises: SerializationError on a column that is missing, unknown, twice there, or of a wrong
    type.
    """
    found = _named_columns(batch)
    keys = found.get("key")
    timestamps = found.get("timestamp")
    columns = RecordColumns(
        batch.num_rows,
        None,
        None if timestamps is None else _timestamps_ms(timestamps, now_ms),
        BytesColumn() if keys is None else _bytes_column("key", keys),
        _bytes_column("value", found["value"]),
    )
    headers = found.get("headers")
    if headers is not None:
        _add_headers(columns, headers)
    return ArrowRows(
        columns,
        _partitions(found.get("partition")),
        _topics(found.get("topic")),
        keys,
        found["value"],
    )


def _named_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in IGNORED_COLUMNS:
            continue
        if name not in SENT_COLUMNS:
            raise SerializationError(
                f"column {name!r} is no part of a record: drop it, or name it one of "
                f"{', '.join(SENT_COLUMNS)} (ignored: {', '.join(IGNORED_COLUMNS)})"
            )
        if name in found:
            raise SerializationError(f"there are two columns named {name!r}")
        found[name] = column
    if "value" not in found:
        raise SerializationError("there is no column 'value'; a table to be sent needs one")
    return found


def _timestamps_ms(values: pa.Array, now_ms: int) -> pa.Buffer | None:
    """Milliseconds as int64, a buffer of exactly so many rows."""
    kind = values.type
    count = len(values)
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        unit = kind.unit
    elif pa.types.is_date64(kind) or pa.types.is_int64(kind):
        unit = "ms"
    else:
        raise SerializationError(
            f"column 'timestamp' is {kind}: a timestamp, or int64 of milliseconds, is needed"
        )
    raw = pa.Array.from_buffers(
        pa.int64(), count, values.buffers(), values.null_count, values.offset
    )
    if count > raw.null_count and pc.min(raw).as_py() < 0:
        raise SerializationError("column 'timestamp' has a time before 1970, which Kafka refuses")
    try:
        if unit in _PER_MILLI:
            raw = pc.divide(raw, _PER_MILLI[unit])
        elif _MILLIS_PER[unit] != 1:
            raw = pc.multiply_checked(raw, _MILLIS_PER[unit])
    except pa.ArrowInvalid as error:
        raise SerializationError(f"column 'timestamp' exceeds 64 bits of ms: {error}") from error
    if raw.null_count:
        raw = raw.fill_null(now_ms)
    return raw.buffers()[1].slice(8 * raw.offset, 8 * count)


def _partitions(values: pa.Array | None) -> pa.Int32Array | None:
    """int32, null where the key decides."""
    if values is None:
        return None
    if pa.types.is_null(values.type):
        return None
    if not pa.types.is_integer(values.type):
        raise SerializationError(f"column 'partition' is {values.type}: an integer is needed")
    try:
        return values.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise SerializationError(f"column 'partition': {error}") from error


def _topics(values: pa.Array | None) -> pa.Array | None:
    """Strings, or a dictionary of them."""
    if values is None:
        return None
    kind = values.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    if not (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    ):
        raise SerializationError(f"column 'topic' is {values.type}: a string is needed")
    return values


def _add_headers(columns: RecordColumns, values: pa.Array) -> None:
    """`list<struct<key: string, value: binary>>`, or a map of the same; null: no headers."""
    kind = values.type
    if pa.types.is_null(kind) or not len(values):
        return
    if pa.types.is_map(kind):
        values, kind = _list_of_map(values)
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _bad_headers(kind)
    item = kind.value_type
    if not pa.types.is_struct(item) or sorted(field.name for field in item) != ["key", "value"]:
        raise _bad_headers(kind)
    offsets, entries = _flat_lists(values)
    if entries.null_count:
        raise SerializationError("column 'headers' has a null header; leave it out of its list")
    header_keys = entries.field(item.get_field_index("key"))
    if header_keys.null_count:
        raise SerializationError("column 'headers' has a header without a key")
    columns.header_offsets = offsets
    columns.header_keys = _bytes_column("headers.key", header_keys)
    columns.header_values = _bytes_column(
        "headers.value", entries.field(item.get_field_index("value"))
    )


def _list_of_map(values: pa.MapArray) -> tuple[pa.ListArray, pa.DataType]:
    """A map column as the list of pairs that it is."""
    entries = values.values
    pairs = pa.StructArray.from_arrays(
        [entries.field(0), entries.field(1)],
        fields=[pa.field("key", entries.type[0].type), pa.field("value", entries.type[1].type)],
    )
    kind = pa.list_(pairs.type)
    lists = pa.ListArray.from_buffers(
        kind, len(values), values.buffers()[:2], values.null_count, values.offset, children=[pairs]
    )
    return lists, kind


def _bad_headers(kind: pa.DataType) -> SerializationError:
    return SerializationError(
        f"column 'headers' is {kind}: list<struct<key: string, value: binary>> is needed"
    )


def _flat_lists(values: pa.ListArray) -> tuple[pa.Buffer, pa.Array]:
    """(int32 offsets from 0 on, all entries of the lists); a null list has none."""
    count = len(values)
    is_large = pa.types.is_large_list(values.type)
    if not values.null_count:
        # Not `flatten`, which copies when lists are null: a slice of the entries will do.
        width = 8 if is_large else 4
        kind = pa.int64() if is_large else pa.int32()
        raw = pa.Array.from_buffers(kind, count + 1, [None, values.buffers()[1]], 0, values.offset)
        first, last = raw[0].as_py(), raw[count].as_py()
        entries = values.values.slice(first, last - first)
        if not first and not is_large:
            return raw.buffers()[1].slice(width * values.offset, width * (count + 1)), entries
        ends = pc.subtract(raw, first)
    else:
        entries = values.flatten()
        lengths = pc.list_value_length(values).fill_null(0)
        ends = pc.cumulative_sum(pa.concat_arrays([pa.array([0], lengths.type), lengths]))
    try:
        ends = ends.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise SerializationError(f"column 'headers' has too many headers: {error}") from error
    return ends.buffers()[1].slice(4 * ends.offset, 4 * (count + 1)), entries


def _bytes_column(name: str, values: pa.Array) -> BytesColumn:
    """The column of an array of binary, string, or anything laid out like them. Views and
    dictionaries are copied into one piece, everything else is used where it lies. Raises:
    SerializationError.
    """
    kind = values.type
    if pa.types.is_null(kind):
        return BytesColumn()
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.binary())
        kind = values.type
    if pa.types.is_fixed_size_binary(kind):
        return _fixed_size(values)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _large(name, values)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        _, offsets, data = values.buffers()
        return BytesColumn(
            _int32_offsets(offsets, values.offset, len(values)),
            _validity_of(values),
            b"" if data is None else data,
        )
    raise SerializationError(
        f"column {name!r} is {kind}: binary or string is needed; cast it, or encode its values"
    )


def _validity_of(values: pa.Array) -> pa.Buffer | bytes | None:
    """The bitmap of what is not null, from its first bit on; None when nothing is null."""
    if not values.null_count:
        return None
    bitmap = values.buffers()[0]
    first, bits = divmod(values.offset, 8)
    if not bits:
        return bitmap.slice(first, (len(values) + 7) // 8)
    # A slice may begin in the middle of a byte: shifted as one long number, lowest bit first.
    stop = (values.offset + len(values) + 7) // 8
    number = int.from_bytes(memoryview(bitmap)[first:stop], "little") >> bits
    return number.to_bytes(stop - first, "little")


def _int32_offsets(offsets: pa.Buffer | None, start: int, count: int) -> pa.Buffer | bytes:
    if offsets is None or not offsets.size:
        return bytes(INT32_BYTES * (count + 1))  # an empty array may come without
    return offsets.slice(INT32_BYTES * start, INT32_BYTES * (count + 1))


def _fixed_size(values: pa.Array) -> BytesColumn:
    """Rows one behind the other, nulls too: the offsets are the multiples of the width."""
    width = values.type.byte_width
    count = len(values)
    data = values.buffers()[1]
    if count * width > MAX_COLUMN_BYTES:
        raise SerializationError(f"{count} values of {width} bytes are more than 2 GB")
    offsets = array("i", range(0, (count + 1) * width, width) if width else [0] * (count + 1))
    content = b"" if data is None else data.slice(values.offset * width, count * width)
    return BytesColumn(offsets.tobytes(), _validity_of(values), content)


def _large(name: str, values: pa.Array) -> BytesColumn:
    """64-bit offsets made 32-bit ones, from the slice's first byte on; the bytes stay."""
    count = len(values)
    _, buffer, data = values.buffers()
    if not count or buffer is None:
        return BytesColumn(bytes(INT32_BYTES * (count + 1)), _validity_of(values), b"")
    offsets = pa.Array.from_buffers(pa.int64(), count + 1, [None, buffer], 0, values.offset)
    first, last = offsets[0].as_py(), offsets[count].as_py()
    if last - first > MAX_COLUMN_BYTES:
        raise SerializationError(f"column {name!r} has a piece of {last - first} bytes: over 2 GB")
    narrow = pc.subtract(offsets, first).cast(pa.int32())
    content = b"" if data is None else data.slice(first, last - first)
    return BytesColumn(narrow.buffers()[1], _validity_of(values), content)
