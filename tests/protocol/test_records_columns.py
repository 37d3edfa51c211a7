"""Columns: the same rows as records, from both implementations, and buffers that lie."""

from __future__ import annotations

import random
import struct
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.records import (
    BytesColumn,
    Codec,
    ColumnEncoder,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    RecordColumns,
    columns_pure,
    decode_columns,
    decode_records,
    encode_batch,
    encode_control_batch,
    increment_sequence,
    patch_log_append_time,
    read_batch_header,
    verify_crc,
    write_header,
)
from moldau.protocol.records.control import ControlRecordType

from .records_strategies import (
    native_module,
    numbered,
    record_lists,
    sample_records,
    use_implementation,
)
from .test_records_codec import mutate, outcome

NATIVE = native_module()
needs_native = pytest.mark.skipif(NATIVE is None, reason="the native extension is not built")


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_native)])
def implementation(request, monkeypatch) -> str:
    use_implementation(monkeypatch, request.param)
    return request.param


def encode_columns(
    columns: RecordColumns, *, start: int = 0, base_offset: int = 0, base_sequence: int = -1, **how
) -> list[bytearray]:
    """The rows from `start` on in finished batches, as a producer writes them."""
    encoder = ColumnEncoder(columns)
    batches = []
    while start < columns.row_count:
        out, header, start = encoder.next_batch(start, columns.row_count, **how)
        header.base_offset, header.base_sequence = base_offset, base_sequence
        write_header(out, header)
        batches.append(out)
        base_offset += header.record_count
        if base_sequence >= 0:
            base_sequence = increment_sequence(base_sequence, header.record_count)
    return batches


def cell(column: BytesColumn, row: int) -> bytes | None:
    assert column.offsets is not None
    assert column.data is not None
    if column.validity is not None and not column.validity[row >> 3] >> (row & 7) & 1:
        return None
    return bytes(column.data[column.offsets[row] : column.offsets[row + 1]])


def rows(columns: RecordColumns) -> list[Record]:
    """Columns back to records, by their documented layout."""
    assert columns.offsets is not None
    assert columns.timestamps_ms is not None
    records = []
    for row in range(columns.row_count):
        headers = []
        if columns.header_offsets is not None:
            assert columns.header_keys is not None
            assert columns.header_values is not None
            for at in range(columns.header_offsets[row], columns.header_offsets[row + 1]):
                key = cell(columns.header_keys, at)
                assert key is not None
                headers.append((key.decode(), cell(columns.header_values, at)))
        records.append(
            Record(
                columns.offsets[row],
                columns.timestamps_ms[row],
                cell(columns.keys, row),
                cell(columns.values, row),
                tuple(headers),
            )
        )
    return records


@pytest.mark.parametrize("codec", Codec)
def test_columns_are_the_records(implementation, codec: Codec) -> None:
    records = numbered(sample_records(203), 77)
    batch = encode_batch(records, base_offset=77, codec=codec)
    columns = decode_columns(batch)
    assert rows(columns) == records
    assert encode_columns(columns, base_offset=77, codec=codec) == [batch]


def test_no_nulls_no_headers_means_no_such_buffers(implementation) -> None:
    batch = encode_batch([Record(0, 1, b"a", b"b"), Record(0, 1, b"", b"cc")])
    columns = decode_columns(batch)
    assert columns.keys.validity is None
    assert columns.values.validity is None
    assert columns.header_offsets is None
    assert list(columns.values.offsets or ()) == [0, 1, 3]
    assert bytes(columns.values.data or b"") == b"bcc"


def test_several_batches_become_one_and_control_batches_are_left_out(implementation) -> None:
    first = numbered(sample_records(10, 1), 100)
    second = numbered(sample_records(20, 2), 111)
    control = encode_control_batch(
        [(ControlRecordType.LEADER_CHANGE, b"x")], timestamp_ms=1, base_offset=110
    )
    late = encode_batch(second, base_offset=111, codec=Codec.SNAPPY)
    patch_log_append_time(late, 0, read_batch_header(late), 5)
    head = encode_batch(first, base_offset=100, codec=Codec.GZIP)
    buffer = head + control + late
    for record in second:
        record.timestamp_ms = 5
    assert rows(decode_columns(buffer)) == first + second
    assert rows(decode_columns(buffer, [len(head) + len(control)])) == second
    assert rows(decode_columns(b"")) == []


