"""What a broker refuses, rule by rule (its CRC: `test_records_header`), and control records."""

from __future__ import annotations

import struct

import pytest

from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    TimestampType,
    _implementation,
    decode_control_key,
    decode_end_txn_marker,
    decode_records,
    encode_batch,
    encode_control_batch,
    encode_end_txn_batch,
    patch_log_append_time,
    read_batch_header,
    records_section,
    scan_keys,
    validate_header,
    validate_records,
    verify_crc,
)
from moldau.protocol.records.control import encode_control_key

from .records_strategies import native_module, sample_records, use_implementation

Reason = InvalidBatchReason
needs_native = pytest.mark.skipif(native_module() is None, reason="the extension is not built")


@pytest.fixture(autouse=True, params=["pure", pytest.param("native", marks=needs_native)])
def implementation(request, monkeypatch) -> str:
    use_implementation(monkeypatch, request.param)
    return request.param


def refusal(buffer: bytes | bytearray, position: int = 0, **options) -> InvalidBatch:
    with pytest.raises(InvalidBatch) as caught:
        validate_records(buffer, position, read_batch_header(buffer, position), **options)
    return caught.value


def changed(at: int, form: str, value: int, **options) -> bytearray:
    batch = encode_batch(sample_records(3), **options)
    struct.pack_into(form, batch, at, value)
    return batch


@pytest.mark.parametrize("codec", Codec)
def test_a_good_batch_passes_and_is_summed_up(codec: Codec) -> None:
    records = [Record(0, time, b"k", b"v") for time in (50, 90, 10, 90)]
    batch = encode_batch(records, codec=codec)
    header = read_batch_header(batch)
    validate_records(batch, 0, header)
    scan_keys(batch, 0, header)
    section = records_section(batch, 0, header)
    summary = _implementation.scan_records(section, 4, header.base_timestamp_ms, True)
    assert summary == (10, 90, 1)


def test_log_append_time_is_for_brokers() -> None:
    batch = encode_batch([Record(0, time, None, b"") for time in (5, 9, 7)])
    patch_log_append_time(batch, 0, read_batch_header(batch), 1_000)
    validate_records(batch, 0, read_batch_header(batch), from_client=False)
    assert refusal(batch).reason is Reason.BAD_TIMESTAMP


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (changed(0, ">q", 5), Reason.BAD_OFFSET),
        (changed(23, ">i", 3), Reason.BAD_COUNT),
        (changed(23, ">i", 1), Reason.BAD_COUNT),
        (changed(23, ">i", -1), Reason.BAD_COUNT),
        (changed(57, ">i", 2), Reason.BAD_COUNT),
        (changed(57, ">i", 4), Reason.BAD_COUNT),
        (changed(57, ">i", 0), Reason.BAD_COUNT),
        (changed(57, ">i", -5), Reason.BAD_COUNT),
        (changed(57, ">i", 2**31 - 1), Reason.BAD_COUNT),
        (changed(21, ">h", 5), Reason.BAD_ATTRIBUTES),
        (changed(21, ">h", 4), Reason.BAD_COMPRESSION),
        (changed(21, ">h", 0x10), Reason.BAD_PRODUCER),
        (encode_batch([]), Reason.BAD_COUNT),
        (encode_batch(sample_records(1), is_control=True), Reason.BAD_CONTROL),
        (
            encode_batch(sample_records(1), timestamp_type=TimestampType.LOG_APPEND_TIME),
            Reason.BAD_TIMESTAMP,
        ),
        (
            encode_batch(sample_records(1), producer_id=1, producer_epoch=0, base_sequence=-1),
            Reason.BAD_SEQUENCE,
        ),
        (
            encode_batch(sample_records(1), producer_id=1, producer_epoch=-1, base_sequence=0),
            Reason.BAD_PRODUCER,
        ),
    ],
)
def test_each_rule_for_clients(batch: bytearray, reason: InvalidBatchReason) -> None:
    assert refusal(batch).reason is reason


def test_record_count_and_offset_delta_wrong_together() -> None:
    batch = changed(57, ">i", 2)
    struct.pack_into(">i", batch, 23, 1)
    assert refusal(batch).reason is Reason.BAD_COUNT
    batch = changed(57, ">i", 4)
    struct.pack_into(">i", batch, 23, 3)
    assert refusal(batch).reason is Reason.BAD_COUNT


def test_offset_deltas_must_count() -> None:
    records = [Record(offset, 0, b"k", None) for offset in (0, 2, 1)]
    batch = encode_batch(records, keep_offsets=True, last_offset_delta=2)
    error = refusal(b"x" * 9 + batch, 9)
    assert (error.reason, error.record_index, error.position) == (Reason.BAD_OFFSET, 1, 9)
    assert error.reason.error_name == "INVALID_RECORD"
    assert "byte 9, record 1" in str(error)


