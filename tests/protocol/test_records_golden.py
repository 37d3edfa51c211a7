"""Batches that Apache Kafka wrote (provenance: golden/records/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    Record,
    decode_columns,
    decode_end_txn_marker,
    decode_records,
    encode_batch,
    encode_end_txn_batch,
    read_batch_header,
    recompress,
    validate_records,
    verify_crc,
)

from .records_strategies import native_module, use_implementation

GOLDEN = Path(__file__).parent / "golden" / "records"
FILES = {
    "java-none": Codec.NONE,
    "java-gzip": Codec.GZIP,
    "java-gzip-9": Codec.GZIP,
    "java-snappy": Codec.SNAPPY,
    "java-lz4": Codec.LZ4,
    "java-lz4-17": Codec.LZ4,
    "java-zstd": Codec.ZSTD,
    "java-zstd-22": Codec.ZSTD,
    "java-zstd-m5": Codec.ZSTD,
}
needs_native = pytest.mark.skipif(native_module() is None, reason="the extension is not built")


@pytest.fixture(autouse=True, params=["pure", pytest.param("native", marks=needs_native)])
def implementation(request, monkeypatch) -> str:
    use_implementation(monkeypatch, request.param)
    return request.param


def expected_records(with_big: bool) -> list[Record]:
    records = []
    for index in range(100):
        value = b'{"carrier":"UA","flight":%d}' % index * (index % 11)
        records.append(
            Record(
                1_000 + index,
                1_700_000_000_000 + index * 37 % 1_000,
                b"key-%d" % index if index % 5 else None,
                value if index % 7 else None,
                () if index % 3 else (("trace", bytes([index])), ("ž", None)),
            )
        )
    if with_big:
        records.append(Record(1_100, 1_700_000_000_500, b"big", b"0123456789" * 20_000))
    return records


@pytest.mark.parametrize(("name", "codec"), FILES.items())
def test_kafkas_batches_are_read(name: str, codec: Codec) -> None:
    batch = (GOLDEN / f"{name}.batch").read_bytes()
    records = expected_records(codec is not Codec.NONE)
    header = read_batch_header(batch)
    assert header.codec is codec
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4242, 3, 17)
    assert header.is_transactional
    assert verify_crc(batch, 0, header)
    assert decode_records(batch) == records
    assert decode_columns(batch).row_count == len(records)
    validate_records(batch, 0, header, from_client=False)
    assert header.max_timestamp_ms == 1_700_000_000_999


@pytest.mark.parametrize(("name", "codec"), FILES.items())
def test_uncompressed_they_are_our_bytes(name: str, codec: Codec) -> None:
    batch = (GOLDEN / f"{name}.batch").read_bytes()
    ours = encode_batch(
        expected_records(codec is not Codec.NONE),
        base_offset=1_000,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=17,
        is_transactional=True,
        partition_leader_epoch=9,
    )
    assert recompress(batch, 0, read_batch_header(batch), Codec.NONE)[0] == ours


def test_the_transaction_marker_is_byte_for_byte_kafkas() -> None:
    batch = (GOLDEN / "java-commit-marker.batch").read_bytes()
    marker = EndTxnMarker(ControlRecordType.COMMIT, 8)
    (record,) = decode_records(batch)
    assert decode_end_txn_marker(record) == marker
    ours = encode_end_txn_batch(
        marker,
        producer_id=5,
        producer_epoch=6,
        timestamp_ms=1_700_000_000_000,
        base_offset=77,
        partition_leader_epoch=2,
    )
    assert ours == batch
