"""Keys to partitions as the Java client does it, rows in groups, and selected rows encoded."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.records import (
    BytesColumn,
    ColumnEncoder,
    Record,
    RecordColumns,
    columns_pure,
    decode_columns,
    decode_records,
    encode_batch,
    string_buffers,
    write_header,
)

from .records_strategies import native_module, record_lists, use_implementation

NATIVE = native_module()
needs_native = pytest.mark.skipif(NATIVE is None, reason="the native extension is not built")
KINDS = [
    pytest.param(columns_pure, id="pure"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]

#: As org.apache.kafka.common.utils.Utils.murmur2 of Apache Kafka 4.3 says (signed, 32 bits).
JAVA: dict[bytes, int] = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("module", KINDS)
@pytest.mark.parametrize("key", JAVA)
def test_the_hash_is_javas(module, key) -> None:
    assert module.murmur2(key) == JAVA[key] & 0xFFFFFFFF
    assert module.murmur2(memoryview(key)) == JAVA[key] & 0xFFFFFFFF
    assert module.murmur2_partition(key, 7) == (JAVA[key] & 0x7FFFFFFF) % 7


@needs_native
@given(key=st.binary(max_size=70), count=st.integers(1, 2**31 - 1))
def test_both_forms_hash_alike(key, count) -> None:
    assert NATIVE.murmur2(key) == columns_pure.murmur2(key)
    assert NATIVE.murmur2_partition(key, count) == columns_pure.murmur2_partition(key, count)


@pytest.mark.parametrize("module", KINDS)
def test_misuse_is_an_error(module) -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="partitions"):
            module.murmur2_partition(b"k", count)
        with pytest.raises(ValueError, match="partitions"):
            module.partition_rows((None, None, None), 1, count)
    with pytest.raises(TypeError):
        module.murmur2(None)
    with pytest.raises(TypeError):
        module.murmur2("text")
    ends = array("i", [0, 5]).tobytes()
    with pytest.raises(ValueError, match="outside"):
        module.partition_rows((ends, None, b"abc"), 1, 3)
    with pytest.raises(ValueError, match="outside"):
        module.partition_rows((ends, None, b"abcde"), 2, 3)
    for rows in ([5], [-1], []):
        with pytest.raises(ValueError, match=r"outside|selection"):
            module.partition_rows((ends, None, b"abcde"), 1, 3, array("i", rows).tobytes())
    for group in (-2, 3):
        with pytest.raises(ValueError, match="group"):
            module.group_rows(array("i", [0, group]).tobytes(), 3)


@pytest.mark.parametrize("module", KINDS)
@given(records=record_lists, count=st.integers(1, 50))
def test_rows_go_where_their_keys_go_one_by_one(module, records, count) -> None:
    keys = string_buffers(decode_columns(encode_batch(records)).keys)
    found = array("i", bytes(module.partition_rows(keys, len(records), count)))
    assert list(found) == [
        -1 if record.key is None else columns_pure.murmur2_partition(record.key, count)
        for record in records
    ]
    assert list(array("i", bytes(module.partition_rows((None, None, None), 3, count)))) == [-1] * 3
    backwards = array("i", range(len(records) - 1, -1, -1)).tobytes()
    again = array("i", bytes(module.partition_rows(keys, len(records), count, backwards)))
    assert list(again) == list(found)[::-1]


@pytest.mark.parametrize("module", KINDS)
@given(groups=st.lists(st.integers(-1, 5), max_size=60))
def test_groups_keep_the_order_of_their_rows(module, groups) -> None:
    selection, bounds = module.group_rows(array("i", groups).tobytes(), 6)
    rows = list(array("i", bytes(selection)))
    assert rows == sorted(range(len(groups)), key=lambda row: (groups[row], row))
    assert bounds == [
        (
            group,
            rows.index(groups.index(group)),
            rows.index(groups.index(group)) + groups.count(group),
        )
        for group in sorted(set(groups))
    ]


@pytest.mark.parametrize("name", ["pure", pytest.param("native", marks=needs_native)])
@given(data=st.data())
def test_selected_rows_are_encoded_in_their_order(name, data) -> None:
    records = data.draw(record_lists)
    chosen = data.draw(
        st.lists(st.integers(0, len(records) - 1), max_size=40) if records else st.just([])
    )
    limit = data.draw(st.integers(0, 2000))
    columns = decode_columns(encode_batch(records))
    with pytest.MonkeyPatch.context() as patch:
        use_implementation(patch, name)
        encoder = ColumnEncoder(columns, array("i", chosen).tobytes())
        start = 0
        found: list[Record] = []
        while start < len(chosen):
            try:
                out, header, start = encoder.next_batch(start, len(chosen), max_batch_bytes=limit)
            except ValueError:
                # Timestamps that lie too far apart have no encoding, in either form.
                times = [records[row].timestamp_ms for row in chosen]
                assert max(times) - min(times) >= 2**63
                return
            header.base_offset = len(found)
            write_header(out, header)
            found += decode_records(out)
    assert found == [
        Record(
            at,
            records[row].timestamp_ms,
            records[row].key,
            records[row].value,
            records[row].headers,
        )
        for at, row in enumerate(chosen)
    ]


@needs_native
@given(seed=st.integers(0, 2**32))
def test_both_forms_refuse_the_same_selections(seed) -> None:
    source = random.Random(seed)
    columns = decode_columns(encode_batch([Record(i, i, b"k", b"v") for i in range(5)]))
    buffers = (
        columns.timestamps_ms if source.random() < 0.5 else None,
        string_buffers(columns.keys),
        string_buffers(columns.values),
        None,
        (None, None, None),
        (None, None, None),
    )
    selection = array("i", [source.randrange(-2, 8) for _ in range(source.randrange(6))]).tobytes()
    selection = selection[: len(selection) - source.randrange(3)]
    arguments = (buffers, source.randrange(-1, 4), source.randrange(7), 1000, 61, 9, selection)
    answers = []
    for module in (columns_pure, NATIVE):
        try:
            answers.append(module.encode_rows(*arguments))
        except ValueError:
            answers.append("refused")
    assert answers[0] == answers[1]


def test_columns_without_a_selection_keep_their_order() -> None:
    columns = RecordColumns(
        2, None, None, BytesColumn(), BytesColumn(array("i", [0, 1, 2]).tobytes(), None, b"ab")
    )
    out, header, end = ColumnEncoder(columns).next_batch(0, 2, timestamp_ms=5)
    write_header(out, header)
    assert end == 2
    assert [(r.timestamp_ms, r.value) for r in decode_records(out)] == [(5, b"a"), (5, b"b")]
