"""LogRecovery: opening a log. After a clean stop its batches are believed, else the end is checked.

Owns: which segments are checked, where the log ends, the rebuild of indexes and epochs. A file
beside the log is believed when it agrees with the segment's seal, or, where there is none, with the
batches at its ends; a transaction index without a seal is proved when it is first needed.
Must not: serve, or repair what was flushed: damage below the recovery point is reported, the files
stay as they are for `moldau log verify`.
Invariant: after an unclean stop every batch at or above the recovery point's segment start passed
its CRC check; the first batch that does not, or that does not continue offsets and leader epochs,
ends the log whatever follows it (after a power loss holes are ordinary).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field

from moldau.protocol.records import BatchHeader, InvalidBatch, InvalidBatchReason
from moldau.storage.batch_scan import NO_END, scan_headers, scan_verified
from moldau.storage.cleaner.cleaned_segment import finish_swaps
from moldau.storage.faults import CorruptFile, LogDamaged
from moldau.storage.leader_epoch_cache import EpochComparison, LeaderEpochCache
from moldau.storage.log_config import LogConfig
from moldau.storage.log_segments import LogSegments
from moldau.storage.producer_state import NO_CRC
from moldau.storage.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    LogSegment,
    segment_path,
)

logger = logging.getLogger(__name__)

_TEMPORARY_SUFFIX = ".tmp"


@dataclass(eq=False, repr=False)
class LogRecovery:
    """Used once: `run`, then (when the log has its offsets) `finish`."""

    _segments: LogSegments
    _leader_epoch_cache: LeaderEpochCache
    _config: LogConfig
    _may_have_holes: bool
    _compared: EpochComparison = field(default_factory=EpochComparison)
    """The leader epochs that the checkpoint file had; none of a file that cannot be read."""
    _flushed_end: int = 0
    """Below it no file lags behind the batches."""
    log_start_offset: int = 0
    log_end_offset: int = 0
    """Below `log_start_offset` when the unflushed end was lost: the log must begin there."""
    recovery_point: int = 0

    def __post_init__(self) -> None:
        self._producer_state = self._segments.producer_state
        self._now_ms = self._segments.clock.now_ms()

    def run(self, log_start_offset: int, recovery_point: int, clean_shutdown: bool) -> None:
        """Fill the segments, epochs and producers from the directory, making it if need be.

        Raises: LogDamaged below the recovery point; OSError, InvalidBatch, CorruptFile.
        """
        if recovery_point <= log_start_offset and not clean_shutdown:
            # All that was flushed was deleted by request. What is left promises nothing: a crash
            # while it was being removed leaves gaps that are no damage.
            recovery_point = 0
        self.recovery_point = recovery_point
        self._flushed_end = NO_END if clean_shutdown else recovery_point
        filesystem, directory = self._segments.filesystem, self._segments.directory
        filesystem.mkdirs(directory)
        self._tidy()
        segments = self._find_segments()
        if not segments:
            if recovery_point > log_start_offset:
                raise LogDamaged(
                    directory, 0, f"no segment, but {recovery_point} is its recovery point"
                )
            segments = [self._segments.create_closed(log_start_offset)]
            clean_shutdown = True
        self._segments.replace(segments)
        self.log_start_offset = max(log_start_offset, segments[0].base_offset)
        self._producer_state.list_snapshots()
        self._load_seals()
        first_checked = len(segments)
        if not clean_shutdown:
            # From here on all batches are checked, and the indexes are rebuilt.
            first_checked = self._segments.index_for(recovery_point)
        end_offset = self._check_flushed(first_checked)
        self._load_epochs(first_checked, end_offset)
        is_replayed = first_checked < len(segments)
        if is_replayed:
            base_offset = segments[first_checked].base_offset
            self._producer_state.drop_snapshots_above(base_offset)
            self._producer_state.load(self._segments, base_offset, self._now_ms)
            self._leader_epoch_cache.truncate_from_end(base_offset)
            end_offset = self._recover(first_checked)
            self._segments.seals.forget_from(base_offset)
        if self._compared.is_wrong:
            self._warn_of_epochs("the file has others")
        active = self._segments.active
        if end_offset < recovery_point:
            raise LogDamaged(
                active.path,
                active.size_bytes,
                f"the log ends at offset {end_offset}, {recovery_point} is its recovery point",
            )
        self.log_end_offset = end_offset
        if active.size_bytes:
            indexed_to = active.offset_index.position_at_most(active.size_bytes)
            active.bytes_since_index_entry = active.size_bytes - indexed_to
        self.recovery_point = end_offset if clean_shutdown else min(recovery_point, end_offset)
        self._leader_epoch_cache.truncate_from_end(end_offset)
        self._leader_epoch_cache.truncate_from_start(self.log_start_offset)
        if not is_replayed and self.log_start_offset <= end_offset:
            self._producer_state.load(self._segments, end_offset, self._now_ms)

    def finish(self, log_end_offset: int) -> None:
        """Close the files: the first append opens those that it needs. Raises: OSError."""
        self._producer_state.map_end_offset = log_end_offset
        self._producer_state.remove_stray_snapshots(each.base_offset for each in self._segments)
        active = self._segments.active
        if active.is_active:
            active.deactivate()
        elif active.offset_index.capacity:
            active.finish_indexes()
        active.close_descriptors()

    def _tidy(self) -> None:
        """Finish or undo what a stop left half done; none of it holds records that count."""
        filesystem, directory = self._segments.filesystem, self._segments.directory
        finish_swaps(filesystem, directory)
        for name in filesystem.listdir(directory):
            if name.endswith((DELETED_SUFFIX, _TEMPORARY_SUFFIX)):
                filesystem.unlink(f"{directory}/{name}")
        names = filesystem.listdir(directory)
        bases = {name[:OFFSET_DIGITS] for name in names if name.endswith(LOG_SUFFIX)}
        for name in names:
            is_index = name.endswith(SEGMENT_SUFFIXES) and not name.endswith(LOG_SUFFIX)
            if is_index and name[:OFFSET_DIGITS] not in bases:
                filesystem.unlink(f"{directory}/{name}")

    def _find_segments(self) -> list[LogSegment]:
        filesystem, directory = self._segments.filesystem, self._segments.directory
        segments = []
        for name in filesystem.listdir(directory):
            digits = name.removesuffix(LOG_SUFFIX)
            if name != digits and len(digits) == OFFSET_DIGITS and digits.isdigit():
                base_offset = int(digits)
                path = segment_path(directory, base_offset, LOG_SUFFIX)
                segments.append(self._segments.make(base_offset, filesystem.size_bytes(path)))
        return segments

    def _load_seals(self) -> None:
        try:
            self._segments.seals.load()
        except CorruptFile as error:
            logger.warning("%s: no file beside the log is believed", error)

    def _load_epochs(self, first_checked: int, end_offset: int) -> None:
        """Read the epoch file; if it is not what the batches say, take the epochs from them.

        Only segments that recovery does not read anyway are scanned for it. Raises: OSError;
        LogDamaged when a batch is wrong and not the file.
        """
        cache = self._leader_epoch_cache
        try:
            cache.load()
            if not cache.is_dirty:
                self._compare_ends(first_checked, end_offset)
                if not self._compared.is_wrong:
                    if not first_checked and self._segments[0].size_bytes:
                        cache.clear()  # Recovery reads every batch.
                    return
            elif any(each.size_bytes for each in self._segments[:first_checked]):
                self._warn_of_epochs("no file has them")
        except CorruptFile as error:
            self._warn_of_epochs(str(error))
        cache.clear()
        for segment in self._segments[:first_checked]:
            order = segment.order()
            order.leader_epoch = cache.latest_epoch
            try:
                for _, header in scan_headers(segment.file(), 0, segment.size_bytes, order):
                    cache.assign(header.partition_leader_epoch, header.base_offset)
            except InvalidBatch as error:
                raise LogDamaged(segment.path, error.position, error.message) from None

    def _warn_of_epochs(self, why: str) -> None:
        directory = self._segments.directory
        logger.warning("%s: taking the leader epochs from the batches: %s", directory, why)

    def _compare_ends(self, count: int, end_offset: int) -> None:
        """Compare the batches at both ends of each epoch with the file: as epochs never descend in
        a log, all between them have theirs if those do. Raises: OSError, LogDamaged.
        """
        compared = self._compared = EpochComparison(
            self._leader_epoch_cache.entries, self.log_start_offset, self._flushed_end
        )
        if not count:
            return
        first = self._segments[0].base_offset
        end_offset = self._segments.end_offset_of(count - 1, end_offset)
        starts = [each.start_offset for each in compared.entries]
        for offset in sorted({first, *starts, *[each - 1 for each in starts], end_offset - 1}):
            if first <= offset < end_offset:
                segment = self._segments[self._segments.index_for(offset)]
                found = self._find(segment, offset)
                difference = "" if found is None else compared.difference(found[1])
                if found is not None and difference:
                    self._judge(segment, end_offset, found[0], difference)

    def _judge(self, segment: LogSegment, end_offset: int, position: int, difference: str) -> None:
        """The batch at `position` differs from the epoch file. Raises: LogDamaged when the batch is
        wrong, and not the file. `end_offset` is where the checked segments end.
        """
        seal = self._segments.seal_of(segment)
        if self._compared.is_as_sealed(seal, min(segment.end_offset, end_offset)):
            raise LogDamaged(segment.path, position, difference)
        self._compared.is_wrong = True

    def _find(self, segment: LogSegment, offset: int) -> tuple[int, BatchHeader] | None:
        """As `LogSegment.find`, rebuilding indexes that turn out to be wrong. Raises: OSError,
        LogDamaged.
        """
        try:
            try:
                return segment.find(offset)
            except InvalidBatch:
                self._rebuild_indexes(segment)
                return segment.find(offset)
        except InvalidBatch as error:
            raise LogDamaged(segment.path, error.position, error.message) from None

    def _rebuild_indexes(self, segment: LogSegment) -> None:
        """Raises: OSError; InvalidBatch of a damaged log file, with its indexes as they were."""
        for _ in scan_headers(segment.file(), 0, segment.size_bytes, segment.order()):
            pass
        logger.warning("%s: missing or damaged indexes, rebuilding them", segment.path)
        segment.rebuild_indexes(self._config)

    def _check_files(self, segment: LogSegment) -> BatchHeader | None:
        """Check the segment's indexes, and rebuild what is not believed; returns the last batch's
        header. Raises: InvalidBatch, OSError.
        """
        last, are_true = None, False
        with suppress(InvalidBatch):
            if segment.indexes_are_sane():
                last = segment.check_end()
                are_true = segment.indexes_are_true(self._segments.seal_of(segment))
        if not are_true:
            self._rebuild_indexes(segment)
            last = segment.check_end()
        index, seal = segment.transaction_index, self._segments.seal_of(segment)
        end_offset = segment.base_offset if last is None else last.next_offset
        if not segment.size_bytes:
            index.begin_rebuild()
            index.finish_rebuild()
        elif seal is None:
            self._distrust(segment, end_offset)
        elif not index.is_sane() or seal.transaction_index_crc != index.checksum():
            logger.warning(
                "%s: missing or damaged, it will be rebuilt from the log before it is used",
                index.path,
            )
            self._distrust(segment, end_offset)
        elif not are_true:
            seals = self._segments.seals
            renewed = segment.seal(seal.snapshot_crc, seal.epochs_crc)
            seals.put([renewed], seals.entries.keys())
        return last

    def _distrust(self, segment: LogSegment, end_offset: int) -> None:
        segment.transaction_index.distrust(end_offset)
        self._segments.has_unproved = True

    def _check_flushed(self, count: int) -> int:
        """Check that the first `count` segments end where the next begins, and what lies beside
        them; returns the last end.

        Only the ends are read: bytes inside are checked before they are first served.
        Raises: LogDamaged, OSError.
        """
        snapshot_crcs = self._producer_state.snapshot_crcs
        segments = self._segments
        end_offset = max(segments.active.base_offset, self.log_start_offset)
        for index, segment in enumerate(segments[:count]):
            try:
                last = self._check_files(segment)
            except InvalidBatch as error:
                raise LogDamaged(segment.path, error.position, error.message) from None
            end_offset = last.next_offset if last is not None else segment.base_offset
            next_base = segments.end_offset_of(index, end_offset)
            seal = segments.seal_of(segment)
            if seal is not None and seal.snapshot_crc != NO_CRC:
                snapshot_crcs[next_base] = seal.snapshot_crc
            if index + 1 == len(segments):
                break
            if end_offset > next_base or (end_offset < next_base and not self._may_have_holes):
                raise LogDamaged(
                    segment.path,
                    segment.size_bytes,
                    f"ends at offset {end_offset}, the next segment begins at {next_base}",
                )
        return end_offset

    def _recover(self, first: int) -> int:
        """Check and index the segments from number `first` on; returns the log end offset.

        Raises: LogDamaged when it ends below the recovery point; OSError.
        """
        segments = self._segments[:]
        next_offset = segments[first].base_offset
        for index in range(first, len(segments)):
            segment = segments[index]
            if index > first:
                segments[index - 1].finish_indexes()
                if segment.base_offset != next_offset:
                    # Also where offsets may be missing: a new segment begins where the one before
                    # it ends, and compaction keeps it so. A power loss does not.
                    self._end_at(index, next_offset, "a gap before it")
                    break
                self._producer_state.map_end_offset = next_offset
                self._producer_state.take_snapshot()
            segment.begin_indexes(self._config)
            segment.transaction_index.begin_rebuild()
            position, next_offset, failure = self._recover_segment(segment, next_offset)
            if failure is not None:
                if next_offset < self.recovery_point:
                    raise LogDamaged(segment.path, position, str(failure))
                logger.warning(
                    "%s: recovered up to offset %d; %d bytes dropped: %s",
                    segment.path,
                    next_offset,
                    segment.size_bytes - position,
                    failure,
                )
                segment.cut_damaged_end(position)
            segment.transaction_index.finish_rebuild()
            if not self._producer_state.is_proved:
                self._distrust(segment, next_offset)
            segment.verified.trusted_from = 0
            if failure is not None:
                self._end_at(index + 1, next_offset, "an invalid batch before it")
                break
        self._producer_state.map_end_offset = next_offset
        return next_offset

    def _recover_segment(
        self, segment: LogSegment, next_offset: int
    ) -> tuple[int, int, InvalidBatch | None]:
        """`(position, next offset, failure)`: how far the segment is good.

        Raises: LogDamaged, OSError.
        """
        before_last = next_offset
        position, difference = 0, ""
        differing: tuple[int, str] | None = None
        order = segment.order()
        order.contiguous = not self._may_have_holes
        order.leader_epoch = self._leader_epoch_cache.latest_epoch
        file, size_bytes = segment.file(), segment.size_bytes
        try:
            for position, header, batch in scan_verified(file, 0, size_bytes, order):
                difference = self._compared.difference(header)
                if difference and differing is None:
                    differing = position, difference
                segment.note_batch(position, header, self._config.index_interval_bytes)
                if header.partition_leader_epoch > self._leader_epoch_cache.latest_epoch:
                    self._begin_epoch(header, next_offset)
                self._producer_state.replay(
                    header, batch, self._now_ms, index=segment.transaction_index
                )
                before_last, next_offset = next_offset, header.next_offset
        except InvalidBatch as failure:
            if failure.reason is InvalidBatchReason.BAD_OFFSET:
                # Two batches contradict each other.
                if before_last < self.recovery_point < next_offset:
                    raise LogDamaged(segment.path, failure.position, failure.message) from None
                if difference:
                    # And the epoch file contradicts the first one, which was flushed.
                    raise LogDamaged(segment.path, position, difference) from None
            return failure.position, next_offset, failure
        if differing is not None:
            self._judge(segment, next_offset, *differing)
        return segment.size_bytes, next_offset, None

    def _begin_epoch(self, header: BatchHeader, previous_end: int) -> None:
        """A batch is the first one left of its leader epoch. Where the epoch began may be known
        better by the file: a replica that has other records from there on must be cut there.
        """
        cache = self._leader_epoch_cache
        for epoch, start_offset in self._compared.begun_in_gap(header, previous_end):
            cache.assign(epoch, start_offset)
        cache.assign(header.partition_leader_epoch, header.base_offset)

    def _end_at(self, index: int, end_offset: int, why: str) -> None:
        """Drop the segments from number `index` on, newest first.

        Raises: LogDamaged if flushed records are among them; OSError.
        """
        dropped = self._segments[index:]
        if not dropped:
            return
        if end_offset < self.recovery_point:
            raise LogDamaged(dropped[0].path, 0, f"not reachable: {why} at offset {end_offset}")
        for segment in reversed(dropped):
            logger.warning("%s: dropped in recovery: %s", segment.path, why)
            segment.discard()
            self._producer_state.remove_snapshot(segment.base_offset)
        # Gone for good before new records take their offsets: else a power loss brings them back.
        self._segments.filesystem.fsync_directory(self._segments.directory)
        self._segments.replace(self._segments[:index])