@settings(max_examples=100, deadline=None)
@given(records=record_lists, chunk=st.integers(0, 1_000), start=st.integers(0, 10))
def test_any_records_through_columns_in_any_slices(records, chunk: int, start: int) -> None:
    start = min(start, len(records))
    columns = decode_columns(encode_batch(records))
    batches = encode_columns(
        columns, start=start, max_batch_bytes=61 + chunk, base_offset=9, base_sequence=4
    )
    found = []
    expected_sequence = 4
    for batch in batches:
        header = read_batch_header(batch)
        assert verify_crc(batch, 0, header)
        assert len(batch) <= 61 + chunk or header.record_count == 1
        assert header.base_sequence == expected_sequence
        expected_sequence += header.record_count
        found += decode_records(batch)
    assert found == numbered(records[start:], 9)


@needs_native
@settings(max_examples=100, deadline=None)
@given(records=record_lists, chunk=st.integers(0, 500))
def test_both_implementations_give_the_same_buffers(records, chunk: int) -> None:
    assert NATIVE is not None
    batch = encode_batch(records)
    base = records[0].timestamp_ms if records else -1
    sections = [
        (0, bytes(batch[61:]), len(records), 5, base, None),
        (9, bytes(batch[61:]), len(records), 5, base, 77),
    ]
    slow = columns_pure.decode_column_sections(sections)
    assert NATIVE.decode_column_sections(sections) == slow
    count, _, timestamps, keys, values, headers = slow
    if headers is None:
        buffers = (timestamps, keys, values, None, (None,) * 3, (None,) * 3)
    else:
        names = (headers[1], None, headers[2])
        buffers = (timestamps, keys, values, headers[0], names, headers[3])
    if count:
        arguments = (buffers, count // 3, count, chunk, 61, 0)
        assert columns_pure.encode_rows(*arguments) == NATIVE.encode_rows(*arguments)


def test_columns_a_producer_makes(implementation) -> None:
    """Only values, one timestamp for all, no keys: the smallest useful table."""
    values = BytesColumn(array("i", [0, 3, 3, 7]).tobytes(), None, b"onetwo!")
    columns = RecordColumns(3, None, None, BytesColumn(), values)
    (batch,) = encode_columns(
        columns,
        timestamp_ms=42,
        codec=Codec.ZSTD,
        compression_level=5,
    )
    assert decode_records(batch) == [
        Record(0, 42, None, b"one"),
        Record(1, 42, None, b""),
        Record(2, 42, None, b"two!"),
    ]
    assert encode_columns(columns, start=3) == []


def test_a_null_row_may_have_bytes_behind_it(implementation) -> None:
    values = BytesColumn(array("i", [2, 4, 6]).tobytes(), b"\x02", b"..xxyy")
    columns = RecordColumns(2, None, None, BytesColumn(), values)
    (batch,) = encode_columns(columns)
    assert [record.value for record in decode_records(batch)] == [None, b"yy"]


def bad_columns() -> list[RecordColumns]:
    def ints(*numbers: int) -> bytes:
        return array("i", numbers).tobytes()

    none = BytesColumn()
    good = BytesColumn(ints(0, 1, 2), None, b"ab")
    bad_strings = [
        BytesColumn(ints(0, 1), None, b"ab"),
        BytesColumn(ints(0, 1, 3), None, b"ab"),
        BytesColumn(ints(0, 2, 1), None, b"ab"),
        BytesColumn(ints(-1, 1, 2), None, b"ab"),
        BytesColumn(ints(0, 1, 2**31 - 1), None, b"ab"),
        BytesColumn(ints(0, 1, 2), b"", b"ab"),
        BytesColumn(ints(0, 1, 2), None, None),
        BytesColumn(b"\x00\x00\x00", None, b"ab"),
        BytesColumn(b"", None, b"ab"),
    ]
    found = [RecordColumns(2, None, None, none, bad) for bad in bad_strings]
    found += [RecordColumns(2, None, None, bad, good) for bad in bad_strings]
    one_each = ints(0, 1, 2)
    found += [RecordColumns(2, None, None, none, good, one_each, bad, good) for bad in bad_strings]
    found += [RecordColumns(2, None, None, none, good, one_each, good, bad) for bad in bad_strings]
    found += [
        RecordColumns(2, None, None, none, good, ints(0, 1), good, good),
        RecordColumns(2, None, None, none, good, ints(0, 2, 1), good, good),
        RecordColumns(2, None, None, none, good, ints(0, 1, 2**31 - 1), good, good),
        RecordColumns(2, None, None, none, good, one_each, None, good),
        RecordColumns(
            2, None, None, none, good, one_each, BytesColumn(one_each, b"\x01", b"ab"), good
        ),
        RecordColumns(2, None, bytes(8), none, good),
        RecordColumns(2, None, struct.pack("=qq", -(2**63), 2**63 - 1), none, good),
    ]
    return found


@pytest.mark.parametrize("columns", bad_columns())
def test_buffers_that_lie_are_refused(implementation, columns: RecordColumns) -> None:
    with pytest.raises(ValueError, match="row"):
        encode_columns(columns)


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (0, 3), (3, 3), (1, 0)])
def test_rows_outside_the_table_are_refused(implementation, start: int, stop: int) -> None:
    columns = decode_columns(encode_batch(sample_records(2)))
    with pytest.raises(ValueError, match="row"):
        ColumnEncoder(columns).next_batch(start, stop)


