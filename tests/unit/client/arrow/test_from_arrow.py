"""Arrow data read into columns: every layout, slice and chunking means the same records."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.arrow.from_arrow import read_rows
from moldau.client.errors import SerializationError
from moldau.protocol.records import ColumnEncoder, Record, decode_records, write_header

from .tables import HEADERS, layouts, rechunked, rows, table_of

NOW_MS = 1_700_000_000_123


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """What would be sent of a batch, decoded again."""
    columns = read_rows(batch, NOW_MS).columns
    if not columns.row_count:
        return []
    out, header, end = ColumnEncoder(columns).next_batch(0, columns.row_count, timestamp_ms=NOW_MS)
    assert end == columns.row_count
    write_header(out, header)
    return decode_records(out)


def expected(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            NOW_MS if row["timestamp"] is None else row["timestamp"],
            None if row["key"] is None else row["key"].encode(),
            None if row["value"] is None else row["value"].encode(),
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in found
    ]


def contents(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(each.timestamp_ms, each.key, each.value, each.headers) for each in records]


@given(found=rows, key_layout=layouts, value_layout=layouts, seed=st.integers(0, 2**32))
def test_layout_slices_and_chunks_do_not_matter(found, key_layout, value_layout, seed) -> None:
    table = table_of(found, key_layout, value_layout)
    whole = [each for batch in table.to_batches() for each in records_of(batch)]
    assert contents(whole) == expected(found)
    cut = rechunked(table, seed)
    pieces = [each for batch in cut.to_batches() for each in records_of(batch)]
    assert contents(pieces) == expected(found)


@given(found=rows, start=st.integers(0, 40), size=st.integers(0, 40), layout=layouts)
def test_a_slice_is_its_rows(found, start, size, layout) -> None:
    table = table_of(found, layout, layout)
    for batch in table.to_batches():
        piece = batch.slice(start, size)
        assert contents(records_of(piece)) == expected(found[start : start + size])


def test_values_are_not_copied() -> None:
    for kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        value = pa.array(["x" * 1000, None, "y"], kind)
        batch = pa.record_batch({"value": value}).slice(1)
        columns = read_rows(batch, NOW_MS).columns
        own = value.buffers()[2]
        assert own.address <= columns.values.data.address < own.address + own.size


def test_bytes_of_a_fixed_size() -> None:
    values = pa.array([b"abcd", None, b"efgh", b"ijkl"], pa.binary(4))
    batch = pa.record_batch({"key": values, "value": values}).slice(1, 2)
    assert [(r.key, r.value) for r in records_of(batch)] == [(None, None), (b"efgh", b"efgh")]
    empty = pa.record_batch({"value": pa.array([b"", b""], pa.binary(0))})
    assert [r.value for r in records_of(empty)] == [b"", b""]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Prague"])
def test_timestamps_of_every_unit(unit, zone) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    when = pa.array([5 * per_second, None, 1_700_000_000 * per_second], pa.timestamp(unit, zone))
    batch = pa.record_batch({"value": ["a", "b", "c"], "timestamp": when})
    assert [r.timestamp_ms for r in records_of(batch)] == [5000, NOW_MS, 1_700_000_000_000]
    assert [r.timestamp_ms for r in records_of(batch.slice(2))] == [1_700_000_000_000]


def test_other_times() -> None:
    day = datetime.date(1970, 1, 2)
    for column in (pa.array([86_400_000], pa.int64()), pa.array([day], pa.date64())):
        batch = pa.record_batch({"value": ["a"], "timestamp": column})
        assert [r.timestamp_ms for r in records_of(batch)] == [86_400_000]
    batch = pa.record_batch({"value": ["a"], "timestamp": pa.nulls(1)})
    assert [r.timestamp_ms for r in records_of(batch)] == [NOW_MS]
    batch = pa.record_batch({"value": ["a"], "timestamp": pa.array([1999], pa.timestamp("us"))})
    assert [r.timestamp_ms for r in records_of(batch)] == [1]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.large_list(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.binary())])),
    ],
)
def test_headers_of_other_layouts(kind) -> None:
    rows_ = [[("a", b"1")], None, [], [("b", None), ("a", b"2")]]
    values: list[Any] = rows_
    if not pa.types.is_map(kind):
        values = [
            None if row is None else [{"key": key, "value": value} for key, value in row]
            for row in rows_
        ]
    batch = pa.record_batch({"value": ["v"] * 4, "headers": pa.array(values, kind)})
    found = [r.headers for r in records_of(batch)]
    assert found == [(("a", b"1"),), (), (), (("b", None), ("a", b"2"))]
    assert [r.headers for r in records_of(batch.slice(3))] == [(("b", None), ("a", b"2"))]


def test_columns_of_nothing_but_nulls() -> None:
    names = ("key", "value", "headers", "timestamp", "partition", "topic")
    batch = pa.record_batch({name: pa.nulls(2) for name in names})
    assert contents(records_of(batch)) == [(NOW_MS, None, None, ())] * 2
    rows_ = read_rows(batch, NOW_MS)
    assert rows_.partitions is None
    assert rows_.topics is None


def test_what_polls_give_besides_is_passed_over() -> None:
    batch = pa.record_batch(
        {"value": ["a"], "offset": pa.array([4]), "timestampType": pa.array([0], pa.int32())}
    )
    assert [r.value for r in records_of(batch)] == [b"a"]


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"key": ["a"]}, "value"),
        ({"value": [1]}, "int64"),
        ({"value": ["a"], "key": [1.5]}, "double"),
        ({"value": ["a"], "Key": ["b"]}, "'Key'"),
        ({"value": ["a"], "partition": ["b"]}, "partition"),
        ({"value": ["a"], "partition": [2**40]}, "partition"),
        ({"value": ["a"], "topic": [1]}, "topic"),
        ({"value": ["a"], "timestamp": ["b"]}, "timestamp"),
        ({"value": ["a"], "timestamp": pa.array([-1], pa.timestamp("us"))}, "1970"),
        ({"value": ["a"], "timestamp": pa.array([2**62], pa.timestamp("s"))}, "64 bits"),
        ({"value": ["a"], "headers": ["b"]}, "headers"),
        ({"value": ["a"], "headers": pa.array([[1]], pa.list_(pa.int64()))}, "headers"),
        ({"value": ["a"], "headers": pa.array([[None]], HEADERS)}, "null header"),
        ({"value": ["a"], "headers": pa.array([[{"value": b""}]], HEADERS)}, "without a key"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(columns, word) -> None:
    with pytest.raises(SerializationError, match=word):
        read_rows(pa.record_batch(columns), NOW_MS)


def test_a_name_twice_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(SerializationError, match="two columns"):
        read_rows(batch, NOW_MS)
