"""Records in and out: round trips, other clients' batches, one answer from both implementations."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    Codec,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    TimestampType,
    _implementation,
    decode_records,
    encode_batch,
    pure,
    read_batch_header,
    recompress,
    record_size_bound,
    validate_records,
    verify_crc,
)
from moldau.protocol.records.batch import records_section

from .records_oracles import CASES, oracle_decode, oracle_encode
from .records_strategies import (
    native_module,
    numbered,
    record_lists,
    sample_records,
    use_implementation,
)

NATIVE = native_module()
needs_native = pytest.mark.skipif(NATIVE is None, reason="the native extension is not built")


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_native)])
def implementation(request, monkeypatch) -> str:
    use_implementation(monkeypatch, request.param)
    return request.param


@pytest.mark.parametrize("codec", Codec)
def test_round_trip_of_a_mixture(implementation, codec: Codec) -> None:
    records = numbered(sample_records(500), 1_000)
    batch = encode_batch(records, base_offset=1_000, codec=codec)
    header = read_batch_header(batch)
    assert header.codec is codec
    assert header.size_bytes == len(batch)
    assert (header.last_offset, header.record_count) == (1_499, 500)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert verify_crc(batch, 0, header)
    assert decode_records(batch) == records


@pytest.mark.parametrize(("client", "codec"), CASES)
def test_other_clients_batches_are_read(implementation, client: str, codec: Codec) -> None:
    records = sample_records(300)
    batch = oracle_encode(client, records, codec, producer=(5, 1, 77))
    header = read_batch_header(batch)
    assert header.codec is codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 77)
    assert verify_crc(batch, 0, header)
    assert decode_records(batch) == records
    validate_records(batch, 0, header)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)


@pytest.mark.parametrize(("client", "codec"), CASES)
def test_other_clients_read_ours(implementation, client: str, codec: Codec) -> None:
    records = sample_records(300)
    assert oracle_decode(client, bytes(encode_batch(records, codec=codec))) == records


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python"])
def test_uncompressed_bytes_equal_other_clients(implementation, client: str) -> None:
    records = sample_records(200)
    theirs = bytearray(oracle_encode(client, records, Codec.NONE, producer=(3, 4, 5)))
    theirs[12:16] = b"\xff\xff\xff\xff"  # kafka-python says leader epoch 0; not under the CRC
    ours = encode_batch(records, producer_id=3, producer_epoch=4, base_sequence=5)
    assert ours == theirs


@settings(max_examples=150, deadline=None)
@given(records=record_lists, codec=st.sampled_from(Codec), base_offset=st.integers(0, 2**62))
def test_any_records_survive(records: list[Record], codec: Codec, base_offset: int) -> None:
    numbered(records, base_offset)
    batch = encode_batch(records, base_offset=base_offset, codec=codec)
    assert decode_records(batch) == records


@needs_native
@settings(max_examples=150, deadline=None)
@given(records=record_lists)
def test_both_implementations_write_and_read_the_same(records: list[Record]) -> None:
    assert NATIVE is not None
    base = records[0].timestamp_ms if records else 0
    slow, fast = bytearray(b"x"), bytearray(b"x")
    pure.encode_records(slow, records, None, base)
    NATIVE.encode_records(fast, records, None, base)
    assert slow == fast
    for record in records:
        fields = (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        assert pure.encode_record(*fields) == NATIVE.encode_record(*fields)
    arguments = (slow[1:], len(records), 5, base, None)
    assert (
        pure.decode_records(*arguments) == NATIVE.decode_records(*arguments) == numbered(records, 5)
    )


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    encoded = pure.encode_varint(value)
    assert len(encoded) == pure.varint_size(value)
    assert pure.read_varlong(encoded, 0) == (value, len(encoded))
    if -(2**31) <= value < 2**31:
        assert pure.read_varint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
def test_numbers_beyond_64_bits_are_misuse(implementation, value: int) -> None:
    with pytest.raises(OverflowError):
        _implementation.encode_record(0, value, None, None, ())


@pytest.mark.parametrize(
    "record",
    [
        Record(0, 0, "text", b""),  # type: ignore[arg-type]
        Record(0, 0, b"", 5),  # type: ignore[arg-type]
        Record(0, 0, b"", b"", ((None, b""),)),  # type: ignore[arg-type]
        Record(0, 0, b"", b"", (("key", "text"),)),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_bytes_is_misuse(implementation, record: Record) -> None:
    with pytest.raises((TypeError, AttributeError)):
        encode_batch([record])
    with pytest.raises((TypeError, AttributeError)):
        _implementation.encode_record(0, 0, record.key, record.value, record.headers)


def test_bytearrays_and_memoryviews_are_taken(implementation) -> None:
    records = [Record(0, 1, bytearray(b"key"), memoryview(b"value"), (("h", bytearray(b"x")),))]  # type: ignore[arg-type]
    assert decode_records(encode_batch(records)) == [Record(0, 1, b"key", b"value", (("h", b"x"),))]


def test_an_unreadable_header_key_does_not_hide_the_record(implementation) -> None:
    body = b"\x00\x00\x00\x01\x01\x02\x06a\xffb\x01"
    section = pure.encode_varint(len(body)) + body
    (record,) = _implementation.decode_records(section, 1, 0, 0, None)
    assert record.headers == (("a\ufffdb", None),)


def test_gaps_are_kept_on_request(implementation) -> None:
    records = [Record(100, 1, b"a", None), Record(107, 2, b"b", None)]
    batch = encode_batch(records, base_offset=100, keep_offsets=True, last_offset_delta=20)
    assert decode_records(batch) == records
    assert read_batch_header(batch).last_offset == 120
    assert (
        read_batch_header(encode_batch(records, base_offset=100, keep_offsets=True)).last_offset
        == 107
    )


def test_log_append_time_is_every_records_time(implementation) -> None:
    batch = encode_batch(sample_records(9), timestamp_type=TimestampType.LOG_APPEND_TIME)
    highest = read_batch_header(batch).max_timestamp_ms
    assert {record.timestamp_ms for record in decode_records(batch)} == {highest}


@pytest.mark.parametrize("codec", Codec)
def test_an_empty_batch_stays_uncompressed(codec: Codec) -> None:
    batch = encode_batch([], codec=codec)
    assert read_batch_header(batch).codec is Codec.NONE
    assert decode_records(batch) == []


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_recompression_changes_nothing_else(source: Codec, target: Codec) -> None:
    options = {
        "base_offset": 44,
        "producer_id": 5,
        "producer_epoch": 6,
        "base_sequence": 7,
        "is_transactional": True,
        "partition_leader_epoch": 8,
    }
    records = sample_records(50)
    batch = encode_batch(records, codec=source, **options)  # type: ignore[arg-type]
    again, header = recompress(b"pad" + batch, 3, read_batch_header(batch), target)
    assert header == read_batch_header(again)
    assert again == encode_batch(records, codec=target, **options)  # type: ignore[arg-type]


# ---- bad input ---------------------------------------------------------------------------------


def outcome(function, *arguments):
    """The result, or the reason and place of refusal; anything else propagates."""
    try:
        return function(*arguments)
    except InvalidBatch as error:
        return error.reason, error.record_index


def mutate(source: random.Random, data: bytes) -> bytes:
    """A few flips, cuts, insertions or huge varints."""
    mutated = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(len(mutated) + 1)
        kind = source.randrange(5)
        if kind == 0 and at < len(mutated):
            mutated[at] = source.randrange(256)
        elif kind == 1 and at < len(mutated):
            mutated[at] ^= 1 << source.randrange(8)
        elif kind == 2:
            del mutated[at : at + source.choice((1, 2, 50))]
        elif kind == 3:
            mutated[at:at] = source.randbytes(source.choice((1, 3)))
        else:
            huge = source.choice((2**31 - 1, -(2**31), 2**63 - 1, -(2**63), -2, 2**32))
            mutated[at : at + 1] = pure.encode_varint(huge)
    return bytes(mutated)


@needs_native
@pytest.mark.parametrize("seed", range(20))
def test_mutated_records_get_the_same_answer_from_both(seed: int) -> None:
    assert NATIVE is not None
    source = random.Random(seed)
    records = sample_records(12, seed)
    section = bytes(encode_batch(records)[61:])
    refused = 0
    for _ in range(500):
        data = mutate(source, section)
        count = source.choice((12, 12, 12, 11, 13, 0, -1, 2**31 - 1))
        base = source.choice((0, records[0].timestamp_ms, 2**63 - 1, -(2**63)))
        slow = outcome(pure.decode_records, data, count, 3, base, None)
        assert outcome(NATIVE.decode_records, data, count, 3, base, None) == slow
        slow_scan = outcome(pure.scan_records, data, count, base, True)
        assert outcome(NATIVE.scan_records, data, count, base, True) == slow_scan
        refused += isinstance(slow, tuple)
    assert refused > 300


@pytest.mark.parametrize("codec", Codec)
def test_mutated_batches_raise_only_invalid_batch(implementation, codec: Codec) -> None:
    source = random.Random(int(codec))
    batch = bytes(encode_batch(sample_records(20), codec=codec))
    refused = 0
    for _ in range(400):
        data = batch[:61] + mutate(source, batch[61:])
        data = data[:8] + struct.pack(">i", len(data) - 12) + data[12:]
        if source.randrange(4) == 0:
            data = mutate(source, data)
        # `outcome` lets nothing but InvalidBatch pass, which it turns into a tuple.
        refused += isinstance(outcome(decode_records, data), tuple)
        outcome(lambda data: validate_records(data, 0, read_batch_header(data)), data)
    assert refused > 0


@pytest.mark.parametrize(
    ("section", "count", "reason"),
    [
        (b"", 1, InvalidBatchReason.BAD_COUNT),
        (b"", -1, InvalidBatchReason.BAD_COUNT),
        (b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 1, InvalidBatchReason.BAD_COUNT),
        (b"\x0c\x00\x00\x00\x01\x01\x00" + b"\x0c\x00\x00\x00\x01\x01\x02" * 1, 2, None),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, InvalidBatchReason.BAD_RECORD),
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1, InvalidBatchReason.BAD_RECORD),
        (b"\x7f\x00\x00\x00\x01\x01\x00", 1, InvalidBatchReason.BAD_RECORD),
        (b"\x0b\x00\x00\x00\x01\x01\x00", 1, InvalidBatchReason.BAD_RECORD),
        (b"\x0c\x00\x00\x00\x03\x01\x00", 1, InvalidBatchReason.BAD_RECORD),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, InvalidBatchReason.BAD_RECORD),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", 1, InvalidBatchReason.BAD_RECORD),
        (b"\x0e\x00\x00\x00\x01\x01\x02\x01\x01", 1, InvalidBatchReason.BAD_RECORD),
    ],
)
def test_each_malformation(implementation, section: bytes, count: int, reason) -> None:
    with pytest.raises(InvalidBatch) as caught:
        _implementation.decode_records(section, count, 0, 0, None)
    assert caught.value.reason is (reason or InvalidBatchReason.BAD_RECORD)


def test_an_out_of_range_base_offset_is_refused(implementation) -> None:
    batch = encode_batch(sample_records(1), base_offset=2**63 - 1)
    with pytest.raises(InvalidBatch) as caught:
        records_section(batch, 0, read_batch_header(batch))
    assert caught.value.reason is InvalidBatchReason.BAD_OFFSET


# ---- size ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(records=record_lists)
def test_the_size_bound_holds(records: list[Record]) -> None:
    for record in records:
        batch = encode_batch([record])
        bound = record_size_bound(record.key, record.value, record.headers)
        assert len(batch) <= BATCH_HEADER_SIZE + bound
