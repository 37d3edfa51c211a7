"""Reading a log: which bytes of which segment answer a fetch.

Owns: offset bounds, the choice of segment, verification of bytes before they leave for the first
time, aborted transactions for a range.
Must not: copy record bytes on the serving path, or wait.
Invariant: a returned region holds whole batches, begins with the batch that holds the start offset,
and was either written by this process or passed its CRC check in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import InvalidBatch, InvalidBatchReason
from moldau.runtime.filesystem import FileRegion
from moldau.storage.faults import LogOffline, is_out_of_room
from moldau.storage.segment import ByteRange, LogSegment
from moldau.storage.segment_recovery import rebuild_indexes
from moldau.storage.transaction_index import AbortedTransaction
from moldau.storage.verified_ranges import RegionVerification

if TYPE_CHECKING:
    from moldau.storage.log import Log

logger = logging.getLogger("moldau.storage")

VERIFY_LIMIT_BYTES = 8 * 1024 * 1024
"""Unverified bytes one read hands out at most (one larger batch excepted)."""

COLD_AFTER_BYTES = 256 * 1024 * 1024
"""Bytes this far behind the end of the log are taken to have left the page cache."""


@dataclass(slots=True)
class ReadResult:
    """Records for a fetch.

    `records` is a region to send without copying (release it when sent), or b"".
    `next_offset` follows the last batch of the region: the upper bound for aborted transactions.
    With `verification` set the region must not be sent yet: offload `verification.run` and pass the
    result to `Log.finish_verification`.
    """

    error: ErrorCode
    records: FileRegion | bytes = b""
    next_offset: int = -1
    verification: RegionVerification | None = None
    error_message: str | None = None
    segment: LogSegment | None = None
    truncation_count: int = 0


def read(
    log: Log,
    start_offset: int,
    *,
    max_bytes: int,
    max_offset: int | None = None,
    min_one_message: bool = True,
) -> ReadResult:
    """Whole batches from the one that holds `start_offset`, as a region of its segment's file.

    Args:
        max_bytes: bound on the region; with `min_one_message` the first batch may exceed it.
        max_offset: exclusive bound (high watermark, last stable offset; None: log end offset).

    One read ends at the end of a segment. Errors: OFFSET_OUT_OF_RANGE outside
    [log_start_offset, log_end_offset], KAFKA_STORAGE_ERROR when the log is or goes offline.
    """
    if log.offline:
        return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=log.offline_reason)
    log_end_offset = log.log_end_offset
    if start_offset > log_end_offset or start_offset < log.log_start_offset:
        return ReadResult(ErrorCode.OFFSET_OUT_OF_RANGE)
    if max_offset is None or max_offset > log_end_offset:
        max_offset = log_end_offset
    if start_offset >= max_offset:
        return ReadResult(ErrorCode.NONE, next_offset=start_offset)
    try:
        return _read_segments(log, start_offset, max_bytes, max_offset, min_one_message)
    except (InvalidBatch, OSError) as error:
        return _failed(log, error)


def _read_segments(
    log: Log, start_offset: int, max_bytes: int, max_offset: int, min_one_message: bool
) -> ReadResult:
    if start_offset >= log.active_segment.base_offset:
        first = len(log.segments) - 1
    else:
        first = log.segment_index_for(start_offset)
    for index in range(first, len(log.segments)):
        segment = log.segments[index]
        if segment.base_offset >= max_offset:
            break
        end_offset = log.end_offset_of(index)
        found = _locate(
            log, segment, start_offset, end_offset, max_bytes, max_offset, min_one_message
        )
        if found is None:
            # Only compaction leaves a segment whose last batches are gone.
            if not log.may_have_holes:
                raise InvalidBatch(
                    InvalidBatchReason.BAD_OFFSET,
                    f"{segment.path}: no batch holds offset {start_offset}",
                )
            continue
        if found.end == found.position:
            break
        if segment.verified.covers(found.position, found.end):
            region = FileRegion(
                segment.file(),
                found.position,
                found.end - found.position,
                is_cold=_is_cold(log, index, found.position),
            )
            return ReadResult(ErrorCode.NONE, region, found.next_offset)
        if found.end - found.position > VERIFY_LIMIT_BYTES < max_bytes:
            max_bytes = VERIFY_LIMIT_BYTES
            found = _locate(log, segment, start_offset, end_offset, max_bytes, max_offset, True)
            assert found is not None
        return _unverified(log, segment, start_offset, found)
    return ReadResult(ErrorCode.NONE, next_offset=start_offset)


def _unverified(log: Log, segment: LogSegment, start_offset: int, found: ByteRange) -> ReadResult:
    region = FileRegion(segment.file(), found.position, found.end - found.position)
    contiguous = not log.may_have_holes
    return ReadResult(
        ErrorCode.NONE,
        region,
        found.next_offset,
        RegionVerification(region, start_offset, log.leader_epoch_cache, contiguous=contiguous),
        segment=segment,
        truncation_count=log.truncation_count,
    )


def _locate(
    log: Log,
    segment: LogSegment,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
    max_offset: int,
    min_one_message: bool,
) -> ByteRange | None:
    """Ask the segment; an index that leads astray is rebuilt once from the log file."""
    try:
        return segment.locate(
            start_offset,
            end_offset=end_offset,
            max_bytes=max_bytes,
            max_offset=max_offset,
            min_one_message=min_one_message,
        )
    except InvalidBatch as error:
        logger.warning("%s: %s: rebuilding the segment's indexes", segment.path, error)
        rebuild_indexes(segment, log.config)
        return segment.locate(
            start_offset,
            end_offset=end_offset,
            max_bytes=max_bytes,
            max_offset=max_offset,
            min_one_message=min_one_message,
        )


def _is_cold(log: Log, index: int, position: int) -> bool:
    """Whether the bytes are far enough behind the end to be read in the thread pool first."""
    segments = log.segments
    behind_bytes = segments[index].size_bytes - position
    for later in segments[index + 1 : index + 3]:
        behind_bytes += later.size_bytes
    return behind_bytes > COLD_AFTER_BYTES or index + 3 < len(segments)


def finish_verification(log: Log, result: ReadResult) -> ReadResult:
    """Take in the outcome of `result.verification.run()`; the answer may be sent then.

    Bytes that failed take the partition offline; they are not in the answer.
    """
    verification, segment = result.verification, result.segment
    assert verification is not None
    assert segment is not None
    region = verification.region
    if log.offline or result.truncation_count != log.truncation_count:
        # The bytes were cut or deleted meanwhile: whatever the check saw, the reader asks again.
        region.release()
        if log.offline:
            return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=log.offline_reason)
        return ReadResult(ErrorCode.NONE, next_offset=verification.expected_offset)
    if verification.failure is not None:
        region.release()
        return _failed(log, verification.failure, segment)
    segment.verified.add(region.position, region.position + region.length)
    return ReadResult(ErrorCode.NONE, region, result.next_offset)


def _failed(
    log: Log, error: InvalidBatch | OSError, segment: LogSegment | None = None
) -> ReadResult:
    if isinstance(error, OSError) and is_out_of_room(error):
        logger.warning("%s: cannot be read now: %s", log.name, error)
        return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
    where = f"{segment.path}: " if segment is not None else ""
    log.take_offline(f"read failed: {where}{error}")
    return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=log.offline_reason)


def aborted_transactions(
    log: Log, start_offset: int, upper_bound_offset: int
) -> list[AbortedTransaction]:
    """Transactions a reader of committed data must skip in [start_offset, upper_bound_offset).

    Ordered by first offset, as clients require. Raises: LogOffline.
    """
    if log.offline:
        raise LogOffline(log.name, log.offline_reason)
    found: list[AbortedTransaction] = []
    try:
        for segment in log.segments[log.segment_index_for(start_offset) :]:
            more, is_complete = segment.transaction_index.collect(start_offset, upper_bound_offset)
            found += more
            if is_complete:
                break
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_out_of_room(error):
            raise LogOffline(log.name, f"transaction index: {error}") from None
        log.take_offline(f"transaction index: {error}")
        raise LogOffline(log.name, log.offline_reason) from None
    return sorted(found, key=lambda each: each.first_offset)
