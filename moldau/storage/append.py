"""What is demanded of records before a leader or a follower appends them (CRC, `max.message.bytes`,
timestamps), and their preparation (offsets, `compression.type`).

Invariant: nothing is changed in a buffer before every batch in it passed. Batches stay the bytes
the producer sent: of their records only the keys are read, where the topic is compacted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from moldau.constants import MAX_INT64
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
    read_batch_header,
    recompress,
    scan_keys,
    validate_header,
    verify_crc,
)
from moldau.protocol.records.header import CODEC_MASK
from moldau.storage.batch_scan import require_crc
from moldau.storage.faults import AppendRejected
from moldau.storage.log_config import LogConfig
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
MAX_INLINE_KEY_CHECKS = 5_000
"""Records of an uncompressed batch whose keys are read on the loop (native codec: 0.1 ms)."""

MAX_RECORD_ERRORS = 1_000
"""The most records that the answer to a rejected batch names."""


Batches = list[tuple[int, BatchHeader]]
"""Position and header of each batch of a buffer."""


@dataclass(slots=True, eq=False)
class RecordBatches:
    """The batches of one append: their bytes, and the headers, read where the bytes came in.

    The append changes bytes and headers together. `is_prepared`: `prepare` made them, so their CRCs
    are right, and every record has a key where the topic demands one.
    """

    data: bytearray | memoryview
    headers: Batches
    is_prepared: bool = False

    @classmethod
    def read(cls, data: bytearray | memoryview) -> RecordBatches:
        """Raises: AppendRejected with CORRUPT_MESSAGE or INVALID_RECORD: these are no batches."""
        try:
            return cls(data, list(iter_batches(data)))
        except InvalidBatch as error:
            raise rejected(error) from None


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


def rejected(invalid: InvalidBatch) -> AppendRejected:
    """The answer to a batch that is not valid in itself."""
    record_errors: tuple[tuple[int, str], ...] = ()
    if invalid.record_index is not None:
        record_errors = ((invalid.record_index, invalid.message),)
    return AppendRejected(ErrorCode[invalid.reason.error_name], str(invalid), record_errors)


def check_batches(
    batches: RecordBatches, config: LogConfig, origin: AppendOrigin, now_ms: int
) -> None:
    """Check that every batch is acceptable.

    Raises: AppendRejected with CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE or INVALID_TIMESTAMP.
    """
    data = batches.data
    from_client = origin is AppendOrigin.CLIENT
    checks_time = from_client and not config.uses_log_append_time
    max_message_bytes = config.max_message_bytes
    try:
        for position, header in batches.headers:
            if header.batch_length + 12 > max_message_bytes and from_client:
                raise AppendRejected(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {header.size_bytes} bytes, max.message.bytes "
                    f"is {max_message_bytes}",
                )
            if not batches.is_prepared and not verify_crc(data, position, header):
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
    except InvalidBatch as error:
        raise rejected(error) from None
    if not batches.headers:
        raise AppendRejected(ErrorCode.INVALID_RECORD, "no record batch in the request")
    if len(data) > config.segment_bytes and origin is not AppendOrigin.REPLICATION:
        raise AppendRejected(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{len(data)} bytes do not fit in a segment of {config.segment_bytes}",
        )


def _whole_batches(records: bytearray | memoryview) -> RecordBatches:
    """The whole batches of a fetch response, which may end within a batch.

    Raises: AppendRejected with CORRUPT_MESSAGE: garbage, or not one whole batch.
    """
    size_bytes = len(records)
    position = 0
    headers: Batches = []
    try:
        while position + LOG_OVERHEAD <= size_bytes:
            (batch_length,) = _LENGTH.unpack_from(records, position + 8)
            end = position + LOG_OVERHEAD + batch_length
            if end > size_bytes and batch_length >= BATCH_HEADER_SIZE - LOG_OVERHEAD:
                break
            headers.append((position, read_batch_header(records, position)))
            position = end
    except InvalidBatch as error:
        raise rejected(error) from None
    if not headers:
        raise AppendRejected(
            ErrorCode.CORRUPT_MESSAGE, f"no whole record batch in {size_bytes} bytes"
        )
    return RecordBatches(
        records if position == size_bytes else memoryview(records)[:position], headers
    )


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

    def note(self, batches: RecordBatches, now_ms: float) -> None:
        """These batches found no room; `now_ms` is monotonic."""
        for _, header in batches.headers:
            if header.producer_id >= 0:
                self.pop(header.producer_id, None)
                self[header.producer_id] = now_ms
        while len(self) > MAX_ROOMLESS_PRODUCERS:
            del self[next(iter(self))]

    def forget(self, batches: RecordBatches) -> None:
        """These batches were written."""
        for _, header in batches.headers:
            self.pop(header.producer_id, None)

    def has_recent(self, producer_id: int, now_ms: float) -> bool:
        refused_ms = self.get(producer_id)
        return refused_ms is not None and now_ms - refused_ms < ROOMLESS_MS


def assign_offsets(batches: RecordBatches, log_end_offset: int, leader_epoch: int) -> None:
    """Put offsets and leader epoch in the headers. Raises: AppendRejected with INVALID_RECORD."""
    offset = log_end_offset
    for _, header in batches.headers:
        header.base_offset = offset
        header.partition_leader_epoch = leader_epoch
        offset += header.last_offset_delta + 1
    if offset - log_end_offset > 2**31:
        raise AppendRejected(ErrorCode.INVALID_RECORD, "more records than a segment can number")


def patch_batches(batches: RecordBatches, config: LogConfig, now_ms: int) -> None:
    """Write what `assign_offsets` put in the headers, and the append time, into the buffer."""
    records = batches.data
    for position, header in batches.headers:
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
) -> RecordBatches:
    """What a follower appends of a fetch response: whole batches up to `leader_epoch`.

    They must follow each other from `next_offset` on, under leader epochs that never descend from
    `last_leader_epoch` on; with `may_begin_below` the first one may begin before `next_offset`.
    Raises: AppendRejected.
    """
    batches = _whole_batches(records)
    check_batches(batches, config, AppendOrigin.REPLICATION, now_ms)
    for index, (position, header) in enumerate(batches.headers):
        if header.partition_leader_epoch > leader_epoch:
            return RecordBatches(memoryview(records)[:position], batches.headers[:index])
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
    return batches


def has_holes(next_offset: int, batches: RecordBatches) -> bool:
    """Whether offsets are missing: the leader's log was compacted."""
    for _, header in batches.headers:
        if header.base_offset > next_offset:
            return True
        next_offset = header.base_offset + header.last_offset_delta + 1
    return False


