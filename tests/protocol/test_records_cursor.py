"""Cursors: a batch read piece by piece gives the same records, however it is cut, in both forms."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.records import (
    InvalidBatch,
    InvalidBatchReason,
    Record,
    RecordHeaders,
    _implementation,
    cursor_pure,
    decode_records,
    encode_batch,
    patch_log_append_time,
    read_batch_header,
    records_section,
    take_columns,
)
from moldau.protocol.records.batch import append_time_ms

from .records_strategies import native_module, record_lists, sample_records
from .test_records_codec import mutate
from .test_records_columns import rows

NATIVE = native_module()
KINDS = [
    pytest.param(cursor_pure, id="pure"),
    pytest.param(
        NATIVE,
        id="native",
        marks=pytest.mark.skipif(NATIVE is None, reason="the native extension is not built"),
    ),
]


@dataclass(slots=True)
class Seen:
    """A record class with fields of its own."""

    topic: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    partition: int


def cursor_of(module, batch: bytes | bytearray):
    header = read_batch_header(batch)
    return module.RecordCursor(
        records_section(batch, 0, header),
        header.record_count,
        header.base_offset,
        header.base_timestamp_ms,
        append_time_ms(header),
    )


def plain_maker(module):
    return module.RecordMaker(Record, {})


def outcome(step) -> object:
    """What a step gives, or the reason and place of its fault."""
    try:
        return step()
    except InvalidBatch as error:
        return error.reason, error.record_index


@pytest.mark.parametrize("module", KINDS)
@given(records=record_lists, sizes=st.lists(st.integers(0, 9), max_size=40), base=st.integers(0, 9))
def test_pieces_of_any_size_give_every_record_once(module, records, sizes, base) -> None:
    batch = encode_batch(records, base_offset=base)
    cursor = cursor_of(module, batch)
    maker = plain_maker(module)
    found = []
    for size in sizes:
        piece = cursor.take(size, maker)
        assert len(piece) == min(size, len(records) - len(found))
        found += piece
        assert cursor.next_offset == base + len(found)
        assert cursor.remaining == len(records) - len(found)
    found += cursor.take(len(records), maker)
    assert found == decode_records(batch)
    assert cursor.is_exhausted


@pytest.mark.parametrize("module", KINDS)
@given(
    lists=st.lists(record_lists, max_size=4),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=20),
)
def test_objects_and_columns_mix(module, lists, steps) -> None:
    batches = []
    base = 0
    for records in lists:
        batches.append(encode_batch(records, base_offset=base))
        base += len(records)
    cursors = [cursor_of(module, batch) for batch in batches]
    maker = plain_maker(module)
    found: list[Record] = []
    for as_columns, size in [*steps, (True, None)]:
        if as_columns:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_implementation, "decode_cursors", module.decode_cursors)
                counts, columns = take_columns(cursors, size)
            assert sum(counts) == columns.row_count
            assert len(counts) == len(cursors)
            found += rows(columns)
        else:
            for cursor in cursors:
                taken = cursor.take(size, maker)
                found += taken
                size -= len(taken)
    assert found == [record for batch in batches for record in decode_records(batch)]
    assert all(cursor.is_exhausted for cursor in cursors)


@pytest.mark.skipif(NATIVE is None, reason="the native extension is not built")
@given(seed=st.integers(0, 2**32), size=st.integers(0, 40), limit=st.integers(0, 40))
def test_both_forms_agree_on_damaged_batches(seed, size, limit) -> None:
    batch = bytearray(encode_batch(sample_records(20, seed)))
    header = read_batch_header(batch)
    section = mutate(random.Random(seed), bytes(batch[61:]))
    answers = []
    for module in (cursor_pure, NATIVE):
        said = []
        arguments = (section, header.record_count, 0, header.base_timestamp_ms)
        cursor = outcome(lambda arguments=arguments, m=module: m.RecordCursor(*arguments))
        if isinstance(cursor, tuple):
            answers.append([cursor])
            continue
        maker = plain_maker(module)
        said.append(outcome(lambda c=cursor, m=maker: c.take(size, m)))
        said.append(outcome(lambda c=cursor: c.skip_before(limit // 2)))
        said.append(outcome(lambda c=cursor, m=module: m.decode_cursors([c], limit)))
        said.append(outcome(lambda c=cursor, m=maker: c.take(100, m)))
        said.append(outcome(lambda c=cursor, m=maker: c.take(100, m)))
        said.append((cursor.remaining, cursor.next_offset, cursor.is_exhausted))
        answers.append(said)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("module", KINDS)
def test_a_bad_record_ends_what_comes_before_it_and_is_then_raised(module) -> None:
    good = encode_batch([Record(i, 0, None, b"value") for i in range(3)])
    header = read_batch_header(good)
    section = bytes(good[61:]) + b"\x02\x00"
    cursor = module.RecordCursor(section, 4, 0, 0)
    behind = cursor_of(module, good)
    maker = plain_maker(module)
    assert [record.offset for record in cursor.take(10, maker)] == [0, 1, 2]
    assert not cursor.is_exhausted
    for _ in range(2):
        with pytest.raises(InvalidBatch) as caught:
            cursor.take(10, maker)
        assert caught.value.reason is InvalidBatchReason.BAD_RECORD
        assert caught.value.record_index == 3
    with pytest.raises(InvalidBatch):
        module.decode_cursors([cursor, behind])
    fresh = module.RecordCursor(section, 4, 0, 0)
    counts, columns = module.decode_cursors([fresh, behind])
    assert counts == [3, 0]
    assert columns[0] == 3
    assert behind.remaining == header.record_count


@pytest.mark.parametrize("module", KINDS)
@given(records=record_lists, size=st.integers(0, 20_000), limit=st.integers(0, 40))
def test_memory_for_the_values_changes_nothing(module, records, size, limit) -> None:
    batch = encode_batch(records)
    memory = bytearray(b"?" * size)
    counts, columns = module.decode_cursors([cursor_of(module, batch)], limit)
    again = module.decode_cursors([cursor_of(module, batch)], limit, lambda _: memory)
    assert again == (counts, columns)
    assert module.decode_cursors([cursor_of(module, batch)], limit, lambda _: None)[1] == columns


@pytest.mark.parametrize("module", KINDS)
def test_many_large_keys_find_room(module) -> None:
    records = [Record(i, 0, bytes([i]) * 20_000, b"v") for i in range(30)]
    cursors = [cursor_of(module, encode_batch(records)) for _ in range(2)]
    _, columns = module.decode_cursors(cursors)
    assert columns[3][2] == b"".join(record.key or b"" for record in records) * 2
    assert list(memoryview(columns[3][0]).cast("i")) == [20_000 * i for i in range(61)]


@pytest.mark.parametrize("module", KINDS)
def test_bytes_behind_the_last_record_are_an_error(module) -> None:
    batch = encode_batch([Record(0, 0, None, b"v")])
    cursor = module.RecordCursor(bytes(batch[61:]) + b"x", 1, 0, 0)
    assert len(cursor.take(5, plain_maker(module))) == 1
    assert not cursor.is_exhausted
    with pytest.raises(InvalidBatch) as caught:
        cursor.take(5, plain_maker(module))
    assert caught.value.reason is InvalidBatchReason.BAD_COUNT


@pytest.mark.parametrize("module", KINDS)
def test_skipping_keeps_what_is_not_before(module) -> None:
    records = [Record(i, i, b"k", None) for i in (0, 3, 4, 9)]
    batch = encode_batch(records, base_offset=0, keep_offsets=True)
    cursor = cursor_of(module, batch)
    cursor.skip_before(4)
    assert cursor.next_offset == 4
    cursor.skip_before(2)
    assert [record.offset for record in cursor.take(9, plain_maker(module))] == [4, 9]
    cursor = cursor_of(module, batch)
    cursor.skip_before(100)
    assert cursor.is_exhausted
    assert cursor.next_offset == 10


@pytest.mark.parametrize("module", KINDS)
def test_an_append_time_is_every_records_timestamp(module) -> None:
    batch = encode_batch([Record(i, 5 + i, None, b"v") for i in range(3)])
    patch_log_append_time(batch, 0, read_batch_header(batch), 77)
    taken = cursor_of(module, batch).take(2, plain_maker(module))
    assert [record.timestamp_ms for record in taken] == [77, 77]
    _, columns = module.decode_cursors([cursor_of(module, batch)])
    assert list(memoryview(columns[2]).cast("q")) == [77, 77, 77]


@pytest.mark.parametrize("module", KINDS)
def test_a_maker_fills_classes_of_ones_own(module) -> None:
    batch = encode_batch([Record(0, 5, b"k", b"v", (("h", None),))], base_offset=3)
    maker = module.RecordMaker(Seen, {"topic": "flights", "partition": 4})
    assert cursor_of(module, batch).take(1, maker) == [
        Seen("flights", 3, 5, b"k", b"v", (("h", None),), 4)
    ]


class NotSlotted:
    """Has a __dict__."""


@pytest.mark.parametrize("module", KINDS)
@pytest.mark.parametrize(
    ("kind", "shared"),
    [(Seen, {}), (Seen, {"topic": "", "partition": 0, "more": 1}), (NotSlotted, {}), (dict, {})],
)
def test_a_maker_refuses_classes_that_it_cannot_fill(module, kind, shared) -> None:
    with pytest.raises(TypeError):
        module.RecordMaker(kind, shared)
