"""The 61-byte header of a record batch (magic 2): read, iterate, CRC-32C, patch in place.

Owns the header's layout, and `crc32c`. Must not look into the records behind it: a broker's hot
path uses only this file, on the bytes as the producer sent them. Source: KIP-98, KIP-32 (timestamp
type), KIP-534 (delete horizon).
Invariant: nothing here reads or writes outside `[position, position + header.size_bytes)`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Final, cast

from moldau.constants import MAX_INT32, MAX_INT64
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.types import Buffer

BATCH_HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and batch length, which the batch length does not count."""
CURRENT_MAGIC: Final = 2

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_PARTITION_LEADER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
MAX_SEQUENCE: Final = MAX_INT32
MAX_BASE_OFFSET: Final = MAX_INT64 - MAX_INT32 - 1
"""So that the offsets of all records of a batch have 64 bits."""

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

_PARTITION_LEADER_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
CRC_COVERED_FROM: Final = 21
_MAX_TIMESTAMP_AT: Final = 35

HEADER_STRUCT: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_STRUCT: Final = struct.Struct(">I")
_OFFSET_STRUCT: Final = struct.Struct(">q")
_EPOCH_STRUCT: Final = struct.Struct(">i")
_ATTRIBUTES_STRUCT: Final = struct.Struct(">h")

assert HEADER_STRUCT.size == BATCH_HEADER_SIZE


def _load_crc32c() -> Callable[[Buffer], int]:
    """CRC-32C from the `crc32c` distribution, without its package's import cost.

    Importing the package proper reads distribution metadata and loads a command line (argparse,
    importlib.metadata: about 30 ms of a serving node's 60 ms start-up), so its extension module is
    loaded by itself; should a release lay its files out differently, the ordinary import is used.
    """
    package = PathFinder.find_spec("crc32c")
    locations = package.submodule_search_locations if package is not None else None
    extension = PathFinder.find_spec("crc32c._crc32c", locations) if locations else None
    if extension is not None and extension.loader is not None:
        module = module_from_spec(extension)
        extension.loader.exec_module(module)
        if hasattr(module, "crc32c"):
            return cast("Callable[[Buffer], int]", module.crc32c)
    import crc32c

    return cast("Callable[[Buffer], int]", crc32c.crc32c)


crc32c = _load_crc32c()


