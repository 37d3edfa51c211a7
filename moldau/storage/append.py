"""What a leader or a follower demands of records before it appends them, and their preparation.

Invariant: nothing is changed in a buffer before every batch in it passed. Batches stay the bytes
the producer sent: of their records only the keys are read, where the topic is compacted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    decode_records,
    iter_batches,
    patch_batch,
    patch_log_append_time,
    recompress,
    scan_keys,
    validate_header,
    verify_crc,
)
from moldau.protocol.records.header import CODEC_MASK, TRANSACTIONAL_BIT
from moldau.storage.batch_scan import require_crc
from moldau.storage.faults import AppendRejected
from moldau.storage.log_config import MAX_INT64, LogConfig
from moldau.storage.segment import MAX_RELATIVE_OFFSET

_CLIENT_ATTRIBUTES = 0x17
"""Codec and transactional bit: all a producer may set."""
MIN_RECORD_BYTES = 7
"""The least bytes of an uncompressed record: length, attributes, two deltas, three counts."""
_MAX_EXPANSION = (1, 1032, 64, 255, 32768)
"""The most bytes that a byte of data can become, by codec: the limits of the formats of deflate,
snappy, lz4 and zstd (a run of 128 KB in four bytes). A larger count is false and would cost
offsets."""
_MAX_CODEC = 4
_LENGTH = Struct(">i")
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_AT: Final = 43
MAX_INLINE_KEY_CHECKS = 5_000
"""Records of an uncompressed batch whose keys are read on the loop (native codec: 0.1 ms)."""

MAX_RECORD_ERRORS = 1_000
"""The most records that the answer to a rejected batch names."""


Batches = list[tuple[int, BatchHeader]]
"""Position and header of each batch of a buffer."""

ROOMLESS_MS: Final = 1_000
"""How long after a batch found no room the batches behind it, which are in flight, get the same
error."""
MAX_ROOMLESS_PRODUCERS: Final = 1_000


class AppendOrigin(Enum):
    """Where records come from; decides which checks apply."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT_LEADER = "raft leader"
    REPLICATION = "replication"
    """Fetched from the partition's leader, which checked them: limits of size do not apply."""


@dataclass(slots=True)
class AppendResult:
    """The outcome of an append. Offsets are -1 with an error; `last_offset` is inclusive.

    `log_append_time_ms` is -1 unless the topic uses LogAppendTime. A duplicate is no error: the
    offsets are those of the first append.
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


@dataclass(slots=True, eq=False)
class BatchProducer:
    """The producer of a transactional batch, as its header says."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


def transactional_producer(records: bytearray | memoryview) -> BatchProducer | None:
    """The producer of a transactional batch of magic 2; None for anything else."""
    if (
        len(records) < BATCH_HEADER_SIZE
        or not records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT
        or records[_MAGIC_AT] != 2
    ):
        return None
    return BatchProducer(*_PRODUCER.unpack_from(records, _PRODUCER_AT))


def rejected(invalid: InvalidBatch) -> AppendRejected:
    """The answer to a batch that is not valid in itself."""
    record_errors: tuple[tuple[int, str], ...] = ()
    if invalid.record_index is not None:
        record_errors = ((invalid.record_index, invalid.message),)
    return AppendRejected(ErrorCode[invalid.reason.error_name], str(invalid), record_errors)


