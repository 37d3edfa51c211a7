"""Finding offsets by time.

Owns: the search over segments, the time index and inside one batch.
Must not: know ListOffsets' special timestamps other than the largest one.
Invariant: batches are decoded only after their CRC was checked. Source: KIP-33, KIP-734.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.records import (
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    Record,
    decode_records,
    verify_crc,
)
from moldau.storage.batch_scan import scan_headers
from moldau.storage.faults import LogOffline
from moldau.storage.segment import LogSegment
from moldau.storage.segment_recovery import rebuild_indexes

if TYPE_CHECKING:
    from moldau.storage.log import Log


class TimestampedOffset(NamedTuple):
    """A record's timestamp and offset, and the leader epoch it was written under (-1 unknown)."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(
    log: Log, timestamp_ms: int, *, max_offset: int | None = None
) -> TimestampedOffset | None:
    """The first record at or after log_start_offset whose timestamp is >= `timestamp_ms`.

    None when there is none below `max_offset` (exclusive; None: log end offset). Reads and
    decompresses at most one batch per candidate. Raises: LogOffline.
    """
    return _guarded(log, lambda: _search(log, timestamp_ms, max_offset))


def offset_of_max_timestamp(log: Log) -> TimestampedOffset | None:
    """The record with the largest timestamp; None in an empty log. Raises: LogOffline."""
    return _guarded(log, lambda: _largest(log))


def _guarded(log: Log, search: _Search) -> TimestampedOffset | None:
    if log.offline:
        raise LogOffline(log.name, log.offline_reason)
    try:
        return search()
    except (InvalidBatch, OSError) as error:
        log.take_offline(f"lookup by time failed: {error}")
        raise LogOffline(log.name, log.offline_reason) from None


def _search(log: Log, timestamp_ms: int, max_offset: int | None) -> TimestampedOffset | None:
    limit = log.log_end_offset if max_offset is None else max_offset
    for segment in log.segments:
        if segment.base_offset >= limit:
            break
        if not segment.size_bytes or segment.max_timestamp()[0] < timestamp_ms:
            continue
        try:
            found = _search_segment(log, segment, timestamp_ms)
        except InvalidBatch:
            rebuild_indexes(segment, log.config)
            found = _search_segment(log, segment, timestamp_ms)
        if found is not None:
            return found if found.offset < limit else None
    return None


def _search_segment(log: Log, segment: LogSegment, timestamp_ms: int) -> TimestampedOffset | None:
    log_start_offset = log.log_start_offset
    file = segment.file()
    # No record up to that index entry's offset reaches the timestamp, unless it equals it.
    _, offset = segment.time_index.lookup(timestamp_ms - 1)
    _, start = segment.offset_index.lookup(max(offset, log_start_offset))
    for position, header in scan_headers(file, start, segment.size_bytes):
        if header.max_timestamp_ms < timestamp_ms or header.last_offset < log_start_offset:
            continue
        for record in _records(segment, position, header):
            if record.timestamp_ms >= timestamp_ms and record.offset >= log_start_offset:
                return TimestampedOffset(
                    record.timestamp_ms, record.offset, header.partition_leader_epoch
                )
    return None


def _largest(log: Log) -> TimestampedOffset | None:
    candidates = [segment for segment in log.segments if segment.size_bytes]
    if not candidates:
        return None
    segment = max(candidates, key=lambda each: each.max_timestamp()[0])
    timestamp_ms, last_offset = segment.max_timestamp()
    found = segment.find(last_offset) if timestamp_ms >= 0 else None
    if found is None:
        return None
    position, header = found
    for record in _records(segment, position, header):
        if record.timestamp_ms == timestamp_ms and record.offset >= log.log_start_offset:
            return TimestampedOffset(timestamp_ms, record.offset, header.partition_leader_epoch)
    return _search(log, timestamp_ms, None)


def _records(segment: LogSegment, position: int, header: BatchHeader) -> list[Record]:
    data = segment.file().pread(header.size_bytes, position)
    if not verify_crc(data, 0, header):
        raise InvalidBatch(
            InvalidBatchReason.BAD_CRC, f"{segment.path}: the CRC does not match", position=position
        )
    try:
        return decode_records(data)
    except InvalidBatch:
        # A producer sent this, intact and unreadable: no damage, and no single record to name.
        return [Record(header.base_offset, header.max_timestamp_ms, None, None)]


if TYPE_CHECKING:
    from collections.abc import Callable

    _Search = Callable[[], TimestampedOffset | None]
