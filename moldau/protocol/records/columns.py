"""Batches to and from flat columns, for consumers and producers of many records at once.

Owns `RecordColumns` and its layout, which is Apache Arrow's, so that a table can be built around
the buffers without copying: fixed-width columns are native-endian, offsets int32 with one entry
more than rows, validity a bitmap (lowest bit first, 1 = present) or None when nothing is null.
Must not import Arrow or numpy. Invariant: every buffer is as long as the counts say, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.constants import MAX_INT32
from moldau.protocol.records import _implementation
from moldau.protocol.records.batch import append_time_ms, compress_batch, records_section
from moldau.protocol.records.columns_pure import DecodedColumns, RowBuffers, StringColumn
from moldau.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from moldau.protocol.records.header import (
    BATCH_HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    iter_batches,
    read_batch_header,
)
from moldau.protocol.types import Buffer

if TYPE_CHECKING:
    from moldau.protocol.records._implementation import RecordCursor
    from moldau.protocol.reusable_memory import ReusableMemory


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
    (`verify_crc`). Raises InvalidBatch, its position that of the batch at fault.
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
    return columns_of(_implementation.decode_column_sections(sections))


def take_columns(
    cursors: Sequence[RecordCursor],
    max_records: int | None = None,
    *,
    memory: ReusableMemory | None = None,
) -> tuple[list[int], RecordColumns]:
    """Take up to `max_records` records (None: all) from the cursors, in order, into columns.

    Returns (records taken from each cursor, columns). A record that cannot be read ends it before
    that record; when it is the first one, InvalidBatch is raised. `memory`: for the values; a
    buffer of it is used again as soon as no view of the values is left.
    """
    counts, columns = _implementation.decode_cursors(
        cursors, max_records, None if memory is None else memory.take
    )
    return counts, columns_of(columns)


def columns_of(decoded: DecodedColumns) -> RecordColumns:
    """The raw buffers of `decode_column_sections` with their names and types."""
    count, offsets, timestamps, keys, values, headers_found = decoded
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


class ColumnEncoder:
    """Batches from columns one by one, for callers that wait between them or stamp them later.

    `selection`: int32 row numbers in native order; `start` and `stop` then count its entries, and
    the rows lie in the batch in their order. None: all rows of the columns.
    """

    __slots__ = ("_buffers", "_selection")

    def __init__(self, columns: RecordColumns, selection: Buffer | None = None) -> None:
        self._buffers = _row_buffers(columns)
        self._selection = selection

    def next_batch(
        self,
        start: int,
        stop: int,
        *,
        max_batch_bytes: int = MAX_INT32,
        timestamp_ms: int = NO_TIMESTAMP,
        codec: Codec = Codec.NONE,
        compression_level: int | None = None,
    ) -> tuple[bytearray, BatchHeader, int]:
        """One batch of as many rows from `start` on as fit, one at least.

        Returns (space for the header and the compressed records, the header that belongs there,
        where the next batch starts). The header names no producer and has no offset; the caller
        fills these in and calls `write_header`.

        Args:
            max_batch_bytes: uncompressed; a single row that exceeds it gets its own batch.
            timestamp_ms: of all rows when there is no timestamp column.

        Raises:
            ValueError: the buffers are shorter than the offsets say.
            OverflowError: the batch would exceed 2 GB.
        """
        out, next_row, base_ms, max_ms = _implementation.encode_rows(
            self._buffers,
            start,
            stop,
            min(max_batch_bytes, MAX_INT32),
            BATCH_HEADER_SIZE,
            timestamp_ms,
            self._selection,
        )
        count = next_row - start
        header = BatchHeader(
            attributes=int(codec),
            last_offset_delta=count - 1,
            base_timestamp_ms=base_ms,
            max_timestamp_ms=max_ms,
            record_count=count,
        )
        compress_batch(out, header, compression_level)
        return out, header, next_row


def string_buffers(column: BytesColumn) -> StringColumn:
    """The column as the functions of `_implementation` take it."""
    return column.offsets, column.validity, column.data


def _row_buffers(columns: RecordColumns) -> RowBuffers:
    none = BytesColumn()
    return (
        columns.timestamps_ms,
        string_buffers(columns.keys),
        string_buffers(columns.values),
        columns.header_offsets,
        string_buffers(columns.header_keys or none),
        string_buffers(columns.header_values or none),
    )
