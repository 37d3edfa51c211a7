"""Columns given out as Arrow: Spark's schema, the same values as records, wherever polls end."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.arrow import polled_schema
from moldau.client.arrow.from_arrow import read_rows
from moldau.client.arrow.to_arrow import RowRun, to_arrow
from moldau.client.records import TimestampType
from moldau.protocol.records import (
    ColumnEncoder,
    Record,
    RecordCursor,
    decode_columns,
    decode_records,
    encode_batch,
    read_batch_header,
    take_columns,
    write_header,
)
from tests.protocol.records_strategies import header_lists

blobs = st.one_of(st.none(), st.binary(max_size=30))
batches = st.lists(
    st.lists(
        st.builds(Record, st.just(0), st.integers(-1, 2**40), blobs, blobs, header_lists),
        min_size=1,
        max_size=12,
    ),
    max_size=5,
)


def cursor_of(batch: bytearray) -> RecordCursor:
    header = read_batch_header(batch)
    facts = header.record_count, header.base_offset, header.base_timestamp_ms
    return RecordCursor(memoryview(batch)[61:], *facts)


def polled(cursors: list[RecordCursor], limit: int | None = None) -> pa.RecordBatch:
    """As a consumer makes it: a batch of each of the partitions of topic t."""
    counts, columns = take_columns(cursors, limit)
    runs = [
        RowRun("t", number, TimestampType.CREATE_TIME, count) for number, count in enumerate(counts)
    ]
    return to_arrow(runs, columns)


def expected(found: list[list[Record]]) -> list[dict[str, object]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": partition,
            "offset": offset,
            "timestamp": record.timestamp_ms * 1000,
            "timestampType": 0,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for partition, records in enumerate(found)
        for offset, record in enumerate(records)
    ]


def plain(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Rows with the timestamp as a number."""
    batch.validate(full=True)
    assert batch.schema.equals(polled_schema())
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


@settings(max_examples=40)
@given(found=batches, limits=st.lists(st.integers(1, 20), max_size=20))
def test_rows_are_the_records_wherever_a_poll_ends(found, limits) -> None:
    encoded = [encode_batch(records) for records in found]
    assert plain(polled([cursor_of(batch) for batch in encoded])) == expected(found)
    cursors = [cursor_of(batch) for batch in encoded]
    rows = [row for limit in [*limits, None] for row in plain(polled(cursors, limit))]
    assert rows == expected(found)


@settings(max_examples=40)
@given(found=batches)
def test_what_is_polled_can_be_sent_again(found) -> None:
    batch = polled([cursor_of(encode_batch(records)) for records in found])
    if any(record.timestamp_ms < 0 for records in found for record in records):
        return
    read = read_rows(batch, 0)
    sent = []
    if batch.num_rows:
        out, header, _ = ColumnEncoder(read.columns).next_batch(0, batch.num_rows)
        write_header(out, header)
        sent = [(r.timestamp_ms, r.key, r.value, r.headers) for r in decode_records(out)]
    assert sent == [
        (r.timestamp_ms, r.key, r.value, r.headers) for records in found for r in records
    ]
    if read.partitions is not None:
        assert read.partitions.to_pylist() == [
            n for n, records in enumerate(found) for _ in records
        ]


@pytest.mark.parametrize("count", [1, 8192, 8193])
def test_small_and_large_polls_of_one_partition(count) -> None:
    columns = decode_columns(encode_batch([Record(i, i, None, b"v") for i in range(count)]))
    batch = to_arrow([RowRun("a", 3, TimestampType.CREATE_TIME, count)], columns)
    batch.validate(full=True)
    assert batch.column("topic").to_pylist() == ["a"] * count
    assert batch.column("partition").to_pylist() == [3] * count


def test_runs_name_topic_partition_and_clock() -> None:
    columns = decode_columns(encode_batch([Record(i, i, None, b"v") for i in range(5)]))
    batch = to_arrow(
        [
            RowRun("a", 1, TimestampType.CREATE_TIME, 2),
            RowRun("a", 2, TimestampType.CREATE_TIME, 0),
            RowRun("b", 1, TimestampType.LOG_APPEND_TIME, 3),
        ],
        columns,
    )
    assert batch.column("topic").to_pylist() == ["a", "a", "b", "b", "b"]
    assert batch.column("partition").to_pylist() == [1] * 5
    assert batch.column("timestampType").to_pylist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("far_ms", [2**62, 2**63 - 1])
def test_a_time_beyond_all_microseconds_does_not_stop_the_reading(far_ms: int) -> None:
    records = [Record(0, far_ms, None, b"v"), Record(1, 5, None, b"w"), Record(2, -1, None, b"x")]
    batch = polled([cursor_of(encode_batch([each])) for each in records])
    batch.validate(full=True)
    last_us = 2**63 - 1
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [last_us, 5_000, -1_000]


def test_values_are_the_codecs_own_bytes() -> None:
    columns = decode_columns(encode_batch([Record(0, 0, b"k", b"value")]))
    batch = to_arrow([RowRun("t", 0, TimestampType.CREATE_TIME, 1)], columns)
    own = pa.py_buffer(columns.values.data)
    assert batch.column("value").buffers()[2].address == own.address


def test_header_keys_that_are_no_text_are_replaced_as_in_records() -> None:
    batch = encode_batch([Record(0, 0, None, None, (("ab", b"1"),))])
    at = bytes(batch).index(b"ab")
    batch[at] = 0xFF
    [record] = decode_records(batch)
    polled_batch = polled([cursor_of(batch)])
    assert polled_batch.column("headers").to_pylist() == [
        [{"key": record.headers[0][0], "value": b"1"}]
    ]


def test_nothing_polled_has_the_schema_too() -> None:
    assert plain(polled([])) == []


@pytest.mark.parametrize("name", polled_schema().names)
def test_types_are_sparks(name) -> None:
    kinds = {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "timestampType": "int32",
        "headers": "list<item: struct<key: string, value: binary>>",
    }
    assert str(polled_schema().field(name).type) == kinds[name]
