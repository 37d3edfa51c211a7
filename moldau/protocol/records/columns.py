"""Batches to and from flat columns, for consumers and producers of many records at once.

Owns `RecordColumns` and its layout, which is Apache Arrow's, so that a table can be built around
the buffers without copying: fixed-width columns are native-endian, offsets int32 with one entry
more than rows, validity a bitmap (lowest bit first, 1 = present) or None when nothing is null.
Must not import Arrow or numpy. Invariant: every buffer is as long as the counts say, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.protocol.records import _implementation
from moldau.protocol.records.batch import append_time_ms, finish_batch, records_section
from moldau.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from moldau.protocol.records.crc import Buffer
from moldau.protocol.records.header import (
    BATCH_HEADER_SIZE,
    CURRENT_MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
    increment_sequence,
    iter_batches,
    read_batch_header,
)

_MAX_BATCH_BYTES: Final = 2**31 - 1


@dataclass(slots=True)
class BytesColumn:
    """Nullable byte strings: row i is `data[offsets[i]:offsets[i + 1]]`.

    `offsets` None (for encoding): every row is null. `validity` None: no row is null.
    """

    offsets: Buffer | None = None
    validity: Buffer | None = None
    data: Buffer | None = None


@dataclass(slots=True)
class RecordColumns:
    """Records as columns. All buffers are flat; decoded ones are exact and own their memory.

    `offsets`, `timestamps_ms`: int64 per row (None when encoding: offsets are assigned anyway,
    timestamps then come from the call). Headers of row i are the entries `header_offsets[i]` to
    `header_offsets[i + 1]` of `header_keys` (raw UTF-8 as sent, not verified; never null) and
    `header_values`; `header_offsets` None: no row has headers.
    """

    row_count: int
    offsets: Buffer | None
    timestamps_ms: Buffer | None
    keys: BytesColumn
    values: BytesColumn
    header_offsets: Buffer | None = None
    header_keys: BytesColumn | None = None
    header_values: BytesColumn | None = None


def decode_columns(
    buffer: Buffer,
    positions: Sequence[int] | None = None,
    *,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> RecordColumns:
    """Decode the batches at `positions` (default: all in the buffer but control batches).

    `max_bytes` limits the decompressed sections of all batches together. CRCs are the caller's
    (`verify_crc`). Raises: InvalidBatch, its position that of the batch at fault.
    """
    if positions is None:
        headers = [pair for pair in iter_batches(buffer) if not pair[1].is_control]
    else:
        headers = [(position, read_batch_header(buffer, position)) for position in positions]
    sections = []
    for position, header in headers:
        section = records_section(buffer, position, header, max_bytes)
        if header.is_compressed:
            max_bytes -= len(section)
        sections.append(
            (
                position,
                section,
                header.record_count,
                header.base_offset,
                header.base_timestamp_ms,
                append_time_ms(header),
            )
        )
    count, offsets, timestamps, keys, values, headers_found = (
        _implementation.decode_column_sections(sections)
    )
    columns = RecordColumns(
        count,
        memoryview(offsets).cast("q"),
        memoryview(timestamps).cast("q"),
        _bytes_column(*keys),
        _bytes_column(*values),
    )
    if headers_found is not None:
        header_offsets, key_offsets, key_data, header_values = headers_found
        columns.header_offsets = memoryview(header_offsets).cast("i")
        columns.header_keys = _bytes_column(key_offsets, None, key_data)
        columns.header_values = _bytes_column(*header_values)
    return columns


def _bytes_column(offsets: bytearray, validity: bytearray | None, data: bytearray) -> BytesColumn:
    return BytesColumn(
        memoryview(offsets).cast("i"),
        None if validity is None else memoryview(validity),
        memoryview(data),
    )


def encode_columns(
    columns: RecordColumns,
    *,
    start: int = 0,
    row_count: int | None = None,
    max_batch_bytes: int = _MAX_BATCH_BYTES,
    timestamp_ms: int = NO_TIMESTAMP,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> list[bytearray]:
    """Encode rows `start` to `start + row_count` into batches of at most `max_batch_bytes` each.

    The limit counts uncompressed bytes; a single row that exceeds it gets a batch of its own.
    Offsets and sequences go on from batch to batch. `timestamp_ms` is for all rows when there is
    no timestamp column. Raises: ValueError when the buffers are shorter than the offsets say,
    OverflowError when a batch would exceed 2 GB.
    """
    stop = columns.row_count if row_count is None else start + row_count
    if not 0 <= start <= stop <= columns.row_count:
        raise ValueError(f"rows {start}..{stop} of {columns.row_count}")
    buffers = _row_buffers(columns)
    max_batch_bytes = min(max_batch_bytes, _MAX_BATCH_BYTES)
    batches = []
    while start < stop:
        out, next_row, base_ms, max_ms = _implementation.encode_rows(
            buffers, start, stop, max_batch_bytes, BATCH_HEADER_SIZE, timestamp_ms
        )
        count = next_row - start
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=partition_leader_epoch,
            magic=CURRENT_MAGIC,
            crc=0,
            attributes=codec | (TRANSACTIONAL_BIT if is_transactional else 0),
            last_offset_delta=count - 1,
            base_timestamp_ms=base_ms,
            max_timestamp_ms=max_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=count,
        )
        batches.append(finish_batch(out, header, compression_level))
        base_offset += count
        if base_sequence != NO_SEQUENCE:
            base_sequence = increment_sequence(base_sequence, count)
        start = next_row
    return batches


def _row_buffers(
    columns: RecordColumns,
) -> tuple[
    Buffer | None,
    tuple[Buffer | None, Buffer | None, Buffer | None],
    tuple[Buffer | None, Buffer | None, Buffer | None],
    Buffer | None,
    tuple[Buffer | None, Buffer | None, Buffer | None],
    tuple[Buffer | None, Buffer | None, Buffer | None],
]:
    none = BytesColumn()
    header_keys = columns.header_keys or none
    header_values = columns.header_values or none
    keys, values = columns.keys, columns.values
    return (
        columns.timestamps_ms,
        (keys.offsets, keys.validity, keys.data),
        (values.offsets, values.validity, values.data),
        columns.header_offsets,
        (header_keys.offsets, header_keys.validity, header_keys.data),
        (header_values.offsets, header_values.validity, header_values.data),
    )