@pytest.mark.parametrize("codec", Codec)
def test_compacted_topics_need_keys(codec: Codec) -> None:
    records = [Record(0, 0, b"", b""), Record(0, 0, None, b"")]
    batch = encode_batch(records, codec=codec)
    validate_records(batch, 0, read_batch_header(batch))
    with pytest.raises(InvalidBatch) as caught:
        scan_keys(batch, 0, read_batch_header(batch))
    assert (caught.value.reason, caught.value.record_index) == (Reason.MISSING_KEY, 1)


def test_a_batch_that_grows_beyond_the_limit_is_refused() -> None:
    batch = encode_batch([Record(0, 0, None, bytes(100_000))], codec=Codec.ZSTD)
    with pytest.raises(InvalidBatch) as caught:
        decode_records(batch, max_bytes=50_000)
    reason = caught.value.reason
    assert (reason, reason.error_name) == (Reason.TOO_LARGE, "MESSAGE_TOO_LARGE")


def test_replicated_batches_may_be_what_clients_must_not_write() -> None:
    batch = encode_end_txn_batch(
        EndTxnMarker(ControlRecordType.COMMIT, 4),
        producer_id=7,
        producer_epoch=1,
        timestamp_ms=9,
        base_offset=33,
    )
    header = read_batch_header(batch)
    validate_records(batch, 0, header, from_client=False)
    with pytest.raises(InvalidBatch):
        validate_header(header)
    empty = encode_batch([], base_offset=3, last_offset_delta=4)
    validate_header(read_batch_header(empty), from_client=False)


def test_replicated_batches_obey_the_rest() -> None:
    compressed = encode_batch(
        [Record(0, 1, encode_control_key(ControlRecordType.COMMIT), bytes(6))],
        codec=Codec.GZIP,
        is_control=True,
    )
    assert refusal(compressed, from_client=False).reason is Reason.BAD_CONTROL
    for key in (None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x00"):
        batch = encode_batch([Record(0, 1, key, b"")], is_control=True)
        error = refusal(batch, from_client=False)
        assert (error.reason, error.record_index) == (Reason.BAD_CONTROL, 0)


# ---- control records ---------------------------------------------------------------------------


@pytest.mark.parametrize("record_type", [ControlRecordType.ABORT, ControlRecordType.COMMIT])
def test_transaction_markers(record_type: ControlRecordType) -> None:
    batch = encode_end_txn_batch(
        EndTxnMarker(record_type, 12),
        producer_id=7,
        producer_epoch=3,
        timestamp_ms=99,
        base_offset=5,
        partition_leader_epoch=2,
    )
    header = read_batch_header(batch)
    assert verify_crc(batch, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    (record,) = decode_records(batch)
    assert (record.offset, record.timestamp_ms) == (5, 99)
    # Layout of KIP-98: key = version, type; value = version, coordinator epoch.
    assert record.key == struct.pack(">hh", 0, record_type)
    assert record.value == struct.pack(">hi", 0, 12)
    assert decode_end_txn_marker(record) == EndTxnMarker(record_type, 12)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (b"\x00\x00", bytes(6)),
        (struct.pack(">hh", 0, 2), bytes(6)),
        (struct.pack(">hh", 0, 99), bytes(6)),
        (struct.pack(">hh", 0, 1), None),
        (struct.pack(">hh", 0, 1), bytes(5)),
        (struct.pack(">hh", 0, 1), struct.pack(">hi", -1, 0)),
    ],
)
def test_bad_markers_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidBatch) as caught:
        decode_end_txn_marker(Record(0, 0, key, value))
    assert caught.value.reason is Reason.BAD_CONTROL


def test_markers_and_keys_of_newer_versions_are_read_as_far_as_known() -> None:
    record = Record(0, 0, struct.pack(">hhq", 1, 1, 5), struct.pack(">hiq", 1, 6, 5))
    assert decode_end_txn_marker(record) == EndTxnMarker(ControlRecordType.COMMIT, 6)
    assert decode_control_key(struct.pack(">hh", 0, 77)).type == 77


def test_quorum_control_batches_carry_values_as_they_are() -> None:
    values = [(kind, bytes([kind] * 3)) for kind in list(ControlRecordType)[2:]]
    batch = encode_control_batch(values, timestamp_ms=4, base_offset=70, partition_leader_epoch=6)
    header = read_batch_header(batch)
    assert header.is_control
    assert not header.is_transactional
    assert header.partition_leader_epoch == 6
    validate_records(batch, 0, header, from_client=False)
    found = [
        (decode_control_key(record.key).type, record.value) for record in decode_records(batch)
    ]
    assert found == values


def test_aiokafka_reads_our_markers() -> None:
    from aiokafka.record.control_record import ABORT_MARKER, ControlRecord

    assert ControlRecord.parse(encode_control_key(ControlRecordType.ABORT)) == ABORT_MARKER
