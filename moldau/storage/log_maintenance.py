"""What happens to a log besides appends and reads: flush, roll, retention, cuts, closing.

Owns: the order of file operations for each of them, so that a crash between any two leaves a log
that recovery brings back.
Must not: schedule itself (log_manager does) or decide policies beyond the topic's config.
Invariant: nothing below the recovery point is changed before the recovery point is lowered, on disk
too (`on_recovery_point_lowered`); files of old segments go oldest first, those above a cut newest
first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import InvalidBatch
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import DiskFull, LogOffline, is_out_of_room
from moldau.storage.flush_job import FlushJob
from moldau.storage.producer_recovery import reload_producers
from moldau.storage.segment import DELETED_SUFFIX, LogSegment

if TYPE_CHECKING:
    from moldau.storage.log import Log

logger = logging.getLogger("moldau.storage")


def _require_online(log: Log) -> None:
    if log.offline:
        raise LogOffline(log.name, log.offline_reason)


def _fail(log: Log, what: str, error: OSError | InvalidBatch | DiskFull) -> LogOffline:
    log.take_offline(f"{what} failed: {error}")
    return LogOffline(log.name, log.offline_reason)


# -- segments ------------------------------------------------------------------------------------


def create_segment(log: Log, base_offset: int) -> LogSegment:
    """Files for a new active segment. Raises: OSError, with none of them left."""
    segment = LogSegment(
        log.filesystem, log.open_segments, log.directory, base_offset, 0, log.clock.now_ms()
    )
    # Left over from a roll that a crash or a full disk cut short; nothing refers to them.
    for path in segment.paths():
        log.filesystem.unlink(path)
    try:
        segment.activate(log.config, create=True)
    except OSError:
        discard_segment(segment, log.filesystem)
        raise
    return segment


def create_resting_segment(log: Log, base_offset: int) -> LogSegment:
    """Empty files for a segment that the first append will open. Raises: OSError."""
    segment = LogSegment(
        log.filesystem, log.open_segments, log.directory, base_offset, 0, log.clock.now_ms()
    )
    for path in (segment.path, segment.offset_index.path, segment.time_index.path):
        log.filesystem.open(path, create=True).close()
    return segment


def discard_segment(segment: LogSegment, filesystem: Filesystem) -> None:
    """Take back a segment that was never written to. Raises: OSError."""
    segment.abandon()
    for path in segment.paths():
        filesystem.unlink(path)


def replace_empty_segment(log: Log, base_offset: int) -> LogSegment:
    """An empty active segment gives way to one at `base_offset`. Raises: OSError."""
    old = log.active_segment
    assert old.size_bytes == 0
    if old.base_offset == base_offset:
        discard_segment(old, log.filesystem)
        segment = create_segment(log, base_offset)
    else:
        segment = create_segment(log, base_offset)
        discard_segment(old, log.filesystem)
    log.set_segments([*log.segments[:-1], segment])
    return segment


def roll(log: Log) -> bool:
    """Begin a new segment at the log end offset, unless the active one is empty.

    Returns whether it did. Raises: LogOffline, DiskFull.
    """
    _require_online(log)
    if not log.active_segment.size_bytes:
        return False
    try:
        log.roll_to(log.log_end_offset)
    except OSError as error:
        if is_out_of_room(error):
            raise DiskFull(f"{log.name}: no room to roll: {error}") from None
        raise _fail(log, "roll", error) from None
    return True


def _remove_segments(log: Log, segments: list[LogSegment], *, delay: bool = True) -> None:
    """Rename the files of `segments` (in the given order) and unlink them later. Raises: OSError.

    Whoever is still sending from them keeps their descriptors.
    """
    renamed = []
    for segment in segments:
        segment.abandon()
        for path in segment.paths():
            log.filesystem.rename(path, path + DELETED_SUFFIX)
            renamed.append(path + DELETED_SUFFIX)
        log.producer_state.remove_snapshot(segment.base_offset)
    if log.schedule_deletion is not None and delay:
        log.schedule_deletion(log.config.file_delete_delay_ms, renamed)
    else:
        for path in renamed:
            log.filesystem.unlink(path)


# -- flush ---------------------------------------------------------------------------------------


def start_flush(log: Log) -> FlushJob | None:
    """What to sync so that everything appended so far is durable; None when all of it is.

    Offload `run` of the job, then call `finish_flush`. Raises: LogOffline, DiskFull.
    """
    _require_online(log)
    snapshots = log.producer_state.unsynced_snapshot_paths
    is_flushed = log.recovery_point >= log.log_end_offset
    if is_flushed and not snapshots and not log.leader_epoch_cache.is_dirty:
        return None
    job = FlushJob(
        log.filesystem,
        log.directory,
        log.log_end_offset,
        log.leader_epoch_cache,
        log.truncation_count,
    )
    try:
        # A segment that ends at the recovery point was flushed before it was rolled: the last words
        # in its indexes were not.
        first = log.segment_index_for(max(log.recovery_point - 1, 0))
        for segment in log.segments[first:]:
            job.add_file(segment.file())
            job.paths += [segment.offset_index.path, segment.time_index.path]
            if segment.transaction_index.exists():
                job.paths.append(segment.transaction_index.path)
    except OSError as error:
        for file in job.files:
            file.release()
        if is_out_of_room(error):
            raise DiskFull(f"{log.name}: cannot be flushed now: {error}") from None
        raise _fail(log, "flush", error) from None
    job.paths += snapshots
    log.producer_state.unsynced_snapshot_paths = []
    return job


def finish_flush(log: Log, job: FlushJob) -> None:
    """The job has run: the recovery point advances, or the log is offline (a failed fsync says
    nothing about what is on the disk). Raises: LogOffline; DiskFull, nothing is promised then.
    """
    _require_online(log)
    if job.failure is not None:
        raise _fail(log, "flush", job.failure) from None
    if job.no_room is not None:
        raise DiskFull(f"{log.name}: cannot be flushed now: {job.no_room}")
    if job.truncation_count == log.truncation_count:
        log.recovery_point = max(log.recovery_point, job.offset)
    log.last_flush_ms = log.clock.monotonic_ms()


def flush(log: Log) -> None:
    """Make everything appended so far durable, here and now. Raises: LogOffline, DiskFull."""
    job = start_flush(log)
    if job is not None:
        job.run()
        finish_flush(log, job)


# -- retention -----------------------------------------------------------------------------------


def apply_retention(log: Log, now_ms: int) -> int:
    """Delete what the topic's retention lets go, oldest first; returns the count of segments.

    Only what is below the high watermark goes. An expired active segment is rolled first.
    Raises: LogOffline, DiskFull.
    """
    _require_online(log)
    try:
        count = _deletable_count(log, now_ms)
        if count == 0:
            return 0
        if count == len(log.segments):
            count = _roll_expired(log, count)
        doomed, kept = log.segments[:count], log.segments[count:]
        _raise_log_start_offset(log, kept[0].base_offset)
        log.set_segments(kept)
        _remove_segments(log, doomed)
    except OSError as error:
        if is_out_of_room(error):
            raise DiskFull(f"{log.name}: no room to roll: {error}") from None
        raise _fail(log, "retention", error) from None
    logger.info("%s: deleted %d segments, starts at %d", log.name, count, log.log_start_offset)
    return count


def _roll_expired(log: Log, count: int) -> int:
    """Roll, so that the active segment can go too; how many can. Raises: OSError.

    A full disk must not keep the closed segments from going: that is what makes room.
    """
    try:
        log.roll_to(log.log_end_offset)
    except OSError as error:
        if count == 1 or not is_out_of_room(error):
            raise
        return count - 1
    return count


def _deletable_count(log: Log, now_ms: int) -> int:
    config = log.config
    excess_bytes = -1
    if config.deletes and config.retention_bytes >= 0:
        excess_bytes = log.size_bytes - config.retention_bytes
    count = 0
    for index, segment in enumerate(log.segments):
        end_offset = log.end_offset_of(index)
        if end_offset > log.high_watermark or not segment.size_bytes:
            break
        is_below_start = end_offset <= log.log_start_offset and segment is not log.active_segment
        is_old = (
            config.deletes
            and config.retention_ms >= 0
            and now_ms - segment.largest_timestamp_ms() > config.retention_ms
        )
        is_excess = excess_bytes >= segment.size_bytes
        if not (is_below_start or is_old or is_excess):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count


def _raise_log_start_offset(log: Log, offset: int) -> None:
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.high_watermark = max(log.high_watermark, offset)
        log.leader_epoch_cache.truncate_from_start(offset)
        log.producer_state.on_log_start_offset(offset)


def delete_records(log: Log, before_offset: int) -> tuple[ErrorCode, int]:
    """Records below `before_offset` (-1: the high watermark) are no longer read.

    Returns an error code and the log start offset (the "low watermark" of DeleteRecords, KIP-107).
    Whole segments below it are deleted. The new start is the caller's to checkpoint.
    """
    if log.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR, -1
    if before_offset == -1:
        before_offset = log.high_watermark
    if before_offset < 0 or before_offset > log.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    try:
        _advance_start(log, before_offset)
    except OSError as error:
        log.take_offline(f"delete records failed: {error}")
        return ErrorCode.KAFKA_STORAGE_ERROR, -1
    return ErrorCode.NONE, log.log_start_offset


def advance_log_start_offset(log: Log, log_start_offset: int) -> bool:
    """A follower's log begins where its leader's does, as far as it is committed: records below
    `log_start_offset` are no longer read, whole segments go. Returns whether the start moved.

    Raises: LogOffline.
    """
    _require_online(log)
    offset = min(log_start_offset, log.high_watermark)
    if offset <= log.log_start_offset:
        return False
    try:
        _advance_start(log, offset)
    except OSError as error:
        raise _fail(log, f"advance of the log start to {offset}", error) from None
    return True


def _advance_start(log: Log, offset: int) -> None:
    """Raises: OSError."""
    _raise_log_start_offset(log, offset)
    count = 0
    while count < len(log.segments) - 1 and log.end_offset_of(count) <= log.log_start_offset:
        count += 1
    if count:
        doomed = log.segments[:count]
        log.set_segments(log.segments[count:])
        _remove_segments(log, doomed)


# -- cuts ----------------------------------------------------------------------------------------


def truncate_to(log: Log, offset: int) -> bool:
    """Remove the records from `offset` on (whole batches); returns whether there were any.

    Raises: LogOffline.
    """
    _require_online(log)
    if offset >= log.log_end_offset:
        # An epoch in which this replica led and wrote nothing has no record to be cut with.
        log.leader_epoch_cache.truncate_from_end(log.log_end_offset)
        return False
    if offset <= log.segments[0].base_offset:
        truncate_fully_and_start_at(log, offset)
        return True
    try:
        index = log.segment_index_for(offset)
        found = log.segments[index].find(offset)
        # A batch that spans the offset goes as a whole: the recovery point may not stay inside it.
        end_offset = min(offset, found[1].base_offset) if found else offset
        if end_offset < log.segments[0].base_offset:
            # The first batch of a follower may begin below its segment; new ones may not.
            truncate_fully_and_start_at(log, end_offset)
            return True
        _lower_recovery_point(log, end_offset)
        kept, dropped = log.segments[: index + 1], log.segments[index + 1 :]
        if dropped:
            _remove_segments(log, dropped[::-1])
            # New records may end exactly where a dropped segment began: after a power loss it must
            # not be back behind them.
            log.filesystem.fsync_directory(log.directory)
            log.set_segments(kept)
        if not kept[-1].is_active:
            kept[-1].activate(log.config)
        log.log_end_offset = log.active_segment.truncate_to(offset)
        _after_cut(log)
    except (OSError, InvalidBatch) as error:
        raise _fail(log, f"truncation to {offset}", error) from None
    return True


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Remove all records; the log is empty, begins at `offset` and knows no leader epoch and no
    producer any more.

    Raises: LogOffline.
    """
    _require_online(log)
    try:
        _lower_recovery_point(log, min(log.log_start_offset, offset))
        # Those of a clean stop are at no segment's start: one at `offset` would be taken for true.
        log.producer_state.drop_all_snapshots()
        _remove_segments(log, log.segments[::-1])
        log.filesystem.fsync_directory(log.directory)
        log.set_segments([create_segment(log, offset)])
        log.log_start_offset = log.log_end_offset = log.high_watermark = offset
        log.recovery_point = offset
        log.leader_epoch_cache.clear()
        _after_cut(log)
    except (OSError, InvalidBatch) as error:
        raise _fail(log, f"restart at {offset}", error) from None


