"""Whole batches: decode to records, encode from records, change the compression.

CRCs are the callers': they verify once, where bytes enter. What `encode_batch` writes,
`decode_records` gives back, offsets counted from base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from moldau.protocol.records import _implementation
from moldau.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, compress, decompress
from moldau.protocol.records.header import (
    BATCH_HEADER_SIZE,
    CODEC_MASK,
    CONTROL_BIT,
    MAX_BASE_OFFSET,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
    TimestampType,
    check_whole,
    read_batch_header,
    write_header,
)
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.pure import varint_size
from moldau.protocol.records.record import Record
from moldau.protocol.types import Buffer

_MAX_FIXED_RECORD_BYTES: Final = 5 + 1 + 10 + 5
"""Length, attributes, timestamp delta and offset delta at their longest."""


def records_section(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Buffer:
    """The uncompressed bytes of a batch's records (a view of `buffer` when it is uncompressed).

    Raises InvalidBatch: TRUNCATED, BAD_ATTRIBUTES, BAD_COMPRESSION, TOO_LARGE or BAD_OFFSET.
    """
    end = check_whole(buffer, position, header)
    if not 0 <= header.base_offset <= MAX_BASE_OFFSET:
        raise InvalidBatch(
            InvalidBatchReason.BAD_OFFSET,
            f"base offset {header.base_offset} is out of range",
            position=position,
        )
    section = memoryview(buffer)[position + BATCH_HEADER_SIZE : end]
    if not header.is_compressed:
        return section
    try:
        if not header.record_count and not section:
            return section
        return decompress(section, header.codec, max_bytes)
    except InvalidBatch as error:
        raise error.at(position) from None


def decode_records(
    buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """The records of the batch at `position`; compressed ones grow to `max_bytes` at most.

    The CRC is not checked (`verify_crc`), control batches decode like others. Raises InvalidBatch.
    """
    header = read_batch_header(buffer, position)
    section = records_section(buffer, position, header, max_bytes)
    try:
        return _implementation.decode_records(
            section,
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            append_time_ms(header),
        )
    except InvalidBatch as error:
        raise error.at(position) from None


def append_time_ms(header: BatchHeader) -> int | None:
    """The one timestamp of all records of a LOG_APPEND_TIME batch, else None."""
    return header.max_timestamp_ms if header.attributes & TIMESTAMP_TYPE_BIT else None


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    compression_level: int | None = None,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Encode records into one batch, CRC included.

    Records get the offsets `base_offset`, +1, +2 … whatever their `offset` says, unless
    `keep_offsets`: then gaps stay, and `last_offset_delta` may keep the end of a batch whose last
    records were removed (compaction). Raises ValueError, TypeError or struct.error on values that
    have no encoding (misuse, not bad input).
    """
    out = bytearray(BATCH_HEADER_SIZE)
    base_timestamp_ms = records[0].timestamp_ms if records else NO_TIMESTAMP
    _implementation.encode_records(
        out, records, base_offset if keep_offsets else None, base_timestamp_ms
    )
    if last_offset_delta is None:
        last_offset_delta = len(records) - 1
        if keep_offsets and records:
            last_offset_delta = records[-1].offset - base_offset
    attributes = int(codec)
    attributes |= TIMESTAMP_TYPE_BIT if timestamp_type else 0
    attributes |= TRANSACTIONAL_BIT if is_transactional else 0
    attributes |= CONTROL_BIT if is_control else 0
    header = BatchHeader(
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max((r.timestamp_ms for r in records), default=NO_TIMESTAMP),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return finish_batch(out, header, compression_level)


def finish_batch(
    out: bytearray, header: BatchHeader, compression_level: int | None = None
) -> bytearray:
    """Compress what follows the header space in `out` as `header` says, write header and CRC.

    An empty batch is never compressed, as Kafka writes it.
    """
    compress_batch(out, header, compression_level)
    write_header(out, header)
    return out


def compress_batch(
    out: bytearray, header: BatchHeader, compression_level: int | None = None
) -> None:
    """Compress what follows the header space in `out` as `header` says, and write no header."""
    codec = header.codec
    if codec is not Codec.NONE:
        if len(out) == BATCH_HEADER_SIZE:
            header.attributes &= ~CODEC_MASK
        else:
            with memoryview(out) as view, view[BATCH_HEADER_SIZE:] as section:
                compressed = compress(section, codec, compression_level)
            out[BATCH_HEADER_SIZE:] = compressed


def recompress(
    buffer: Buffer, position: int, header: BatchHeader, codec: Codec, level: int | None = None
) -> tuple[bytearray, BatchHeader]:
    """The same batch with its records under another codec, and its header; all else is kept.

    Raises InvalidBatch as `records_section`; ValueError on a level out of range.
    """
    section = records_section(buffer, position, header)
    out = bytearray(BATCH_HEADER_SIZE)
    out += section
    new_header = replace(header, attributes=header.attributes & ~CODEC_MASK | codec)
    return finish_batch(out, new_header, level), new_header


def record_size_bound(
    key: Buffer | None, value: Buffer | None, headers: Sequence[tuple[str, bytes | None]] = ()
) -> int:
    """Upper bound of the encoded, uncompressed size of a record in bytes."""
    size = _MAX_FIXED_RECORD_BYTES + varint_size(len(headers))
    for part in (key, value):
        size += 1 if part is None else varint_size(len(part)) + len(part)
    for header_key, header_value in headers:
        key_bytes = len(header_key.encode())
        size += varint_size(key_bytes) + key_bytes
        size += 1 if header_value is None else varint_size(len(header_value)) + len(header_value)
    return size
