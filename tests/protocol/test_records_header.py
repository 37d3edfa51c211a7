"""Batch headers: reading, iterating, CRC, patching in place, and every way they can be wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    Codec,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    TimestampType,
    decode_records,
    encode_batch,
    increment_sequence,
    iter_batches,
    patch_batch,
    patch_log_append_time,
    read_batch_header,
    verify_crc,
)

from .records_strategies import sample_records

# One record, key b"k", value b"v", timestamp 1000, laid out by hand; the CRC was computed over
# bytes 21 to the end with kafka-python 3.0.12's plain Python CRC-32C (kafka.record._crc32c).
GOLDEN = bytes.fromhex(
    "0000000000000000"
    "0000003a"
    "ffffffff"
    "02"
    "716a6189"
    "0000"
    "00000000"
    "00000000000003e8"
    "00000000000003e8"
    "ffffffffffffffff"
    "ffff"
    "ffffffff"
    "00000001"
    "10"
    "00"
    "00"
    "00"
    "02"
    "6b"
    "02"
    "76"
    "00"
)


def test_golden_batch_reads_and_writes_to_the_same_bytes() -> None:
    header = read_batch_header(GOLDEN)
    assert (header.base_offset, header.batch_length, header.record_count) == (0, 58, 1)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (70, 0, 1)
    assert header.partition_leader_epoch == -1
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.codec is Codec.NONE
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert not header.has_producer_id
    assert header.last_sequence == -1
    assert verify_crc(GOLDEN, 0, header)
    assert decode_records(GOLDEN) == [Record(0, 1000, b"k", b"v")]
    assert encode_batch([Record(0, 1000, b"k", b"v")]) == GOLDEN


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_and_position(kind) -> None:
    batches = [encode_batch(sample_records(n, n), base_offset=n) for n in (1, 5, 9)]
    buffer = kind(b"".join(batches))
    found = list(iter_batches(buffer))
    assert [header.base_offset for _, header in found] == [1, 5, 9]
    assert [position for position, _ in found] == [
        0,
        len(batches[0]),
        len(batches[0]) + len(batches[1]),
    ]
    for position, header in found:
        assert verify_crc(buffer, position, header)
        assert len(decode_records(buffer, position)) == header.record_count
    with pytest.raises(InvalidBatch) as caught:
        list(iter_batches(buffer[: found[2][0] + 70]))
    assert caught.value.position == found[2][0]


def test_truncation_at_every_byte_is_reported_at_the_right_batch() -> None:
    whole = encode_batch(sample_records(2)) + encode_batch(sample_records(1))
    second = read_batch_header(whole).size_bytes
    for size in range(1, len(whole)):
        if size == second:
            assert len(list(iter_batches(whole[:size]))) == 1
            continue
        with pytest.raises(InvalidBatch) as caught:
            list(iter_batches(whole[:size]))
        assert caught.value.reason is InvalidBatchReason.TRUNCATED
        assert caught.value.position == (0 if size < second else second)


def test_wrong_magic_is_named_even_when_the_old_message_is_short() -> None:
    for magic in (0, 1, 3, 255):
        batch = bytearray(GOLDEN)
        batch[16] = magic
        for size in (17, 30, len(batch)):
            with pytest.raises(InvalidBatch) as caught:
                read_batch_header(batch[:size])
            assert caught.value.reason is InvalidBatchReason.BAD_MAGIC
            assert caught.value.reason.error_name == "INVALID_RECORD"


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_below_a_header_is_refused_and_never_loops(length: int) -> None:
    batch = bytearray(GOLDEN)
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(InvalidBatch) as caught:
        list(iter_batches(batch))
    assert caught.value.reason is InvalidBatchReason.BAD_LENGTH


def test_a_length_beyond_the_buffer_is_truncated() -> None:
    batch = bytearray(GOLDEN)
    batch[8:12] = (2**31 - 1).to_bytes(4, "big")
    header = read_batch_header(batch)
    for call in (
        lambda: verify_crc(batch, 0, header),
        lambda: decode_records(batch),
        lambda: patch_log_append_time(batch, 0, header, 5),
    ):
        with pytest.raises(InvalidBatch) as caught:
            call()
        assert caught.value.reason is InvalidBatchReason.TRUNCATED


def test_every_flipped_bit_under_the_crc_is_noticed() -> None:
    for at in range(17, len(GOLDEN)):
        for bit in range(8):
            batch = bytearray(GOLDEN)
            batch[at] ^= 1 << bit
            assert not verify_crc(batch, 0, read_batch_header(batch))


def test_patching_offset_and_epoch_keeps_the_crc() -> None:
    batch = bytearray(b"before") + GOLDEN
    with memoryview(batch) as view:
        patch_batch(view, 6, base_offset=2**62, partition_leader_epoch=7)
    header = read_batch_header(batch, 6)
    assert (header.base_offset, header.partition_leader_epoch) == (2**62, 7)
    assert verify_crc(batch, 6, header)
    assert decode_records(batch, 6)[0].offset == 2**62
    assert batch[:6] == b"before"


def test_log_append_time_replaces_every_timestamp() -> None:
    batch = encode_batch(sample_records(10), codec=Codec.LZ4)
    header = read_batch_header(batch)
    patch_log_append_time(batch, 0, header, 42)
    assert header == read_batch_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert verify_crc(batch, 0, header)
    assert {record.timestamp_ms for record in decode_records(batch)} == {42}


def test_sequences_wrap() -> None:
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 2**31 - 2}
    header = read_batch_header(encode_batch(sample_records(3), **producer))  # type: ignore[arg-type]
    assert header.has_producer_id
    assert header.last_sequence == 0
    assert increment_sequence(2**31 - 1, 1) == 0


def test_attribute_bits() -> None:
    header = read_batch_header(
        encode_batch(
            sample_records(1),
            codec=Codec.ZSTD,
            is_transactional=True,
            is_control=True,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
        )
    )
    assert header.attributes == 0b111100
    header.attributes |= 0x40
    assert header.has_delete_horizon
    header.attributes = 7
    assert header.is_compressed
    with pytest.raises(InvalidBatch) as caught:
        _ = header.codec
    assert caught.value.reason is InvalidBatchReason.BAD_ATTRIBUTES


def test_sizes_are_the_documented_ones() -> None:
    assert (BATCH_HEADER_SIZE, LOG_OVERHEAD) == (61, 12)
    assert len(encode_batch([])) == 61


@pytest.mark.real
@pytest.mark.parametrize("pure", ["", "1"])
def test_import_loads_no_codec_library_and_honours_the_switch(pure: str) -> None:
    code = (
        "import sys, moldau.protocol.records as r\n"
        "print(r.IMPLEMENTATION)\n"
        "print(sorted({'cramjam', 'lz4', 'lz4.frame', 'argparse', 'importlib.metadata', 'asyncio'}"
        " & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MOLDAU_PURE_PYTHON": pure},
        capture_output=True,
        text=True,
        check=True,
    )
    implementation, modules = run.stdout.splitlines()
    assert modules == "[]"
    assert implementation in ({"pure Python"} if pure else {"pure Python", "native"})
