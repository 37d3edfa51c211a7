"""Opening a log: after a clean stop believe the files, after any other check what was not flushed.

Owns: which segments are checked, where the log ends, the rebuild of indexes and epochs.
Must not: serve, or repair what was flushed: damage below the recovery point is reported, the files
stay as they are for `moldau log verify`.
Invariant: after an unclean stop every batch at or above the recovery point's segment start passed
its CRC check; the first one that does not, or that does not continue the offsets, ends the log
whatever follows it (after a power loss holes are ordinary).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from moldau.protocol.records import InvalidBatch, InvalidBatchReason
from moldau.storage import log_maintenance
from moldau.storage.batch_scan import scan_headers, scan_verified
from moldau.storage.cleaner.swap import finish_swaps
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.faults import DiskFull, LogDamaged, LogOffline, is_out_of_room
from moldau.storage.producer_recovery import load_producers, reload_producers, replay_batch
from moldau.storage.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SEGMENT_SUFFIXES,
    LogSegment,
    segment_path,
)
from moldau.storage.segment_recovery import begin_indexes, finish_indexes, indexes_are_sane

if TYPE_CHECKING:
    from moldau.storage.log import Log

logger = logging.getLogger("moldau.storage")

_OFFSET_DIGITS = 20
_TEMPORARY_SUFFIX = ".tmp"


def open_log(log: Log, *, log_start_offset: int, recovery_point: int, clean_shutdown: bool) -> None:
    """Fill a new Log from its directory, making the directory if need be.

    Damage below the recovery point, or a failing disk, leaves the log offline. Raises: DiskFull.
    """
    try:
        _open(log, log_start_offset, recovery_point, clean_shutdown)
    except LogDamaged as error:
        log.take_offline(f"damaged below its recovery point {recovery_point}: {error}")
    except LogOffline as error:
        # The disk failed while records were cut, and whoever cut them has said so already.
        log.take_offline(error.reason)
    except (OSError, InvalidBatch, CorruptFile) as error:
        for segment in log.segments:
            segment.abandon()
        if isinstance(error, OSError) and is_out_of_room(error):
            raise DiskFull(f"{log.name}: no room to open it: {error}") from None
        log.take_offline(f"cannot be opened: {error}")


def _open(log: Log, log_start_offset: int, recovery_point: int, clean_shutdown: bool) -> None:
    if recovery_point <= log_start_offset and not clean_shutdown:
        # All that was flushed was deleted by request. What is left of it promises nothing: a crash
        # while it was being removed leaves gaps that are no damage.
        recovery_point = 0
    log.filesystem.mkdirs(log.directory)
    _tidy(log)
    segments = _find_segments(log)
    if not segments:
        if recovery_point > log_start_offset:
            raise LogDamaged(
                log.directory, 0, f"no segment, but {recovery_point} is its recovery point"
            )
        segments = [log_maintenance.create_resting_segment(log, log_start_offset)]
        clean_shutdown = True
    log.set_segments(segments)
    log.log_start_offset = max(log_start_offset, segments[0].base_offset)
    log.log_end_offset = max(segments[-1].base_offset, log.log_start_offset)
    log.producer_state.list_snapshots()
    first_checked = _first_to_check(log, recovery_point, clean_shutdown)
    _load_epochs(log, first_checked)
    end_offset = _check_flushed(log, first_checked)
    if first_checked < len(segments):
        base_offset = segments[first_checked].base_offset
        log.producer_state.drop_snapshots_above(base_offset)
        load_producers(log, base_offset)
        log.leader_epoch_cache.truncate_from_end(base_offset)
        end_offset = _recover(log, first_checked, recovery_point)
    if end_offset < recovery_point:
        raise LogDamaged(
            log.active_segment.path,
            log.active_segment.size_bytes,
            f"the log ends at offset {end_offset}, {recovery_point} is its recovery point",
        )
    log.log_end_offset = end_offset
    _finish(log, recovery_point, clean_shutdown, replayed=first_checked < len(segments))


def _finish(log: Log, recovery_point: int, clean_shutdown: bool, *, replayed: bool) -> None:
    end_offset = log.log_end_offset
    active = log.active_segment
    if active.size_bytes:
        indexed_to = active.offset_index.position_at_most(active.size_bytes)
        active.bytes_since_index_entry = active.size_bytes - indexed_to
    log.recovery_point = end_offset if clean_shutdown else min(recovery_point, end_offset)
    log.leader_epoch_cache.truncate_from_end(end_offset)
    log.leader_epoch_cache.truncate_from_start(log.log_start_offset)
    if log.log_start_offset > end_offset:
        # Records were deleted up to a point that the unflushed end did not survive to.
        log_maintenance.truncate_fully_and_start_at(log, log.log_start_offset)
    elif not replayed:
        reload_producers(log)
    log.producer_state.map_end_offset = log.log_end_offset
    log.producer_state.remove_stray_snapshots(s.base_offset for s in log.segments)
    log.high_watermark = log.log_start_offset
    # Nothing stays open for a log that nobody may ever append to: the first append opens it.
    active = log.active_segment
    if active.is_active:
        active.deactivate()
    elif active.offset_index.capacity:
        finish_indexes(active)
    active.close_descriptors()


def _tidy(log: Log) -> None:
    """Finish or undo what a stop left half done; nothing of it holds records that count."""
    filesystem, directory = log.filesystem, log.directory
    finish_swaps(filesystem, directory)
    for name in filesystem.listdir(directory):
        if name.endswith((DELETED_SUFFIX, _TEMPORARY_SUFFIX)):
            filesystem.unlink(f"{directory}/{name}")
    names = filesystem.listdir(directory)
    bases = {name[:_OFFSET_DIGITS] for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        is_index = name.endswith(SEGMENT_SUFFIXES) and not name.endswith(LOG_SUFFIX)
        if is_index and name[:_OFFSET_DIGITS] not in bases:
            filesystem.unlink(f"{directory}/{name}")


def _find_segments(log: Log) -> list[LogSegment]:
    now_ms = log.clock.now_ms()
    segments = []
    for name in log.filesystem.listdir(log.directory):
        digits = name.removesuffix(LOG_SUFFIX)
        if name != digits and len(digits) == _OFFSET_DIGITS and digits.isdigit():
            base_offset = int(digits)
            size_bytes = log.filesystem.size_bytes(segment_path(log.directory, base_offset, ".log"))
            segments.append(
                LogSegment(
                    log.filesystem,
                    log.open_segments,
                    log.directory,
                    base_offset,
                    size_bytes,
                    now_ms,
                )
            )
    return segments


def _first_to_check(log: Log, recovery_point: int, clean_shutdown: bool) -> int:
    """Index of the first segment whose every batch is checked and whose indexes are made anew."""
    limit = len(log.segments)
    if not clean_shutdown:
        limit = log.segment_index_for(recovery_point)
    for index, segment in enumerate(log.segments[:limit]):
        if segment.is_active:
            continue
        if not (indexes_are_sane(segment) and segment.transaction_index.is_sane()):
            logger.warning("%s: missing or damaged indexes, rebuilding them", segment.path)
            return index
    return limit


def _check_flushed(log: Log, count: int) -> int:
    """Whether the first `count` segments end where the next begins; returns where they end.

    A look at the ends only: bytes inside are checked before they are first served.
    Raises: LogDamaged, OSError.
    """
    end_offset = log.log_end_offset
    for index, segment in enumerate(log.segments[:count]):
        try:
            last = segment.check_end()
        except InvalidBatch as error:
            raise LogDamaged(segment.path, error.position, error.message) from None
        end_offset = last.next_offset if last is not None else segment.base_offset
        if index + 1 == len(log.segments):
            break
        next_base = log.segments[index + 1].base_offset
        if end_offset > next_base or (end_offset < next_base and not log.may_have_holes):
            raise LogDamaged(
                segment.path,
                segment.size_bytes,
                f"ends at offset {end_offset}, the next segment begins at {next_base}",
            )
    return end_offset


def _recover(log: Log, first: int, recovery_point: int) -> int:
    """Check and index the segments from number `first` on; returns the log end offset.

    Raises: LogDamaged when it ends below the recovery point; OSError.
    """
    next_offset = log.segments[first].base_offset
    for index in range(first, len(log.segments)):
        segment = log.segments[index]
        if index > first:
            finish_indexes(log.segments[index - 1])
            if segment.base_offset != next_offset:
                # Also where offsets may be missing: a segment begins where the one before it ends
                # when it is made, and compaction keeps it so. A power loss does not.
                _end_at(log, index, next_offset, recovery_point, "a gap before it")
                break
            log.producer_state.map_end_offset = next_offset
            log.producer_state.take_snapshot()
        begin_indexes(segment, log.config)
        segment.transaction_index.begin_rebuild()
        position, next_offset, failure = _recover_segment(log, segment, next_offset)
        if failure is not None:
            if next_offset < recovery_point:
                raise LogDamaged(segment.path, position, str(failure))
            logger.warning(
                "%s: recovered up to offset %d; %d bytes dropped: %s",
                segment.path,
                next_offset,
                segment.size_bytes - position,
                failure,
            )
            _cut_tail(log, segment, position)
        segment.transaction_index.finish_rebuild()
        segment.verified.trusted_from = 0
        if failure is not None:
            _end_at(log, index + 1, next_offset, recovery_point, "an invalid batch before it")
            break
    log.producer_state.map_end_offset = next_offset
    return next_offset


def _recover_segment(
    log: Log, segment: LogSegment, next_offset: int
) -> tuple[int, int, InvalidBatch | None]:
    """`(position, next offset, failure)`: how far the segment is good."""
    position = 0
    now_ms = log.clock.now_ms()
    contiguous = not log.may_have_holes
    is_first_of_log = segment is log.segments[0]
    try:
        for position, header, batch in scan_verified(segment.file(), 0, segment.size_bytes):
            gap = header.base_offset - next_offset
            straddles = is_first_of_log and position == 0 and header.last_offset >= next_offset
            if (gap < 0 and not straddles) or (gap > 0 and contiguous):
                raise InvalidBatch(
                    InvalidBatchReason.BAD_OFFSET,
                    f"base offset {header.base_offset} where {next_offset} is next",
                    position=position,
                )
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise InvalidBatch(
                    InvalidBatchReason.BAD_OFFSET,
                    f"offset {header.last_offset} is too far from the segment's base",
                    position=position,
                )
            segment.note_batch(position, header, log.config.index_interval_bytes)
            log.leader_epoch_cache.assign(header.partition_leader_epoch, header.base_offset)
            replay_batch(log, header, batch, now_ms, index=segment.transaction_index)
            next_offset = header.next_offset
    except InvalidBatch as failure:
        return failure.position, next_offset, failure
    return segment.size_bytes, next_offset, None


def _cut_tail(log: Log, segment: LogSegment, position: int) -> None:
    segment.close_log_file()
    file = log.filesystem.open(segment.path)
    try:
        file.truncate(position)
    finally:
        file.close()
    segment.size_bytes = position


def _end_at(log: Log, index: int, end_offset: int, recovery_point: int, why: str) -> None:
    """Drop the segments from number `index` on, newest first.

    Raises: LogDamaged if flushed records are among them; OSError.
    """
    dropped = log.segments[index:]
    if not dropped:
        return
    if end_offset < recovery_point:
        raise LogDamaged(dropped[0].path, 0, f"not reachable: {why} at offset {end_offset}")
    for segment in reversed(dropped):
        logger.warning("%s: dropped in recovery: %s", segment.path, why)
        segment.abandon()
        for path in segment.paths():
            log.filesystem.unlink(path)
        log.producer_state.remove_snapshot(segment.base_offset)
    # Gone for good before new records take their offsets: else a power loss brings them back.
    log.filesystem.fsync_directory(log.directory)
    log.set_segments(log.segments[:index])


def _load_epochs(log: Log, first_checked: int) -> None:
    """Read the epoch file; if it is missing or damaged, take the epochs from the batches.

    Only the segments that recovery does not walk through anyway are scanned for it.
    """
    cache = log.leader_epoch_cache
    try:
        cache.load()
        if not cache.is_dirty:
            return
    except CorruptFile as error:
        logger.warning("%s: taking the leader epochs from the batches", error)
        cache.clear()
    for segment in log.segments[:first_checked]:
        try:
            for _, header in scan_headers(segment.file(), 0, segment.size_bytes):
                cache.assign(header.partition_leader_epoch, header.base_offset)
        except InvalidBatch as error:
            raise LogDamaged(segment.path, error.position, error.message) from None
