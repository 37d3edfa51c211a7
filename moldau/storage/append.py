"""What a leader demands of records before it appends them, and what it makes of them off the loop.

Owns: the checks of a produce request's batches that need no log, recompression for topics with a
`compression.type` of their own, the look at the keys of a compacted topic's records.
Must not: know offsets, producers or files.
Invariant: nothing is changed in a buffer before every batch in it passed. Per-record contents are
not looked at (architecture: record batches stay the bytes the producer sent) but for keys, where
the topic is compacted; timestamps are checked against the batch's base and max timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    decode_records,
    iter_batches,
    recompress,
    scan_keys,
    validate_header,
    verify_crc,
)
from moldau.storage.faults import AppendRejected
from moldau.storage.log_config import MAX_INT64, LogConfig

_CLIENT_ATTRIBUTES = 0x17
"""Codec and transactional bit: all a producer may set."""
MIN_RECORD_BYTES = 7
"""The least an uncompressed record takes: length, attributes, two deltas, three counts."""
_MAX_EXPANSION = (1, 1032, 64, 255, 32768)
"""What a byte of data can become, by codec: what the formats of deflate, snappy, lz4 and zstd (a
run of 128 KB in four bytes) allow at most. A count beyond that is a lie that would cost offsets."""
_MAX_CODEC = 4
_CODEC_MASK = 0x07
_LENGTH = Struct(">i")
MAX_INLINE_KEY_CHECKS = 5_000
"""Records of an uncompressed batch whose keys are looked at on the loop (native codec: 0.1 ms)."""

MAX_RECORD_ERRORS = 1_000
"""Records named one by one in the answer to a batch that is refused for them."""


class AppendOrigin(Enum):
    """Who hands over records; decides which checks apply."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT_LEADER = "raft leader"
    REPLICATION = "replication"
    """Fetched from the partition's leader, which checked them: limits of size hold no more."""


@dataclass(slots=True)
class AppendResult:
    """What became of an append. Offsets are -1 with an error; `last_offset` is inclusive.

    `log_append_time_ms` is -1 unless the topic uses LogAppendTime. A duplicate is no error: the
    offsets are those of the first time.
    """

    error: ErrorCode
    error_message: str | None = None
    base_offset: int = -1
    last_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    is_duplicate: bool = False
    record_count: int = 0
    size_bytes: int = 0
    keyless_count: int = 0


def rejected(invalid: InvalidBatch) -> AppendRejected:
    """The answer to a batch that is not valid in itself."""
    record_errors: tuple[tuple[int, str], ...] = ()
    if invalid.record_index is not None:
        record_errors = ((invalid.record_index, invalid.message),)
    return AppendRejected(ErrorCode[invalid.reason.error_name], str(invalid), record_errors)


def check_batches(
    records: bytearray | memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> list[tuple[int, BatchHeader]]:
    """Position and header of every batch, all of them acceptable.

    Raises: AppendRejected with CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE or INVALID_TIMESTAMP.
    """
    batches = []
    from_client = origin is AppendOrigin.CLIENT
    checks_time = from_client and not config.uses_log_append_time
    max_message_bytes = config.max_message_bytes
    try:
        for position, header in iter_batches(records):
            if header.batch_length + 12 > max_message_bytes and from_client:
                raise AppendRejected(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {header.size_bytes} bytes, max.message.bytes "
                    f"is {max_message_bytes}",
                )
            if not verify_crc(records, position, header):
                raise InvalidBatch(
                    InvalidBatchReason.BAD_CRC, "the CRC does not match", position=position
                )
            if not (from_client and _is_plain(header)):
                validate_header(header, position, from_client=from_client)
            records_bytes = header.batch_length + 12 - BATCH_HEADER_SIZE
            if (
                header.record_count * MIN_RECORD_BYTES
                > records_bytes * _MAX_EXPANSION[header.attributes & _CODEC_MASK]
            ):
                raise InvalidBatch(
                    InvalidBatchReason.BAD_COUNT,
                    f"{header.record_count} records in {header.size_bytes} bytes",
                    position=position,
                )
            if checks_time and header.max_timestamp_ms >= 0:
                _check_time(header, config, now_ms)
            batches.append((position, header))
    except InvalidBatch as error:
        raise rejected(error) from None
    if not batches:
        raise AppendRejected(ErrorCode.INVALID_RECORD, "no record batch in the request")
    if len(records) > config.segment_bytes and origin is not AppendOrigin.REPLICATION:
        raise AppendRejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{len(records)} bytes do not fit in a segment of {config.segment_bytes}",
        )
    return batches