def check_batches(
    records: bytearray | memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> Batches:
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
                > records_bytes * _MAX_EXPANSION[header.attributes & CODEC_MASK]
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
    """How many bytes of a fetch response are whole batches: it may end within a batch.

    Raises: AppendRejected with CORRUPT_MESSAGE when there is not one whole batch.
    """
    size_bytes = len(records)
    position = 0
    while position + LOG_OVERHEAD <= size_bytes:
        (batch_length,) = _LENGTH.unpack_from(records, position + 8)
        if batch_length < BATCH_HEADER_SIZE - LOG_OVERHEAD:
            return size_bytes  # garbage: reading the headers fails on it
        if position + LOG_OVERHEAD + batch_length > size_bytes:
            break
        position += LOG_OVERHEAD + batch_length
    if not position:
        raise AppendRejected(
            ErrorCode.CORRUPT_MESSAGE, f"no whole record batch in {size_bytes} bytes"
        )
    return position


def _is_plain(header: BatchHeader) -> bool:
    """Whether the header is the common case, which needs no full validation."""
    attributes = header.attributes
    return (
        not attributes & ~_CLIENT_ATTRIBUTES
        and attributes & CODEC_MASK <= _MAX_CODEC
        and header.record_count == header.last_offset_delta + 1 > 0
        and header.base_offset == 0
        and (
            (header.base_sequence >= 0 and header.producer_epoch >= 0)
            if header.producer_id >= 0
            else not attributes & ~CODEC_MASK
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


class RoomlessProducers(dict[int, float]):
    """Producers whose latest batch found no room on the disk, with the (monotonic) time of it.

    Batches that follow such a batch within `ROOMLESS_MS` are in flight and would look like a gap.
    librdkafka takes a gap for lost records: it begins a new epoch in all partitions, and sends
    again there what may be written already.
    """

    __slots__ = ()

    def note(self, batches: Batches, now_ms: float) -> None:
        """These batches found no room; `now_ms` is monotonic."""
        for _, header in batches:
            if header.producer_id >= 0:
                self.pop(header.producer_id, None)
                self[header.producer_id] = now_ms
        while len(self) > MAX_ROOMLESS_PRODUCERS:
            del self[next(iter(self))]

    def forget(self, batches: Batches) -> None:
        """These batches were written."""
        for _, header in batches:
            self.pop(header.producer_id, None)

    def has_recent(self, producer_id: int, now_ms: float) -> bool:
        refused_ms = self.get(producer_id)
        return refused_ms is not None and now_ms - refused_ms < ROOMLESS_MS


def assign_offsets(batches: Batches, log_end_offset: int, leader_epoch: int) -> None:
    """Put offsets and leader epoch in the headers. Raises: AppendRejected with INVALID_RECORD."""
    offset = log_end_offset
    for _, header in batches:
        header.base_offset = offset
        header.partition_leader_epoch = leader_epoch
        offset += header.last_offset_delta + 1
    if offset - log_end_offset > 2**31:
        raise AppendRejected(ErrorCode.INVALID_RECORD, "more records than a segment can number")


def patch_batches(
    records: bytearray | memoryview, batches: Batches, config: LogConfig, now_ms: int
) -> None:
    """Write what `assign_offsets` put in the headers, and the append time, into the buffer."""
    for position, header in batches:
        patch_batch(
            records,
            position,
            base_offset=header.base_offset,
            partition_leader_epoch=header.partition_leader_epoch,
        )
        if config.uses_log_append_time:
            patch_log_append_time(records, position, header, now_ms)


def check_fetched(
    records: bytearray | memoryview,
    config: LogConfig,
    now_ms: int,
    leader_epoch: int,
    next_offset: int,
    last_leader_epoch: int,
    *,
    may_begin_below: bool,
) -> tuple[bytearray | memoryview, Batches]:
    """What a follower appends of a fetch response: whole batches up to `leader_epoch`.

    They must follow each other from `next_offset` on, under leader epochs that never descend from
    `last_leader_epoch` on; with `may_begin_below` the first one may begin before `next_offset`.
    Raises: AppendRejected.
    """
    whole_bytes = whole_batches_bytes(records)
    if whole_bytes < len(records):
        records = memoryview(records)[:whole_bytes]
    batches = check_batches(records, config, AppendOrigin.REPLICATION, now_ms)
    for index, (position, header) in enumerate(batches):
        if header.partition_leader_epoch > leader_epoch:
            return memoryview(records)[:position], batches[:index]
        if (header.last_offset if may_begin_below else header.base_offset) < next_offset:
            raise AppendRejected(
                ErrorCode.CORRUPT_MESSAGE,
                f"base offset {header.base_offset} where {next_offset} is next",
            )
        if header.partition_leader_epoch < last_leader_epoch:
            raise AppendRejected(
                ErrorCode.CORRUPT_MESSAGE,
                f"leader epoch {header.partition_leader_epoch} after {last_leader_epoch} at offset "
                f"{header.base_offset}",
            )
        next_offset, last_leader_epoch = header.next_offset, header.partition_leader_epoch
        may_begin_below = False
    return records, batches


def has_holes(next_offset: int, batches: Batches) -> bool:
    """Whether offsets are missing: the leader's log was compacted."""
    for _, header in batches:
        if header.base_offset > next_offset:
            return True
        next_offset = header.base_offset + header.last_offset_delta + 1
    return False


def pieces(
    batches: Batches, size_bytes: int, segment_bytes: int
) -> Iterator[tuple[int, int, Batches]]:
    """`(start, end, batches)` of what fits in a segment each; positions count from the start.

    A batch that is larger than a segment gets one of its own.
    """
    first_offset = batches[0][1].base_offset
    if (
        size_bytes <= segment_bytes
        and batches[-1][1].last_offset - first_offset <= MAX_RELATIVE_OFFSET
    ):
        yield 0, size_bytes, batches
        return
    start = end = 0
    piece: Batches = []
    for position, header in batches:
        end = position + header.size_bytes
        if piece and (
            end - start > segment_bytes or header.last_offset - first_offset > MAX_RELATIVE_OFFSET
        ):
            yield start, position, piece
            start, first_offset, piece = position, header.base_offset, []
        piece.append((position - start, header))
    yield start, end, piece


class PreparedRecords(bytearray):
    """Batches that `prepare` has checked: the append does not decompress them again."""


def require_keys(records: bytearray | memoryview, batches: Batches) -> None:
    """Check that every record of data has a key and fits its batch.

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
    """Whether to call `prepare` off the loop: a batch must change its codec, or its keys take time.

    Garbage needs no preparation; the append rejects it.
    """
    if isinstance(records, PreparedRecords):
        return False
    target = config.target_codec
    compacts = config.compacts
    try:
        for _, header in iter_batches(records):
            codec = header.attributes & CODEC_MASK
            if header.record_count and (
                (target is not None and codec != target)
                or (compacts and (codec or header.record_count > MAX_INLINE_KEY_CHECKS))
            ):
                return True
        return False
    except InvalidBatch:
        return False


def prepare(records: bytearray | memoryview, config: LogConfig) -> PreparedRecords:
    """The same batches under the topic's codec, their keys checked for a compacted topic.

    Touches nothing but its arguments: offload it.

    Raises: AppendRejected with CORRUPT_MESSAGE, INVALID_RECORD or MESSAGE_TOO_LARGE.
    """
    target = config.target_codec
    prepared = PreparedRecords()
    try:
        for position, header in iter_batches(records):
            if header.size_bytes > config.max_message_bytes:
                # The append rejects it.
                return PreparedRecords(records)
            require_crc(verify_crc(records, position, header), position)
            if config.compacts:
                _require_keys(records, position, header)
            if target is None or header.attributes & CODEC_MASK == target:
                prepared += records[position : position + header.size_bytes]
            else:
                prepared += recompress(records, position, header, target, config.compression_level)
    except InvalidBatch as error:
        raise rejected(error) from None
    return prepared
