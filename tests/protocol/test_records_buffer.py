"""The growing batch: the same bytes as a batch encoded at once, limits, misuse, in both forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    Record,
    encode_batch,
    pure,
)

from .records_strategies import native_module, record_lists, sample_records

NATIVE = native_module()
KINDS = [
    pytest.param(pure, id="pure"),
    pytest.param(
        NATIVE,
        id="native",
        marks=pytest.mark.skipif(NATIVE is None, reason="the native extension is not built"),
    ),
]


def put(buffer, record: Record) -> int:
    return buffer.append(record.timestamp_ms, record.key, record.value, record.headers)


@pytest.mark.parametrize("module", KINDS)
@given(records=record_lists)
def test_the_records_lie_as_in_a_batch_encoded_at_once(module, records) -> None:
    buffer = module.RecordBuffer(1 << 20)
    assert [put(buffer, record) for record in records] == list(range(len(records)))
    whole = encode_batch(records)
    assert buffer.size_bytes == len(whole)
    assert buffer.record_count == len(records)
    times = [record.timestamp_ms for record in records] or [-1]
    assert (buffer.base_timestamp_ms, buffer.max_timestamp_ms) == (times[0], max(times))
    taken = buffer.take()
    assert taken[:BATCH_HEADER_SIZE] == bytes(BATCH_HEADER_SIZE)
    assert taken[BATCH_HEADER_SIZE:] == whole[BATCH_HEADER_SIZE:]


@pytest.mark.parametrize("module", KINDS)
@given(seed=st.integers(0, 1000), limit=st.integers(0, 3000))
def test_what_does_not_fit_is_refused_and_changes_nothing(module, seed, limit) -> None:
    buffer = module.RecordBuffer(limit)
    for record in sample_records(20, seed):
        size, count = buffer.size_bytes, buffer.record_count
        facts = buffer.base_timestamp_ms, buffer.max_timestamp_ms
        if put(buffer, record) < 0:
            assert count > 0
            now = buffer.base_timestamp_ms, buffer.max_timestamp_ms
            assert (buffer.size_bytes, buffer.record_count, now) == (size, count, facts)
        else:
            assert count == 0 or buffer.size_bytes <= limit
    buffer.limit_bytes = 1 << 20
    assert put(buffer, Record(0, 0, None, bytes(100))) == buffer.record_count - 1
    assert len(buffer.take()) == buffer.size_bytes


@pytest.mark.parametrize("module", KINDS)
def test_a_taken_buffer_takes_nothing_more(module) -> None:
    buffer = module.RecordBuffer(1000)
    buffer.append(0, b"k", b"v")
    buffer.take()
    assert buffer.append(0, b"k", b"v") == -1
    with pytest.raises(ValueError, match="taken before"):
        buffer.take()


@pytest.mark.parametrize("module", KINDS)
@pytest.mark.parametrize(
    "arguments",
    [
        (0, "text", None),
        (0, None, "text"),
        (0, 5, None),
        (0, None, b"", [(b"key", b"value")]),
        (0, None, b"", [("key", "text")]),
    ],
)
def test_what_is_not_bytes_like_is_refused(module, arguments) -> None:
    buffer = module.RecordBuffer(1000)
    buffer.append(0, None, b"v")
    with pytest.raises((TypeError, AttributeError)):
        buffer.append(*arguments)
    assert buffer.record_count == 1


@pytest.mark.parametrize("module", KINDS)
def test_numbers_beyond_64_bits_are_refused(module) -> None:
    buffer = module.RecordBuffer(1000)
    with pytest.raises(OverflowError):
        buffer.append(2**63, None, b"")
    buffer.append(-(2**63), None, b"")
    with pytest.raises(OverflowError):
        buffer.append(2**62, None, b"")
    assert buffer.record_count == 1


@pytest.mark.parametrize("module", KINDS)
def test_any_buffer_of_bytes_will_do(module) -> None:
    buffer = module.RecordBuffer(1000)
    buffer.append(0, bytearray(b"key"), memoryview(b"value"))
    twin = module.RecordBuffer(1000)
    twin.append(0, b"key", b"value")
    assert buffer.take() == twin.take()
