"""LogSegments: the segments of one log in order, and what is read from them.

Owns: the list, the making of segment files, the choice of segment and bytes for a read, the check
of bytes before they leave for the first time, the files to sync for a flush, and which segments
retention may delete (`retention.ms` and `retention.bytes`, `deletable_count`).
Must not: know producers, the high watermark or the recovery point; copy record bytes on the serving
path.
Invariant: base offsets ascend; the last segment is the active one. A region that a read returns
holds whole batches, begins with the batch that holds the start offset, and was either written by
this process to the segment while it was active, or must pass its `RegionVerification` before it is
sent.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import overload

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import InvalidBatch, InvalidBatchReason
from moldau.runtime.clock import Clock
from moldau.runtime.files import File, FileRegion
from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import NO_END, BatchOrder, scan_verified
from moldau.storage.checkpoints import EpochStartOffset, SegmentSeal
from moldau.storage.faults import is_out_of_descriptors, is_out_of_room
from moldau.storage.indexes import AbortedTransaction
from moldau.storage.leader_epoch_cache import LeaderEpochCache, epochs_checksum
from moldau.storage.log_config import LogConfig
from moldau.storage.producer_state import NO_CRC, ProducerState
from moldau.storage.segment import ByteRange, LogSegment, OpenSegments
from moldau.storage.segment_seals import SegmentSeals

logger = logging.getLogger(__name__)

VERIFY_LIMIT_BYTES = 8 * 1024 * 1024
"""Unverified bytes that one read returns at most (one larger batch excepted)."""

COLD_AFTER_BYTES = 256 * 1024 * 1024
"""Bytes this far behind the end of the log are assumed to have left the page cache."""


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


@dataclass(slots=True)
class RegionVerification:
    """The check of the bytes of one read: CRCs, and what no CRC covers.

    `run` blocks on the disk and may run in any thread; it changes nothing but `order` and
    `failure`.
    """

    region: FileRegion
    expected_offset: int
    """Where the read begins."""
    order: BatchOrder
    failure: InvalidBatch | OSError | None = None

    def run(self) -> None:
        """Check every batch of the region. Never raises: the outcome is in `failure`."""
        region = self.region
        end = region.position + region.length
        try:
            for _ in scan_verified(region.file, region.position, end, self.order):
                pass
        except (InvalidBatch, OSError) as error:
            self.failure = error


@dataclass(slots=True, eq=False, repr=False)
class LogSegments(Sequence[LogSegment]):
    """A read-only sequence; `replace` changes it. Belongs to the log's loop."""

    filesystem: Filesystem
    clock: Clock
    directory: str
    producer_state: ProducerState
    """The producers of the same log: its snapshot files come and go with the segments."""
    open_segments: OpenSegments
    active: LogSegment = field(init=False)
    _segments: list[LogSegment] = field(default_factory=list)
    _base_offsets: list[int] = field(default_factory=list)
    replacement_count: int = 0
    """Grows when compaction put one segment in the place of others."""
    schedule_deletion: Callable[[int, list[str]], None] | None = None
    """Called with (delay_ms, paths) to unlink renamed files later; None unlinks at once."""
    seals: SegmentSeals = field(init=False)
    has_unproved: bool = False
    """Whether the transaction index of some segment may have to be proved first."""

    def __post_init__(self) -> None:
        self.seals = SegmentSeals(self.filesystem, self.directory)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> LogSegment: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogSegment]: ...
    def __getitem__(self, index: int | slice) -> LogSegment | list[LogSegment]:
        return self._segments[index]

    def replace(self, segments: list[LogSegment]) -> None:
        """Replace all segments (the last one is the active one)."""
        self._segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        segments[0].lowest_offset = 0
        for segment, end_offset in zip(segments, [*self._base_offsets[1:], NO_END], strict=True):
            segment.end_offset = end_offset

    def share_open_segments(self, open_segments: OpenSegments) -> None:
        """Count the closed segments among those of all logs of the loop."""
        self.open_segments = open_segments
        for segment in self._segments:
            segment.adopt_by(open_segments)

    def index_for(self, record_offset: int) -> int:
        """Index of the segment that would hold `record_offset` (0 for anything below the first)."""
        return max(bisect_right(self._base_offsets, record_offset) - 1, 0)

    def end_offset_of(self, index: int, log_end_offset: int) -> int:
        if index + 1 < len(self._segments):
            return self._base_offsets[index + 1]
        return log_end_offset

    def make(self, base_offset: int, size_bytes: int = 0) -> LogSegment:
        """A segment of this directory; no file is touched."""
        return LogSegment(
            self.filesystem,
            self.open_segments,
            self.directory,
            base_offset,
            size_bytes,
            self.clock.now_ms(),
        )

    def create(self, base_offset: int, config: LogConfig) -> LogSegment:
        """Files for a new active segment. Raises: OSError, with none of them left."""
        segment = self.make(base_offset)
        # Left over from a roll that a crash or a full disk cut short; nothing refers to them.
        for path in segment.paths():
            self.filesystem.unlink(path)
        try:
            segment.activate(config, create=True)
        except OSError:
            segment.discard()
            raise
        return segment

    def create_closed(self, base_offset: int) -> LogSegment:
        """Empty files for a segment that the first append will open. Raises: OSError."""
        segment = self.make(base_offset)
        for path in (segment.path, segment.offset_index.path, segment.time_index.path):
            self.filesystem.open(path, create=True).close()
        return segment

    def _replace_empty(self, base_offset: int, config: LogConfig) -> LogSegment:
        """Replace the active segment, which is empty, by one at `base_offset`. Raises: OSError."""
        old = self.active
        assert old.size_bytes == 0
        if old.base_offset == base_offset:
            old.discard()
            segment = self.create(base_offset, config)
        else:
            segment = self.create(base_offset, config)
            old.discard()
        self.replace([*self._segments[:-1], segment])
        return segment

    def roll_to(self, base_offset: int, config: LogConfig) -> LogSegment:
        """Close the active segment and begin one at `base_offset`. Raises: OSError.

        The new files exist before the old segment is touched: without room for them nothing
        happened.
        """
        old = self.active
        if not old.size_bytes:
            return self._replace_empty(base_offset, config)
        segment = self.create(base_offset, config)
        try:
            self.producer_state.map_end_offset = base_offset
            self.producer_state.take_snapshot()
            if old.is_active:
                old.deactivate()
            old.verified.distrust(old.size_bytes)
        except OSError:
            segment.discard()
            raise
        self.replace([*self._segments, segment])
        return segment

    def seal_closed(
        self, numbers: Iterable[int], log_end_offset: int, epochs: Sequence[EpochStartOffset]
    ) -> None:
        """Seal those segments of these numbers that are closed and whose indexes are proved;
        `epochs` are the log's leader epochs.

        Raises: OSError; InvalidBatch when files are damaged.
        """
        seals = []
        for index in numbers:
            segment = self._segments[index]
            if segment.is_active or not segment.transaction_index.is_proved:
                continue
            if segment.size_bytes:
                end_offset = self.end_offset_of(index, log_end_offset)
                snapshot_crc = self.producer_state.snapshot_crcs.get(end_offset, NO_CRC)
                epochs_crc = epochs_checksum(epochs, segment.base_offset, end_offset)
                seals.append(segment.seal(snapshot_crc, epochs_crc))
                segment.close_descriptors()
        self.seals.put(seals, self._base_offsets)

    def seal_of(self, segment: LogSegment) -> SegmentSeal | None:
        """The seal of a segment whose end was checked; None when there is none of these batches."""
        seal = self.seals.entries.get(segment.base_offset)
        return seal if seal is not None and segment.is_sealed_by(seal) else None

    def first_unproved(self, start_offset: int, upper_bound_offset: int) -> int | None:
        """Number of the first segment that has to be proved before `aborted_transactions`."""
        if not self.has_unproved:
            return None
        for index in range(self.index_for(start_offset), len(self._segments)):
            transaction_index = self._segments[index].transaction_index
            if not transaction_index.is_proved:
                return index
            if transaction_index.collect(start_offset, upper_bound_offset)[1]:
                return None
        return None

    def delete(self, segments: Sequence[LogSegment], config: LogConfig) -> None:
        """Rename the files of `segments` in the given order and unlink them later. Raises: OSError.

        Old segments go oldest first, those above a cut newest first. The list does not change.
        """
        renamed = []
        for segment in segments:
            renamed += segment.rename_deleted()
            self.producer_state.remove_snapshot(segment.base_offset)
        if self.schedule_deletion is not None:
            self.schedule_deletion(config.file_delete_delay_ms, renamed)
        else:
            for path in renamed:
                self.filesystem.unlink(path)

    def delete_oldest(self, count: int, config: LogConfig) -> None:
        """Take the first `count` segments from the list and delete them. Raises: OSError."""
        doomed = self._segments[:count]
        self.replace(self._segments[count:])
        self.delete(doomed, config)

    def activate_for_cut(self, cut_offset: int, config: LogConfig) -> None:
        """Open the segment that `truncate_to` cuts, which may take room: before any is removed.

        Raises: OSError.
        """
        cut = self._segments[self.index_for(cut_offset)]
        if not cut.is_active:
            cut.activate(config)

    def truncate_to(self, offset: int, config: LogConfig) -> int:
        """Remove the batches that reach to or past `offset`, in a segment that is open for it;
        returns where the log ends then.

        Raises: OSError, InvalidBatch.
        """
        index = self.index_for(offset)
        kept, dropped = self._segments[: index + 1], self._segments[index + 1 :]
        if dropped:
            self.delete(dropped[::-1], config)
            # New records may end exactly where a dropped segment began: a power loss must not bring
            # it back behind them.
            self.filesystem.fsync_directory(self.directory)
            self.replace(kept)
        return kept[-1].truncate_to(offset)

    def deletable_count(
        self,
        config: LogConfig,
        now_ms: int,
        log_start_offset: int,
        high_watermark: int,
        log_end_offset: int,
    ) -> int:
        """How many of the oldest segments the topic's retention deletes. Raises: OSError."""
        excess_bytes = -1
        if config.deletes and config.retention_bytes >= 0:
            excess_bytes = sum(each.size_bytes for each in self._segments) - config.retention_bytes
        count = 0
        for index, segment in enumerate(self._segments):
            end_offset = self.end_offset_of(index, log_end_offset)
            if end_offset > high_watermark or not segment.size_bytes:
                break
            is_below_start = end_offset <= log_start_offset and segment is not self.active
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

    def read(
        self,
        config: LogConfig,
        start_offset: int,
        *,
        log_end_offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_message: bool,
        epochs: LeaderEpochCache,
        contiguous: bool,
        truncation_count: int,
    ) -> ReadResult:
        """See `Log.read`. `epochs`: what unverified batches must agree with.

        Raises: OSError; InvalidBatch when the files are damaged.
        """
        segments = self._segments
        if start_offset >= self.active.base_offset:
            first = len(segments) - 1
        else:
            first = self.index_for(start_offset)
        for index in range(first, len(segments)):
            segment = segments[index]
            if segment.base_offset >= max_offset:
                break
            end_offset = self.end_offset_of(index, log_end_offset)
            found = _locate(
                segment, config, start_offset, end_offset, max_bytes, max_offset, min_one_message
            )
            if found is None:
                # Only compaction leaves a segment whose last batches are gone.
                if contiguous:
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
                    is_cold=self._is_cold(index, found.position),
                )
                return ReadResult(ErrorCode.NONE, region, found.next_offset)
            if found.end - found.position > VERIFY_LIMIT_BYTES < max_bytes:
                found = _locate(
                    segment, config, start_offset, end_offset, VERIFY_LIMIT_BYTES, max_offset, True
                )
                assert found is not None
            region = FileRegion(segment.file(), found.position, found.end - found.position)
            order = segment.order(end_offset)
            if order.lowest_offset is None:
                order.lowest_offset = segment.base_offset
            order.next_offset, order.contiguous = start_offset, contiguous
            order.epochs = epochs.entries
            verification = RegionVerification(region, start_offset, order)
            return ReadResult(
                ErrorCode.NONE,
                region,
                found.next_offset,
                verification,
                segment=segment,
                truncation_count=truncation_count,
            )
        return ReadResult(ErrorCode.NONE, next_offset=start_offset)

    def _is_cold(self, index: int, position: int) -> bool:
        """Whether the bytes are far enough behind the end to be read in the thread pool first."""
        segments = self._segments
        behind_bytes = segments[index].size_bytes - position
        for later in segments[index + 1 : index + 3]:
            behind_bytes += later.size_bytes
        return behind_bytes > COLD_AFTER_BYTES or index + 3 < len(segments)

    def aborted_transactions(
        self, start_offset: int, upper_bound_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions in [start_offset, upper_bound_offset), by first offset.

        Only when `first_unproved` says None for that range.
        Raises: OSError; ValueError when an index is damaged.
        """
        assert self.first_unproved(start_offset, upper_bound_offset) is None, "not proved"
        found: list[AbortedTransaction] = []
        for segment in self._segments[self.index_for(start_offset) :]:
            more, is_complete = segment.transaction_index.collect(start_offset, upper_bound_offset)
            found += more
            if is_complete:
                break
        return sorted(found, key=lambda each: each.first_offset)


def _locate(
    segment: LogSegment,
    config: LogConfig,
    start_offset: int,
    end_offset: int,
    max_bytes: int,
    max_offset: int,
    min_one_message: bool,
) -> ByteRange | None:
    """Ask the segment; if its indexes are wrong, rebuild them once from the log file."""
    try:
        return segment.locate(
            start_offset, end_offset, max_bytes, max_offset, min_one_message=min_one_message
        )
    except InvalidBatch as error:
        logger.warning("%s: %s: rebuilding the segment's indexes", segment.path, error)
        segment.rebuild_indexes(config)
        return segment.locate(
            start_offset, end_offset, max_bytes, max_offset, min_one_message=min_one_message
        )


@dataclass(slots=True)
class FlushJob:
    """The files to sync to make one log durable up to an offset, everything below the new recovery
    point first, then the directory. `run` blocks on the disk and may run in any thread.

    Must not touch the log's state: `Log.finish_flush` applies the outcome on the loop. Invariant:
    `failure` and `no_room` are None only if every file of the job was synced.
    """

    filesystem: Filesystem
    directory: str
    offset: int
    """The log end offset when the job was made: the recovery point after it."""
    leader_epoch_cache: LeaderEpochCache
    truncation_count: int
    seals: SegmentSeals | None = None
    files: list[File] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    failure: OSError | None = None
    no_room: OSError | None = None
    """Set instead if no fsync failed, but there was no room for the leader epochs or no descriptor
    for a file: the disk's state is known, and another flush may succeed."""
    lacks_seals: bool = False
    """There was no room for the seals: they are due still, and all else is durable."""

    def add(self, segment: LogSegment) -> None:
        """Sync the segment's files; its log file stays open until the job has run.

        Raises: OSError; then the job must not run.
        """
        try:
            file = segment.file()
        except OSError:
            self._release()
            raise
        file.acquire()
        self.files.append(file)
        self.paths += [segment.offset_index.path, segment.time_index.path]
        if segment.transaction_index.exists():
            self.paths.append(segment.transaction_index.path)

    def _release(self) -> None:
        for file in self.files:
            file.release()
        self.files.clear()

    def run(self) -> None:
        """Sync all of it. Never raises: the outcome is in `failure` and `no_room`."""
        try:
            for file in self.files:
                file.fdatasync()
            for path in self.paths:
                self._sync_path(path)
            try:
                self.leader_epoch_cache.write()
            except OSError as error:
                if not is_out_of_room(error):
                    raise
                self.no_room = error
            else:
                self._write_seals()
                self.filesystem.fsync_directory(self.directory)
        except OSError as error:
            if is_out_of_descriptors(error):
                self.no_room = error
            else:
                self.failure = error
        finally:
            self._release()

    def _write_seals(self) -> None:
        """Without room there are none: what they would say is proved again. Raises: OSError."""
        try:
            if self.seals is not None:
                self.seals.write()
        except OSError as error:
            if not is_out_of_room(error):
                raise
            self.lacks_seals = True

    def _sync_path(self, path: str) -> None:
        # Through its own descriptor: fsync covers mapped pages too, and the loop may trim,
        # unmap or delete the file at the same time.
        try:
            file = self.filesystem.open(path)
        except FileNotFoundError:
            return
        with closing(file):
            file.fsync()