def pieces(batches: RecordBatches, segment_bytes: int) -> Iterator[RecordBatches]:
    """What fits in a segment each. A larger batch gets its own segment."""
    headers = batches.headers
    first_offset = headers[0][1].base_offset
    if (
        len(batches.data) <= segment_bytes
        and headers[-1][1].last_offset - first_offset <= MAX_RELATIVE_OFFSET
    ):
        yield batches
        return
    data = memoryview(batches.data)
    start = end = 0
    piece: Batches = []
    for position, header in headers:
        end = position + header.size_bytes
        if piece and (
            end - start > segment_bytes or header.last_offset - first_offset > MAX_RELATIVE_OFFSET
        ):
            yield RecordBatches(data[start:position], piece)
            start, first_offset, piece = position, header.base_offset, []
        piece.append((position - start, header))
    yield RecordBatches(data[start:end], piece)


def require_keys(batches: RecordBatches) -> None:
    """Check that every record of data has a key and fits its batch.

    Raises: AppendRejected with INVALID_RECORD (naming the records), CORRUPT_MESSAGE or
    MESSAGE_TOO_LARGE.
    """
    if batches.is_prepared:
        return
    try:
        for position, header in batches.headers:
            _require_keys(batches.data, position, header)
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


def needs_preparation(batches: RecordBatches, config: LogConfig) -> bool:
    """Whether to call `prepare` off the loop: for another codec, or because keys take time."""
    if batches.is_prepared:
        return False
    target = config.target_codec
    compacts = config.compacts
    for _, header in batches.headers:
        codec = header.attributes & CODEC_MASK
        if header.record_count and (
            (target is not None and codec != target)
            or (compacts and (codec or header.record_count > MAX_INLINE_KEY_CHECKS))
        ):
            return True
    return False


def prepare(batches: RecordBatches, config: LogConfig) -> RecordBatches:
    """The same batches under the topic's codec, their keys checked for a compacted topic.

    Touches nothing but its arguments: offload it.

    Raises: AppendRejected with CORRUPT_MESSAGE, INVALID_RECORD or MESSAGE_TOO_LARGE.
    """
    target = config.target_codec
    records = batches.data
    prepared = bytearray()
    headers: Batches = []
    try:
        for position, header in batches.headers:
            if header.size_bytes > config.max_message_bytes:
                return batches  # The append rejects it.
            require_crc(verify_crc(records, position, header), position)
            if config.compacts:
                _require_keys(records, position, header)
            if target is None or header.attributes & CODEC_MASK == target:
                headers.append((len(prepared), header))
                prepared += records[position : position + header.size_bytes]
            else:
                recompressed, new_header = recompress(
                    records, position, header, target, config.compression_level
                )
                headers.append((len(prepared), new_header))
                prepared += recompressed
    except InvalidBatch as error:
        raise rejected(error) from None
    return RecordBatches(prepared, headers, is_prepared=True)