def whole_batches_bytes(records: bytearray | memoryview) -> int:
    """How many bytes of a fetched response are whole batches: it may end in the middle of one.

    Raises: AppendRejected with CORRUPT_MESSAGE when there is not one whole batch.
    """
    size_bytes = len(records)
    position = 0
    while position + LOG_OVERHEAD <= size_bytes:
        (batch_length,) = _LENGTH.unpack_from(records, position + 8)
        if batch_length < BATCH_HEADER_SIZE - LOG_OVERHEAD:
            return size_bytes  # garbage: whoever reads the headers says so
        if position + LOG_OVERHEAD + batch_length > size_bytes:
            break
        position += LOG_OVERHEAD + batch_length
    if not position:
        raise AppendRejected(
            ErrorCode.CORRUPT_MESSAGE, f"no whole record batch in {size_bytes} bytes"
        )
    return position


def _is_plain(header: BatchHeader) -> bool:
    """The common case decided at a glance; anything else goes through the full rules."""
    attributes = header.attributes
    return (
        not attributes & ~_CLIENT_ATTRIBUTES
        and attributes & _CODEC_MASK <= _MAX_CODEC
        and header.record_count == header.last_offset_delta + 1 > 0
        and header.base_offset == 0
        and (
            (header.base_sequence >= 0 and header.producer_epoch >= 0)
            if header.producer_id >= 0
            else not attributes & ~_CODEC_MASK
        )
    )


def _check_time(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    after_max_ms = config.message_timestamp_after_max_ms
    if header.max_timestamp_ms - now_ms > after_max_ms:
        raise AppendRejected(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {header.max_timestamp_ms} is more than {after_max_ms} ms ahead",
        )
    before_max_ms = config.message_timestamp_before_max_ms
    if before_max_ms != MAX_INT64:
        earliest = min(header.base_timestamp_ms, header.max_timestamp_ms)
        if earliest >= 0 and now_ms - earliest > before_max_ms:
            raise AppendRejected(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {earliest} is more than {before_max_ms} ms ago",
            )


class PreparedRecords(bytearray):
    """Batches that `prepare` has looked through: nobody needs to decompress them once more."""


def require_keys(records: bytearray | memoryview, batches: list[tuple[int, BatchHeader]]) -> None:
    """Whether every record of data has a key, and is where and what its batch says.

    Raises: AppendRejected with INVALID_RECORD (naming the records), CORRUPT_MESSAGE or
    MESSAGE_TOO_LARGE.
    """
    if isinstance(records, PreparedRecords):
        return
    try:
        for position, header in batches:
            _require_keys(records, position, header)
    except InvalidBatch as error:
        raise rejected(error) from None


def _require_keys(records: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """Raises: AppendRejected, InvalidBatch."""
    if header.is_control:
        return
    try:
        scan_keys(records, position, header)
    except InvalidBatch as error:
        if error.reason is not InvalidBatchReason.MISSING_KEY:
            raise
        indexes = [
            index
            for index, record in enumerate(decode_records(records, position))
            if record.key is None
        ]
        refusal = AppendRejected(
            ErrorCode.INVALID_RECORD,
            f"{len(indexes)} of {header.record_count} records have no key, which every record of "
            "a compacted topic needs",
            tuple((index, error.message) for index in indexes[:MAX_RECORD_ERRORS]),
        )
        refusal.keyless_count = len(indexes)
        raise refusal from None


def needs_preparation(records: bytearray | memoryview, config: LogConfig) -> bool:
    """Whether some batch has another codec than the topic wants, or a look at its keys takes time:
    call `prepare` off the loop.

    Garbage needs none; the append refuses it.
    """
    if isinstance(records, PreparedRecords):
        return False
    target = config.target_codec
    compacts = config.compacts
    try:
        for _, header in iter_batches(records):
            codec = header.attributes & _CODEC_MASK
            if header.record_count and (
                (target is not None and codec != target)
                or (compacts and (codec or header.record_count > MAX_INLINE_KEY_CHECKS))
            ):
                return True
        return False
    except InvalidBatch:
        return False


def prepare(records: bytearray | memoryview, config: LogConfig) -> PreparedRecords:
    """The same batches under the topic's codec, their keys looked at where they are needed. Touches
    nothing but its arguments: offload it.

    Raises: AppendRejected with CORRUPT_MESSAGE, INVALID_RECORD or MESSAGE_TOO_LARGE.
    """
    target = config.target_codec
    prepared = PreparedRecords()
    try:
        for position, header in iter_batches(records):
            if header.size_bytes > config.max_message_bytes:
                # Refused either way; the append says so.
                return PreparedRecords(records)
            if not verify_crc(records, position, header):
                raise InvalidBatch(
                    InvalidBatchReason.BAD_CRC, "the CRC does not match", position=position
                )
            if config.compacts:
                _require_keys(records, position, header)
            if target is None or header.attributes & _CODEC_MASK == target:
                prepared += records[position : position + header.size_bytes]
            else:
                prepared += recompress(records, position, header, target, config.compression_level)
    except InvalidBatch as error:
        raise rejected(error) from None
    return prepared
