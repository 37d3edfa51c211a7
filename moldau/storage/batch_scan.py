"""Walking over the batches of a segment file: headers only, or every byte with its CRC.

Invariant: whatever the file holds, only InvalidBatch (with the file position) and OSError are
raised, and no read goes past `end`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    read_batch_header,
    verify_crc,
)
from moldau.protocol.records.header import CRC_COVERED_FROM, crc32c
from moldau.runtime.files import Buffer, File

HEADER_SCAN_BYTES = 8 * 1024
"""Read at a time for headers only: small batches share a read, large ones are skipped."""

VERIFY_SCAN_BYTES = 1024 * 1024
"""Read at a time when every byte is wanted; memory stays at that, however large a batch is."""

crc32c_from = cast("Callable[[Buffer, int], int]", crc32c)
_NO_BYTES = memoryview(b"")

_MAX_BASE_OFFSET = 2**63 - 1 - 2**31


def _check_frame(header: BatchHeader, position: int, end: int) -> None:
    """What the CRC does not cover must at least be possible."""
    if position + header.size_bytes > end:
        raise InvalidBatch(
            InvalidBatchReason.TRUNCATED,
            f"a batch of {header.size_bytes} bytes where {end - position} are left",
            position=position,
        )
    if not 0 <= header.base_offset <= _MAX_BASE_OFFSET or header.last_offset_delta < 0:
        raise InvalidBatch(
            InvalidBatchReason.BAD_OFFSET,
            f"base offset {header.base_offset}, last offset delta {header.last_offset_delta}",
            position=position,
        )


def scan_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [position, end); record bytes are not read.

    Raises: InvalidBatch, OSError.
    """
    chunk = b""
    chunk_position = position
    while position < end:
        at = position - chunk_position
        if at + BATCH_HEADER_SIZE > len(chunk):
            chunk = file.pread(min(HEADER_SCAN_BYTES, end - position), position)
            chunk_position, at = position, 0
        try:
            header = read_batch_header(chunk, at)
        except InvalidBatch as error:
            raise error.at(position) from None
        _check_frame(header, position, end)
        yield position, header
        position += header.batch_length + LOG_OVERHEAD


def scan_verified(
    file: File, position: int, end: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of each batch in [position, end), its CRC checked.

    The bytes are good until the next step; of a batch larger than VERIFY_SCAN_BYTES there are none.
    Raises: InvalidBatch, OSError.
    """
    buffer = bytearray(min(VERIFY_SCAN_BYTES, max(end - position, 1)))
    filled = 0
    chunk_position = position
    while position < end:
        at = position - chunk_position
        header = _header_within(buffer, at, filled, position)
        if header is None or (at and at + header.size_bytes > filled):
            with memoryview(buffer) as view, view[: end - position] as wanted:
                filled = file.pread_into(wanted, position)
            chunk_position, at = position, 0
            header = _header_within(buffer, 0, filled, position)
            if header is None:
                raise InvalidBatch(
                    InvalidBatchReason.TRUNCATED,
                    f"{filled} bytes are no batch header",
                    position=position,
                )
        _check_frame(header, position, end)
        if at + header.size_bytes <= filled:
            with memoryview(buffer) as view, view[at : at + header.size_bytes] as batch:
                require_crc(verify_crc(batch, 0, header), position)
                yield position, header, batch
        else:
            require_crc(_streamed_crc(file, position, header, buffer) == header.crc, position)
            filled = 0
            yield position, header, _NO_BYTES
        position += header.size_bytes


def require_crc(matches: bool, position: int) -> None:
    if not matches:
        raise InvalidBatch(InvalidBatchReason.BAD_CRC, "the CRC does not match", position=position)


def _streamed_crc(file: File, position: int, header: BatchHeader, buffer: bytearray) -> int:
    """The CRC of a batch larger than `buffer`, read through it. Raises: InvalidBatch, OSError."""
    crc = 0
    at = position + CRC_COVERED_FROM
    end = position + header.size_bytes
    while at < end:
        with memoryview(buffer) as view, view[: end - at] as wanted:
            count = file.pread_into(wanted, at)
            if not count:
                raise InvalidBatch(
                    InvalidBatchReason.TRUNCATED, "the file ends early", position=position
                )
            with wanted[:count] as part:
                crc = crc32c_from(part, crc)
        at += count
    return crc


def _header_within(buffer: bytearray, at: int, filled: int, position: int) -> BatchHeader | None:
    if at + BATCH_HEADER_SIZE > filled:
        return None
    try:
        return read_batch_header(buffer, at)
    except InvalidBatch as error:
        raise error.at(position) from None