@needs_native
@pytest.mark.parametrize("seed", range(20))
def test_mutated_sections_get_the_same_answer_from_both(seed: int) -> None:
    assert NATIVE is not None
    source = random.Random(seed)
    records = sample_records(9, seed)
    section = bytes(encode_batch(records)[61:])
    for _ in range(300):
        sections = [(0, section, 9, 0, 0, None)]
        sections.insert(
            source.randrange(2), (50, mutate(source, section), source.choice((9, 9, 8)), 0, 0, None)
        )
        slow = outcome(columns_pure.decode_column_sections, sections)
        assert outcome(NATIVE.decode_column_sections, sections) == slow


@needs_native
@pytest.mark.parametrize("seed", range(10))
def test_mutated_buffers_get_the_same_answer_from_both(seed: int) -> None:
    assert NATIVE is not None
    source = random.Random(seed)
    section = bytes(encode_batch(sample_records(9, 3))[61:])
    count, _, times, keys, values, headers = columns_pure.decode_column_sections(
        [(0, section, 9, 0, 0, None)]
    )
    assert headers is not None
    flat = [times, *keys, *values, headers[0], headers[1], None, headers[2], *headers[3]]

    def answer(function, arguments):
        try:
            return function(*arguments)
        except (ValueError, OverflowError) as error:
            return type(error)

    for _ in range(400):
        mutated = [None if b is None else bytes(b) for b in flat]
        at = source.choice([i for i, b in enumerate(mutated) if b])
        mutated[at] = mutate(source, mutated[at])
        buffers = (
            mutated[0],
            tuple(mutated[1:4]),
            tuple(mutated[4:7]),
            mutated[7],
            tuple(mutated[8:11]),
            tuple(mutated[11:14]),
        )
        arguments = (buffers, 0, count, 1 << 20, 61, 0)
        slow = answer(columns_pure.encode_rows, arguments)
        assert answer(NATIVE.encode_rows, arguments) == slow


def test_an_error_names_the_batch(implementation) -> None:
    good = encode_batch(sample_records(3))
    bad = encode_batch(sample_records(3))
    bad[61] ^= 2  # the first record's length
    with pytest.raises(InvalidBatch) as caught:
        decode_columns(good + bad)
    assert caught.value.position == len(good)


def test_the_limit_is_for_all_batches_together(implementation) -> None:
    batch = encode_batch([Record(0, 0, None, bytes(10_000))], codec=Codec.GZIP)
    assert decode_columns(batch * 3, max_bytes=31_000).row_count == 3
    with pytest.raises(InvalidBatch) as caught:
        decode_columns(batch * 3, max_bytes=30_000)
    assert caught.value.reason is InvalidBatchReason.TOO_LARGE
    assert caught.value.position == 2 * len(batch)


@pytest.mark.parametrize("module", [columns_pure, pytest.param(NATIVE, marks=needs_native)])
def test_scaled_numbers_stop_at_the_ends_of_64_bits(module) -> None:
    numbers = [0, 5, -5, 2**63 - 1, -(2**63), (2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1]
    scaled = array("q", bytes(module.scaled_int64s(array("q", numbers).tobytes(), 1000)))
    assert list(scaled) == [min(max(n * 1000, -(2**63)), 2**63 - 1) for n in numbers]
    with pytest.raises(ValueError, match="factor"):
        module.scaled_int64s(b"", 0)
