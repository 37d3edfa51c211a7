"""Arrow record batches to the columns that the record codec takes.

Owns the names and types that a batch to be sent may have (those of Spark's Kafka sink), and their
meaning. Must not know topics' partitions, nor send. Invariant: keys, values and headers are not
copied where Arrow's layout is the codec's own, and never touched row by row in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from moldau.client.arrow.library import pyarrow, pyarrow_compute
from moldau.client.arrow.strings import bytes_column
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
"""What `poll_arrow` gives besides: the broker decides these anew."""

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
    partitions: Any
    topics: Any
    key_column: Any
    value_column: Any


def read_rows(batch: Any, now_ms: int) -> ArrowRows:
    """The rows of a `pyarrow.RecordBatch` of less than 2 GB.

    Args:
        now_ms: the timestamp of rows that have none.

    Raises:
        SerializationError: a column that is missing, unknown, twice there, or of a wrong type.
    """
    found = _named_columns(batch)
    keys = found.get("key")
    timestamps = found.get("timestamp")
    columns = RecordColumns(
        batch.num_rows,
        None,
        None if timestamps is None else _timestamps_ms(timestamps, now_ms),
        BytesColumn() if keys is None else bytes_column("key", keys),
        bytes_column("value", found["value"]),
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


def _named_columns(batch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
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


def _timestamps_ms(values: Any, now_ms: int) -> Any:
    """Milliseconds as int64, a buffer of exactly so many rows."""
    pa, pc = pyarrow(), pyarrow_compute()
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


def _partitions(values: Any) -> Any:
    """int32, null where the key decides."""
    if values is None:
        return None
    pa = pyarrow()
    if pa.types.is_null(values.type):
        return None
    if not pa.types.is_integer(values.type):
        raise SerializationError(f"column 'partition' is {values.type}: an integer is needed")
    try:
        return values.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise SerializationError(f"column 'partition': {error}") from error


def _topics(values: Any) -> Any:
    """Strings, or a dictionary of them."""
    if values is None:
        return None
    pa = pyarrow()
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


def _add_headers(columns: RecordColumns, values: Any) -> None:
    """`list<struct<key: string, value: binary>>`, or a map of the same; null: no headers."""
    pa = pyarrow()
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
    columns.header_keys = bytes_column("headers.key", header_keys)
    columns.header_values = bytes_column(
        "headers.value", entries.field(item.get_field_index("value"))
    )


def _list_of_map(values: Any) -> tuple[Any, Any]:
    """A map column as the list of pairs that it is."""
    pa = pyarrow()
    entries = values.values
    pairs = pa.StructArray.from_arrays(
        [entries.field(0), entries.field(1)],
        fields=[pa.field("key", entries.type[0].type), pa.field("value", entries.type[1].type)],
    )
    kind = pa.list_(pairs.type)
    lists = pa.ListArray.from_buffers(
        kind,
        len(values),
        values.buffers()[:2],
        values.null_count,
        values.offset,
        children=[pairs],
    )
    return lists, kind


def _bad_headers(kind: Any) -> SerializationError:
    return SerializationError(
        f"column 'headers' is {kind}: list<struct<key: string, value: binary>> is needed"
    )


def _flat_lists(values: Any) -> tuple[Any, Any]:
    """(int32 offsets from 0 on, all entries of the lists); a null list has none."""
    pa, pc = pyarrow(), pyarrow_compute()
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