def _lower_recovery_point(log: Log, offset: int) -> None:
    log.truncation_count += 1
    if log.first_dirty_offset is not None and log.first_dirty_offset > offset:
        log.note_first_dirty(offset)
    if log.recovery_point > offset:
        log.recovery_point = offset
        if log.on_recovery_point_lowered is not None:
            log.on_recovery_point_lowered(log)


def _after_cut(log: Log) -> None:
    end = log.log_end_offset
    # The start can lie inside the batch that went, or above it all (KIP-107 after KIP-101).
    log.log_start_offset = min(log.log_start_offset, end)
    log.leader_epoch_cache.truncate_from_end(end)
    if log.log_start_offset == end:
        log.leader_epoch_cache.truncate_from_start(end)
    try:
        log.leader_epoch_cache.write()
    except OSError as error:
        # The next flush makes up for it; before that a recovery would, which begins below the cut.
        if not is_out_of_room(error):
            raise
    log.recovery_point = min(log.recovery_point, end)
    log.high_watermark = max(log.log_start_offset, min(log.high_watermark, end))
    reload_producers(log)
    log.producer_state.on_high_watermark(log.high_watermark)


def rest(log: Log) -> None:
    """See Log.rest."""
    _require_online(log)
    try:
        if log.active_segment.is_active:
            log.active_segment.deactivate()
        else:
            log.active_segment.close_descriptors()
    except (OSError, InvalidBatch) as error:
        raise _fail(log, "closing an idle log", error) from None


# -- the end -------------------------------------------------------------------------------------


def close(log: Log) -> None:
    """Flush, take a last producer snapshot, trim the indexes, close. Raises: LogOffline.

    After it the directory counts as cleanly shut down.
    """
    if log.offline:
        return
    try:
        if log.log_end_offset > log.segments[0].base_offset or log.producer_state.producers:
            log.producer_state.map_end_offset = log.log_end_offset
            _take_last_snapshot(log)
        if log.active_segment.is_active:
            log.active_segment.deactivate()
        flush(log)
    except (OSError, InvalidBatch, DiskFull) as error:
        raise _fail(log, "closing", error) from None
    abandon(log)


def _take_last_snapshot(log: Log) -> None:
    """Saves the next start a look at the last segment; it can do without. Raises: OSError."""
    try:
        log.producer_state.take_snapshot()
    except OSError as error:
        if not is_out_of_room(error):
            raise
        logger.warning("%s: no room for a snapshot of its producers: %s", log.name, error)


def abandon(log: Log) -> None:
    """Close the descriptors and nothing else: as a crash would, or before the directory goes."""
    log.offline = True
    log.offline_reason = log.offline_reason or "closed"
    log.leader_epoch_cache.close()
    for segment in log.segments:
        segment.abandon()