class Codec(IntEnum):
    """Compression codec ids of the batch attributes (bits 0-2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Where a batch's timestamps come from (attribute bit 3)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(slots=True)
class BatchHeader:
    """The header fields in wire order; properties derive what the attribute bits and counts mean.

    `batch_length` counts the bytes after itself; `size_bytes` is the whole batch.
    """

    base_offset: int = 0
    batch_length: int = 0
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH
    magic: int = CURRENT_MAGIC
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    record_count: int = 0

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record (kept when compaction removed that record)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Compression codec. Raises InvalidBatch (BAD_ATTRIBUTES) for an undefined id."""
        codec_id = self.attributes & CODEC_MASK
        if codec_id > Codec.ZSTD:
            raise InvalidBatch(
                InvalidBatchReason.BAD_ATTRIBUTES, f"unknown compression codec id {codec_id}"
            )
        return Codec(codec_id)

    @property
    def is_compressed(self) -> bool:
        """Whether any codec, known or not, is set."""
        return bool(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & TIMESTAMP_TYPE_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Holds control records (never shown to consumers)."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp_ms` is the time after which tombstones may go (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer wrote it."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap to 0 after 2^31-1. -1 without a sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def increment_sequence(sequence: int, increment: int) -> int:
    """Sequence number `increment` records later, wrapping to 0 after 2^31-1 (KIP-98)."""
    return (sequence + increment) & MAX_SEQUENCE


def unpack_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The 61 bytes at `position` as they are, nothing checked. Raises struct.error: too few."""
    return BatchHeader(*HEADER_STRUCT.unpack_from(buffer, position))


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; only the header's 61 bytes need to be in the buffer.

    Raises InvalidBatch: TRUNCATED, BAD_MAGIC (also for the old message formats 0 and 1) or
    BAD_LENGTH (a length shorter than a header).
    """
    try:
        header = unpack_header(buffer, position)
    except struct.error:
        available = max(0, len(buffer) - position)
        if available > _MAGIC_AT:
            _check_magic(buffer[position + _MAGIC_AT], position)
        raise InvalidBatch(
            InvalidBatchReason.TRUNCATED,
            f"{available} bytes are not a whole batch header",
            position=position,
        ) from None
    if header.magic != CURRENT_MAGIC:
        _check_magic(header.magic, position)
    if header.batch_length < BATCH_HEADER_SIZE - LOG_OVERHEAD:
        raise InvalidBatch(
            InvalidBatchReason.BAD_LENGTH,
            f"batch length {header.batch_length} is less than a header's",
            position=position,
        )
    return header


def _check_magic(magic: int, position: int) -> None:
    if magic != CURRENT_MAGIC:
        raise InvalidBatch(
            InvalidBatchReason.BAD_MAGIC,
            f"magic {magic} is not the supported record format 2",
            position=position,
        )


def check_whole(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """End position of the batch. Raises InvalidBatch (TRUNCATED) when the buffer ends before."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise InvalidBatch(
            InvalidBatchReason.TRUNCATED,
            f"batch of {header.size_bytes} bytes has only {len(buffer) - position}",
            position=position,
        )
    return end


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield `(position, header)` of every batch in `buffer`, CRC not checked.

    Raises InvalidBatch on garbage, and TRUNCATED when the last batch is not whole.
    """
    position, size = 0, len(buffer)
    while position < size:
        header = read_batch_header(buffer, position)
        next_position = check_whole(buffer, position, header)
        yield position, header
        position = next_position


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch's CRC-32C (attributes to the end of the batch) is what the header says.

    Raises InvalidBatch (TRUNCATED) when the batch is not whole in the buffer.
    """
    end = check_whole(buffer, position, header)
    covered = memoryview(buffer)[position + CRC_COVERED_FROM : end]
    return bool(crc32c(covered) == header.crc)


def write_crc(buffer: bytearray | memoryview, position: int, size_bytes: int) -> int:
    """Compute and store the CRC of the batch of `size_bytes` at `position`; returns it."""
    with (
        memoryview(buffer) as view,
        view[position + CRC_COVERED_FROM : position + size_bytes] as covered,
    ):
        crc: int = crc32c(covered)
    _CRC_STRUCT.pack_into(buffer, position + _CRC_AT, crc)
    return crc


def patch_batch(
    buffer: bytearray | memoryview, position: int, *, base_offset: int, partition_leader_epoch: int
) -> None:
    """Assign offset and leader epoch in place, as a leader does; neither is under the CRC."""
    _OFFSET_STRUCT.pack_into(buffer, position, base_offset)
    _EPOCH_STRUCT.pack_into(buffer, position + _PARTITION_LEADER_EPOCH_AT, partition_leader_epoch)


def patch_log_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Stamp the batch with the broker's append time in place; recomputes the CRC (KIP-32).

    `header` is brought up to date too (attributes, max timestamp, CRC).
    """
    check_whole(buffer, position, header)
    header.attributes |= TIMESTAMP_TYPE_BIT
    header.max_timestamp_ms = timestamp_ms
    _ATTRIBUTES_STRUCT.pack_into(buffer, position + CRC_COVERED_FROM, header.attributes)
    _OFFSET_STRUCT.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    header.crc = write_crc(buffer, position, header.size_bytes)


def write_header(buffer: bytearray, header: BatchHeader) -> None:
    """Fill in length and CRC of a finished batch (header space first) and write the header."""
    header.batch_length = len(buffer) - LOG_OVERHEAD
    HEADER_STRUCT.pack_into(
        buffer,
        0,
        header.base_offset,
        header.batch_length,
        header.partition_leader_epoch,
        header.magic,
        0,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    header.crc = write_crc(buffer, 0, len(buffer))
