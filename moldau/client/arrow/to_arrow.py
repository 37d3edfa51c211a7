"""Columns of the record codec to an Arrow record batch.

Owns the schema that `poll_arrow` returns, which is that of Spark's Kafka source (with headers).
Must not fetch, nor decide what is visible. Invariant: keys, values, offsets and headers are Arrow
arrays around the codec's own buffers; nothing is done row by row in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import Final

from moldau.client.arrow.library import pa, pc
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.records import TimestampType
from moldau.protocol.records import BytesColumn, RecordColumns, scaled_int64s, take_columns
from moldau.protocol.reusable_memory import ReusableMemory
from moldau.protocol.types import Buffer

MICROSECONDS_PER_MS: Final = 1000
POLL_BYTES: Final = 64 * 1024 * 1024
"""What one `poll_arrow` without a limit returns at most, about, in uncompressed bytes."""
KEPT_ROWS: Final = 8192
"""Up to so many rows a value that is the same in all of them is a slice of an array kept."""


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows that stand together: `row_count` of one partition, with one kind of timestamp."""

    topic: str
    partition: int
    timestamp_type: TimestampType
    row_count: int


@cache
def polled_schema() -> pa.Schema:
    """The `pyarrow.Schema` of every batch that `poll_arrow` gives."""
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", _headers_type()),
        ]
    )


@cache
def _headers_type() -> pa.DataType:
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def take_rows(buffer: FetchBuffer, max_records: int, memory: ReusableMemory) -> pa.RecordBatch:
    """At most so many fetched records as a `pyarrow.RecordBatch`, up to about `POLL_BYTES`."""
    opened = buffer.open_batches(max_records, POLL_BYTES)
    cursors = [batch.cursor for _, batches in opened for batch in batches]
    with buffer.taking(opened):
        counts, columns = take_columns(cursors, max_records, memory=memory)
        kinds = (
            (*state.topic_partition, batch.header.timestamp_type)
            for state, batches in opened
            for batch in batches
        )
        runs = [RowRun(*kind, count) for kind, count in zip(kinds, counts, strict=True)]
        return to_arrow(runs, columns)


def to_arrow(runs: Sequence[RowRun], columns: RecordColumns) -> pa.RecordBatch:
    count = columns.row_count
    runs = [run for run in runs if run.row_count]
    assert sum(run.row_count for run in runs) == count, "every row is in one run"
    if not runs:
        return pa.RecordBatch.from_pylist([], schema=polled_schema())
    assert columns.timestamps_ms is not None, "decoded"
    # A time that 64 bits of microseconds cannot hold becomes the last one that they can.
    timestamps_us = scaled_int64s(columns.timestamps_ms, MICROSECONDS_PER_MS)
    return pa.RecordBatch.from_arrays(
        [
            _strings(pa.binary(), count, columns.keys),
            _strings(pa.binary(), count, columns.values),
            _repeated([run.topic for run in runs], runs, pa.string()),
            _repeated([run.partition for run in runs], runs, pa.int32()),
            _fixed(pa.int64(), count, columns.offsets),
            _fixed(pa.timestamp("us", tz="UTC"), count, timestamps_us),
            _repeated([int(run.timestamp_type) for run in runs], runs, pa.int32()),
            _headers(count, columns),
        ],
        schema=polled_schema(),
    )


def _fixed(kind: pa.DataType, count: int, buffer: Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(buffer)])


def _strings(kind: pa.DataType, count: int, column: BytesColumn) -> pa.Array:
    buffers = [
        None if column.validity is None else pa.py_buffer(column.validity),
        pa.py_buffer(column.offsets),
        pa.py_buffer(column.data),
    ]
    return pa.Array.from_buffers(kind, count, buffers)


def _repeated(values: Sequence[str | int], runs: Sequence[RowRun], kind: pa.DataType) -> pa.Array:
    """Each run's value as often as it has rows."""
    if len(set(values)) == 1:
        count = sum(run.row_count for run in runs)
        if count > KEPT_ROWS:
            return pa.repeat(pa.scalar(values[0], kind), count)
        return _kept_run(values[0], kind).slice(0, count)
    ends = list(accumulate(run.row_count for run in runs))
    encoded = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int64()), pa.array(values, kind))
    return pc.run_end_decode(encoded)


@lru_cache(maxsize=16)
def _kept_run(value: str | int, kind: pa.DataType) -> pa.Array:
    """One value many times, for slices: small polls of the same partition need it again."""
    return pa.repeat(pa.scalar(value, kind), KEPT_ROWS)


def _headers(count: int, columns: RecordColumns) -> pa.Array:
    """Lists of headers; null where a record has none, as Spark has it."""
    header_keys, header_values = columns.header_keys, columns.header_values
    if columns.header_offsets is None or header_keys is None or header_values is None:
        return pa.nulls(count, _headers_type())
    ends = _fixed(pa.int32(), count + 1, columns.header_offsets)
    total = ends[count].as_py()
    entries = pa.StructArray.from_arrays(
        [_header_keys(total, header_keys), _strings(pa.binary(), total, header_values)],
        fields=list(_headers_type().value_type),
    )
    has_headers = pc.not_equal(ends.slice(1), ends.slice(0, count))
    buffers = [has_headers.buffers()[1], ends.buffers()[1]]
    return pa.ListArray.from_buffers(_headers_type(), count, buffers, children=[entries])


def _header_keys(count: int, column: BytesColumn) -> pa.Array:
    """As strings; what is not UTF-8 is replaced, as in `ConsumerRecord`."""
    raw = _strings(pa.binary(), count, column)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in raw.to_pylist()], pa.string())
