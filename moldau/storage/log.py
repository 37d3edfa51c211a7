"""Log: one partition's records, as a list of segments.

Owns: the offsets of the log, the order in which files and memory change, also when retention and
DeleteRecords move the log's start.
Must not: know replication, acknowledgements or other partitions; decide what may be appended
(`append` does) or deleted (`log_segments` does); wait; schedule itself.
Invariant: log_start_offset <= high_watermark <= log_end_offset, recovery_point <= log_end_offset,
and everything below the recovery point is on stable storage. The recovery point is lowered, on disk
too, before anything below it is changed. The caller's buffer is changed only when every batch in it
passed, memory only when the bytes are in the file: after a failed append the log is what it was
before, or offline. All methods belong to one loop; what blocks on a disk for long (flush,
verification, recompression, opening) is split off for `Filesystem.offload`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import InvalidBatch
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage import append
from moldau.storage.append import AppendOrigin, AppendResult, RecordBatches, RoomlessProducers
from moldau.storage.faults import (
    AppendRejected,
    CorruptFile,
    DiskFull,
    LogDamaged,
    LogOffline,
    is_out_of_room,
    lacks_room,
)
from moldau.storage.indexes import AbortedTransaction
from moldau.storage.leader_epoch_cache import LeaderEpochCache
from moldau.storage.log_config import LogConfig
from moldau.storage.log_recovery import LogRecovery
from moldau.storage.log_segments import FlushJob, LogSegments, ReadResult
from moldau.storage.producer_entry import NO_OFFSET, ProducerBatch, ProducerUpdate, Verification
from moldau.storage.producer_state import ProducerState
from moldau.storage.segment import MAX_RELATIVE_OFFSET, LogSegment, OpenSegments

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class Log:
    """One partition's log; call `Log.open`. States: online -> offline, until a restart."""

    segments: LogSegments
    clock: Clock
    topic_partition: TopicPartition
    config: LogConfig
    topic_id: uuid.UUID
    first_dirty_offset: int | None
    """Compaction has seen everything below; None: no compaction yet, no offset is missing."""
    filesystem: Filesystem = field(init=False)
    directory: str = field(init=False)
    leader_epoch_cache: LeaderEpochCache = field(init=False)
    producer_state: ProducerState = field(init=False)
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    recovery_point: int = 0
    offline: bool = False
    offline_reason: str = ""
    lacks_room: bool = False
    """Whether something was left half done on a full disk: the log can be opened again."""
    is_out_of_room: bool = False
    """Whether the last append found no room: logged once, not for every append."""
    roomless_producers: RoomlessProducers = field(default_factory=RoomlessProducers)
    last_flush_ms: float = field(init=False)
    """The time by the monotonic clock: setting the wall clock must not delay `flush.ms`."""
    truncation_count: int = 0
    """Grows when bytes below the end were cut: positions found before are void."""
    may_have_holes: bool = field(init=False)
    """Whether offsets may be missing between batches: compaction is or was at work, here or where
    the records were fetched from."""
    on_roll: Callable[[Log], None] | None = None
    """Called after a roll: the closed segments want a flush, off the loop."""
    on_offline: Callable[[Log], None] | None = None
    checkpoint_first_dirty: Callable[[Log, int], None] | None = None
    """Makes the new `first_dirty_offset` durable before it counts."""
    checkpoint_recovery_point: Callable[[Log, int], None] | None = None
    """Makes the lowered recovery point durable before files are cut, or a crash makes the cut look
    like damage."""

    def __post_init__(self) -> None:
        self.filesystem, self.directory = self.segments.filesystem, self.segments.directory
        self.leader_epoch_cache = LeaderEpochCache(self.filesystem, self.directory)
        self.producer_state = self.segments.producer_state
        self.last_flush_ms = self.clock.monotonic_ms()
        self.may_have_holes = self.config.compacts or self.first_dirty_offset is not None

    @classmethod
    def open(
        cls,
        filesystem: Filesystem,
        clock: Clock,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID = ZERO_UUID,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean_shutdown: bool = False,
        first_dirty_offset: int | None = None,
        producer_expiration_ms: int = 24 * 3600 * 1000,
    ) -> Log:
        """Open, recover or create the log in `directory`. Blocks on the disk; any one thread.

        Damage below the recovery point, or a failing disk, gives a log that is offline.
        Raises: DiskFull.
        """
        producers = ProducerState(filesystem, directory, producer_expiration_ms)
        segments = LogSegments(filesystem, clock, directory, producers, OpenSegments(limit=4))
        log = cls(segments, clock, topic_partition, config, topic_id, first_dirty_offset)
        recovery = LogRecovery(segments, log.leader_epoch_cache, config, log.may_have_holes)
        try:
            recovery.run(log_start_offset, recovery_point, clean_shutdown)
            log.log_start_offset = recovery.log_start_offset
            log.log_end_offset = recovery.log_end_offset
            log.recovery_point = recovery.recovery_point
            if log.log_start_offset > log.log_end_offset:
                # Records were deleted up to a point that the unflushed end did not survive to.
                log.truncate_fully_and_start_at(log.log_start_offset)
            log.high_watermark = log.log_start_offset
            recovery.finish(log.log_end_offset)
        except LogDamaged as error:
            log.take_offline(f"damaged below its recovery point {recovery_point}: {error}")
        except LogOffline:
            assert log.offline, "the cut that failed took the log offline"
        except (OSError, InvalidBatch, CorruptFile) as error:
            for segment in segments:
                segment.abandon()
            if isinstance(error, OSError) and is_out_of_room(error):
                raise DiskFull(f"{log.name}: no room to open it: {error}") from None
            log.take_offline(f"cannot be opened: {error}")
        segments.share_open_segments(OpenSegments())
        return log

    def __repr__(self) -> str:
        state = "offline" if self.offline else f"{self.log_start_offset}..{self.log_end_offset}"
        return f"Log({self.directory!r}, {state})"

    @property
    def name(self) -> str:
        """`topic-partition`, as the directory is called."""
        return f"{self.topic_partition.topic}-{self.topic_partition.partition}"

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def last_stable_offset(self) -> int:
        """What readers of committed data may read up to (exclusive). Source: KIP-98."""
        first_unstable = self.producer_state.first_unstable_offset
        if first_unstable is None or first_unstable >= self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self.log_start_offset)

    def update_high_watermark(self, offset: int) -> None:
        """Everything below `offset` is committed (clamped to what the log holds)."""
        offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.high_watermark = offset
        self.producer_state.on_high_watermark(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """`(leader epoch, end offset)` of the largest epoch <= the given; (-1, -1) if unknown."""
        return self.leader_epoch_cache.end_offset_for(leader_epoch, self.log_end_offset)

    def end_offset_of(self, index: int) -> int:
        """Where the offsets of segment number `index` end (exclusive)."""
        return self.segments.end_offset_of(index, self.log_end_offset)

    def update_config(self, config: LogConfig) -> None:
        """New topic settings apply from the next append and roll on."""
        self.config = config
        self.may_have_holes |= config.compacts

    def note_first_dirty(self, first_dirty_offset: int) -> None:
        """Compaction has seen everything below; from now on offsets may be missing.

        Raises: OSError.
        """
        self.may_have_holes = True
        if self.checkpoint_first_dirty is not None:
            self.checkpoint_first_dirty(self, first_dirty_offset)
        self.first_dirty_offset = first_dirty_offset

    # -- appending -------------------------------------------------------------------------------

    def needs_preparation(self, batches: RecordBatches) -> bool:
        """Whether `append.prepare(batches, log.config)` must run first, off the loop."""
        return self.config.looks_at_records and append.needs_preparation(batches, self.config)

    def append_as_leader(
        self,
        batches: RecordBatches,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Check batches, give them offsets and the leader epoch in place, write them at the end.

        A batch that an idempotent producer sends again is not written; the result names its first
        offsets. Never raises for bad input or a bad disk: the result carries the error.
        `verification` is for a client's batch that begins a transaction (KIP-890),
        `transaction_version` for a marker: of the transaction that it ends.
        """
        if self.offline:
            return self._storage_error(self.offline_reason)
        latest_epoch = self.leader_epoch_cache.latest_epoch
        if leader_epoch < latest_epoch:
            self.take_offline(
                f"leader epoch {latest_epoch} is in it, the leader has {leader_epoch}"
            )
            return self._storage_error(self.offline_reason)
        config = self.config
        now_ms = self.clock.now_ms()
        try:
            append.check_batches(batches, config, origin, now_ms)
            if config.compacts:
                append.require_keys(batches)
            if origin is AppendOrigin.CLIENT:
                for _, header in batches.headers:
                    if header.producer_id >= 0:
                        duplicate = self.producer_state.find_duplicate(header)
                        if duplicate is not None:
                            return self._duplicate(duplicate, now_ms)
            append.assign_offsets(batches, self.log_end_offset, leader_epoch)
            updates = self.producer_state.check_append(
                batches, now_ms, origin, verification, transaction_version
            )
        except AppendRejected as error:
            if error.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                producer_id = batches.headers[0][1].producer_id
                if self.roomless_producers.has_recent(producer_id, self.clock.monotonic_ms()):
                    return self._storage_error("the producer's batch before this one found no room")
            return self.rejected(error)
        append.patch_batches(batches, config, now_ms)
        return self._write(batches, updates, now_ms)

    def _duplicate(self, batch: ProducerBatch, now_ms: int) -> AppendResult:
        return AppendResult(
            ErrorCode.NONE,
            None,
            batch.first_offset,
            batch.last_offset,
            now_ms if self.config.uses_log_append_time else -1,
            self.log_start_offset,
            is_duplicate=True,
        )

    def append_as_follower(
        self, records: bytearray | memoryview, *, leader_epoch: int
    ) -> AppendResult:
        """Write batches fetched from the leader, with the offsets and epochs they carry.

        The topic's limits do not apply to what the leader has accepted; more than a segment holds
        goes into several. An incomplete batch at the end (of a response that reached its limit) is
        left for the next fetch, and so are batches of a newer epoch than `leader_epoch` (KIP-966:
        they are another leader's). Never raises: the result carries the error. After a full disk
        the log ends with one of the batches.
        """
        if self.offline:
            return self._storage_error(self.offline_reason)
        now_ms = self.clock.now_ms()
        try:
            # The first batch of an empty log may begin below its end: the log start offset can lie
            # inside the leader's batch.
            is_empty = self.log_start_offset == self.log_end_offset
            batches = append.check_fetched(
                records,
                self.config,
                now_ms,
                leader_epoch,
                self.log_end_offset,
                self.leader_epoch_cache.latest_epoch,
                may_begin_below=is_empty and not self.segments.active.size_bytes,
            )
        except AppendRejected as error:
            return self.rejected(error)
        if not batches.headers:
            return AppendResult(ErrorCode.NONE, log_start_offset=self.log_start_offset)
        if self.first_dirty_offset is None and append.has_holes(self.log_end_offset, batches):
            try:
                self.note_first_dirty(self.log_start_offset)
            except OSError as error:
                self.first_dirty_offset = None
                return self._write_failed(error, self.log_end_offset)
        return self._write_fetched(batches, now_ms)

    def _write_fetched(self, batches: RecordBatches, now_ms: int) -> AppendResult:
        """Write in as few pieces as segments allow; a piece stays if a later one fails."""
        whole: AppendResult | None = None
        for piece in append.pieces(batches, self.config.segment_bytes):
            try:
                updates = self.producer_state.check_append(piece, now_ms, AppendOrigin.REPLICATION)
            except AppendRejected as error:
                return self.rejected(error)
            result = self._write(piece, updates, now_ms)
            if result.error is not ErrorCode.NONE:
                return result
            if whole is None:
                whole = result
            else:
                whole.last_offset = result.last_offset
                whole.record_count += result.record_count
                whole.size_bytes += result.size_bytes
        assert whole is not None
        return whole

    def _write(
        self, batches: RecordBatches, updates: list[ProducerUpdate], now_ms: int
    ) -> AppendResult:
        records, headers = batches.data, batches.headers
        first = headers[0][1]
        last = headers[-1][1]
        next_offset = last.base_offset + last.last_offset_delta + 1
        config = self.config
        segment = self.segments.active
        try:
            if not segment.is_active:
                segment.activate(config)
            if segment.must_roll(len(records), headers, next_offset - 1, now_ms, config):
                # At the log's end, so that a gap between segments can only be a power loss's work;
                # but not farther from the last offset than a segment can number.
                end = self.log_end_offset
                is_far = next_offset - 1 - end > MAX_RELATIVE_OFFSET
                segment = self.roll_to(first.base_offset if is_far else min(first.base_offset, end))
            aborted: list[AbortedTransaction] | tuple[()] = ()
            if any(each.is_aborted for update in updates for each in update.completed):
                aborted = self.producer_state.aborts(updates)
            segment.append(records, headers, config.index_interval_bytes, aborted)
        except (OSError, InvalidBatch) as error:
            if isinstance(error, OSError) and is_out_of_room(error):
                self.roomless_producers.note(batches, self.clock.monotonic_ms())
            return self._write_failed(error, first.base_offset)
        if self.is_out_of_room:
            self.is_out_of_room = False
            logger.info("%s: there is room again to append", self.name)
        if self.roomless_producers:
            self.roomless_producers.forget(batches)
        for _, header in headers:
            if header.partition_leader_epoch != self.leader_epoch_cache.latest_epoch:
                self.leader_epoch_cache.assign(header.partition_leader_epoch, header.base_offset)
        self.producer_state.apply(updates)
        self.producer_state.map_end_offset = next_offset
        self.log_end_offset = next_offset
        return AppendResult(
            ErrorCode.NONE,
            None,
            first.base_offset,
            next_offset - 1,
            now_ms if config.uses_log_append_time else -1,
            self.log_start_offset,
            (),
            False,
            next_offset - first.base_offset,
            len(records),
        )

    def _write_failed(self, error: OSError | InvalidBatch, offset: int) -> AppendResult:
        if not (isinstance(error, OSError) and is_out_of_room(error)):
            self.take_offline(f"append at offset {offset} failed: {error}")
        elif not self.segments.active.is_cut_back():
            self.take_offline(f"an append could not be undone: {error}", lacks_room=True)
        else:
            if not self.is_out_of_room:
                self.is_out_of_room = True
                logger.warning("%s: no room to append at offset %d: %s", self.name, offset, error)
            return self._storage_error(f"no room: {error}")
        return self._storage_error(self.offline_reason)

    def _storage_error(self, message: str) -> AppendResult:
        return AppendResult(
            ErrorCode.KAFKA_STORAGE_ERROR, message, log_start_offset=self.log_start_offset
        )

    def rejected(self, error: AppendRejected) -> AppendResult:
        """The outcome of an append that `error` refuses."""
        return AppendResult(
            error.error,
            error.message,
            log_start_offset=self.log_start_offset,
            record_errors=error.record_errors,
            keyless_count=error.keyless_count,
        )

    def roll(self) -> bool:
        """Begin a new segment at the log end offset, unless the active one is empty.

        Returns whether it did. Raises: LogOffline, DiskFull.
        """
        with self._using_disk("roll", no_room="no room to roll"):
            if not self.segments.active.size_bytes:
                return False
            self.roll_to(self.log_end_offset)
            return True

    def roll_to(self, base_offset: int) -> LogSegment:
        """See `LogSegments.roll_to`. Raises: OSError."""
        was_empty = not self.segments.active.size_bytes
        segment = self.segments.roll_to(base_offset, self.config)
        if self.on_roll is not None and not was_empty:
            self.on_roll(self)
        return segment

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self,
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
        if self.offline:
            return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.offline_reason)
        log_end_offset = self.log_end_offset
        if start_offset > log_end_offset or start_offset < self.log_start_offset:
            return ReadResult(ErrorCode.OFFSET_OUT_OF_RANGE)
        if max_offset is None or max_offset > log_end_offset:
            max_offset = log_end_offset
        if start_offset >= max_offset:
            return ReadResult(ErrorCode.NONE, next_offset=start_offset)
        try:
            return self.segments.read(
                self.config,
                start_offset,
                log_end_offset=log_end_offset,
                max_bytes=max_bytes,
                max_offset=max_offset,
                min_one_message=min_one_message,
                epochs=self.leader_epoch_cache,
                contiguous=not self.may_have_holes,
                truncation_count=self.truncation_count,
            )
        except (InvalidBatch, OSError) as error:
            return self._read_failed(error)

    def finish_verification(self, result: ReadResult) -> ReadResult:
        """The answer to a read after `result.verification.run()`; damage takes the log offline."""
        verification, segment = result.verification, result.segment
        assert verification is not None
        assert segment is not None
        region = verification.region
        if self.offline or result.truncation_count != self.truncation_count:
            # The bytes were cut or deleted since: whatever the check saw, the reader asks again.
            region.release()
            if self.offline:
                return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.offline_reason)
            return ReadResult(ErrorCode.NONE, next_offset=verification.expected_offset)
        if verification.failure is not None:
            region.release()
            return self._read_failed(verification.failure, segment)
        segment.verified.add(region.position, region.position + region.length)
        return ReadResult(ErrorCode.NONE, region, result.next_offset)

    def _read_failed(
        self, error: InvalidBatch | OSError, segment: LogSegment | None = None
    ) -> ReadResult:
        if isinstance(error, OSError) and is_out_of_room(error):
            logger.warning("%s: cannot be read now: %s", self.name, error)
            return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
        where = f"{segment.path}: " if segment is not None else ""
        self.take_offline(f"read failed: {where}{error}")
        return ReadResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=self.offline_reason)

    def aborted_transactions(
        self, start_offset: int, upper_bound_offset: int
    ) -> list[AbortedTransaction]:
        """Transactions a reader of committed data must skip in [start_offset, upper_bound_offset).

        Ordered by first offset, as clients require. Raises: LogOffline.
        """
        self.require_online()
        try:
            return self.segments.aborted_transactions(start_offset, upper_bound_offset)
        except (OSError, ValueError) as error:
            raise self.lookup_failed("transaction index", error) from None

    def lookup_failed(self, what: str, error: OSError | ValueError) -> LogOffline:
        """What to raise for files that cannot be read. Unless there was only no room to open them,
        the log is offline.
        """
        reason = f"{what}: {error}"
        if not (isinstance(error, OSError) and is_out_of_room(error)):
            self.take_offline(reason)
        return LogOffline(self.name, reason)

    # -- flush -----------------------------------------------------------------------------------

    @property
    def needs_flush(self) -> bool:
        """Whether `flush.messages` asks for a flush before the last append is acknowledged."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def start_flush(self) -> FlushJob | None:
        """What to sync so that everything appended so far is durable; None when all of it is.

        Offload `run` of the job, then call `finish_flush`. Raises: LogOffline, DiskFull.
        """
        self.require_online()
        snapshots, segments = self.producer_state.unsynced_snapshot_paths, self.segments
        # A segment that ends at the recovery point was flushed before it was rolled, the last
        # entries of its indexes were not.
        first = segments.index_for(max(self.recovery_point - 1, 0))
        with self._using_disk("seal", no_room="cannot be flushed now"):
            epochs = self.leader_epoch_cache.entries
            segments.seal_closed(range(first, len(segments)), self.log_end_offset, epochs)
        is_dirty = self.leader_epoch_cache.is_dirty or segments.seals.is_dirty
        if self.recovery_point >= self.log_end_offset and not snapshots and not is_dirty:
            return None
        job = FlushJob(
            self.filesystem,
            self.directory,
            self.log_end_offset,
            self.leader_epoch_cache,
            self.truncation_count,
            segments.seals,
        )
        with self._using_disk("flush", no_room="cannot be flushed now"):
            for segment in segments[first:]:
                job.add(segment)
        job.paths += snapshots
        self.producer_state.unsynced_snapshot_paths = []
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """The job has run: the recovery point advances, or the log is offline (a failed fsync says
        nothing about what is on the disk). Raises: LogOffline; DiskFull, nothing is promised then.
        """
        self.require_online()
        if job.failure is not None:
            self.take_offline(f"flush failed: {job.failure}")
            raise LogOffline(self.name, self.offline_reason)
        if job.no_room is not None:
            raise DiskFull(f"{self.name}: cannot be flushed now: {job.no_room}")
        if job.truncation_count == self.truncation_count:
            self.recovery_point = max(self.recovery_point, job.offset)
        self.last_flush_ms = self.clock.monotonic_ms()

    def flush(self) -> None:
        """Make everything appended so far durable, here and now. Raises: LogOffline, DiskFull."""
        job = self.start_flush()
        if job is not None:
            job.run()
            self.finish_flush(job)

    # -- retention -------------------------------------------------------------------------------

    def apply_retention(self, now_ms: int) -> int:
        """Delete what the topic's retention lets go, oldest first; returns the count of segments.

        Only segments below the high watermark go. An expired active segment is rolled first.
        Raises: LogOffline, DiskFull.
        """
        with self._using_disk("retention", no_room="no room to roll"):
            bounds = self.log_start_offset, self.high_watermark, self.log_end_offset
            count = self.segments.deletable_count(self.config, now_ms, *bounds)
            if count == len(self.segments):
                try:
                    self.roll_to(self.log_end_offset)
                except OSError as error:
                    # Without room for a new segment the closed ones go: that makes room.
                    count -= 1
                    if not count or not is_out_of_room(error):
                        raise
            if count == 0:
                return 0
            self._raise_log_start_offset(self.segments[count].base_offset)
            self.segments.delete_oldest(count, self.config)
        start = self.log_start_offset
        logger.info("%s: deleted %d segments, starts at %d", self.name, count, start)
        return count

    def delete_records(self, before_offset: int) -> tuple[ErrorCode, int]:
        """Records below `before_offset` (-1: the high watermark) are no longer read.

        Returns an error code and the log start offset (the "low watermark" of DeleteRecords,
        KIP-107). Whole segments below it are deleted. The caller checkpoints the new start.
        """
        if self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, -1
        if before_offset == -1:
            before_offset = self.high_watermark
        if before_offset < 0 or before_offset > self.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE, -1
        try:
            self._advance_start(before_offset)
        except OSError as error:
            self.take_offline(f"delete records failed: {error}", lacks_room=lacks_room(error))
            return ErrorCode.KAFKA_STORAGE_ERROR, -1
        return ErrorCode.NONE, self.log_start_offset

    def advance_log_start_offset(self, log_start_offset: int) -> bool:
        """Follow the leader's, as far as records are committed; returns whether the start moved.

        Raises: LogOffline.
        """
        offset = min(log_start_offset, self.high_watermark)
        with self._using_disk(f"advance of the log start to {offset}"):
            if offset <= self.log_start_offset:
                return False
            self._advance_start(offset)
            return True

    def _advance_start(self, offset: int) -> None:
        self._raise_log_start_offset(offset)
        count = 0
        while count < len(self.segments) - 1 and self.end_offset_of(count) <= self.log_start_offset:
            count += 1
        if count:
            self.segments.delete_oldest(count, self.config)

    def _raise_log_start_offset(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.high_watermark = max(self.high_watermark, offset)
            self.leader_epoch_cache.truncate_from_start(offset)
            self.producer_state.on_log_start_offset(offset)

    # -- cuts ------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Remove the records from `offset` on (whole batches); returns whether there were any.

        Raises: LogOffline; DiskFull, nothing is removed.
        """
        self.require_online()
        if offset >= self.log_end_offset:
            # An epoch in which this replica led and wrote nothing has no record to be cut with.
            self.leader_epoch_cache.truncate_from_end(self.log_end_offset)
            return False
        segments = self.segments
        if offset <= segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        with self._using_disk(f"truncation to {offset}", no_room="no room to cut it"):
            found = segments[segments.index_for(offset)].find(offset)
            # A batch that spans the offset goes as a whole: the recovery point must not stay in it.
            end_offset = min(offset, found[1].base_offset) if found else offset
            # The first batch of a follower may begin below its segment; new ones may not.
            goes_whole = end_offset < segments[0].base_offset
            if not goes_whole:
                self._lower_recovery_point(end_offset)
                segments.activate_for_cut(offset, self.config)
        if goes_whole:
            self.truncate_fully_and_start_at(end_offset)
            return True
        with self._using_disk(f"truncation to {offset}"):
            self.log_end_offset = segments.truncate_to(offset, self.config)
            self._after_cut()
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records, leader epochs and producers; the empty log begins at `offset`.

        Raises: LogOffline; DiskFull, nothing is removed.
        """
        with self._using_disk(f"restart at {offset}", no_room="no room to begin it again"):
            self._lower_recovery_point(min(self.log_start_offset, offset))
        with self._using_disk(f"restart at {offset}"):
            # The snapshot of a clean stop is at no segment's start; at `offset` it would be loaded.
            self.producer_state.drop_snapshots_above(NO_OFFSET)
            self.segments.delete(self.segments[::-1], self.config)
            self.filesystem.fsync_directory(self.directory)
            self.segments.replace([self.segments.create(offset, self.config)])
            self.log_start_offset = self.log_end_offset = self.high_watermark = offset
            self.recovery_point = offset
            self.leader_epoch_cache.clear()
            self._after_cut()

    def _lower_recovery_point(self, offset: int) -> None:
        self.truncation_count += 1
        if self.first_dirty_offset is not None and self.first_dirty_offset > offset:
            self.note_first_dirty(offset)
        if self.recovery_point > offset:
            if self.checkpoint_recovery_point is not None:
                self.checkpoint_recovery_point(self, offset)
            self.recovery_point = offset

    def _after_cut(self) -> None:
        end = self.log_end_offset
        # The start can lie inside the batch that went, or above it all (KIP-107 after KIP-101).
        self.log_start_offset = min(self.log_start_offset, end)
        self.leader_epoch_cache.truncate_from_end(end)
        try:
            self.leader_epoch_cache.write()
        except OSError as error:
            # The next flush writes them; before that a recovery would, which begins below the cut.
            if not is_out_of_room(error):
                raise
        self.recovery_point = min(self.recovery_point, end)
        self.high_watermark = max(self.log_start_offset, min(self.high_watermark, end))
        self.producer_state.load(self.segments, end, self.clock.now_ms())
        self.producer_state.on_high_watermark(self.high_watermark)

    # -- the end ---------------------------------------------------------------------------------

    def rest(self) -> None:
        """Give back descriptors and mappings of an idle log; the next append opens it again.

        Raises: LogOffline.
        """
        with self._using_disk("closing an idle log"):
            if self.segments.active.is_active:
                self.segments.active.deactivate()
            else:
                self.segments.active.close_descriptors()

    def close(self) -> None:
        """Flush, take a last producer snapshot, trim the indexes, close. Raises: LogOffline.

        After it the directory counts as cleanly shut down.
        """
        if self.offline:
            return
        with self._using_disk("closing"):
            if self.log_end_offset > self.segments[0].base_offset or self.producer_state.producers:
                self.producer_state.take_last_snapshot(self.log_end_offset, self.name)
            if self.segments.active.is_active:
                self.segments.active.deactivate()
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors and nothing else, as a crash would."""
        self.offline = True
        self.offline_reason = self.offline_reason or "closed"
        self.leader_epoch_cache.close()
        self.segments.seals.close()
        for segment in self.segments:
            segment.abandon()

    def take_offline(self, reason: str, *, lacks_room: bool = False) -> None:
        """The files cannot be trusted or used any more; every later call answers an error."""
        if self.offline:
            return
        self.offline = True
        self.offline_reason, self.lacks_room = reason, lacks_room
        logger.error("%s: taken offline: %s", self.name, reason)
        # Without waiting: the disk may hang.
        self.leader_epoch_cache.is_closed = self.segments.seals.is_closed = True
        for segment in self.segments:
            segment.abandon()
        if self.on_offline is not None:
            self.on_offline(self)

    def require_online(self) -> None:
        """Raises: LogOffline."""
        if self.offline:
            raise LogOffline(self.name, self.offline_reason)

    @contextmanager
    def _using_disk(self, what: str, no_room: str = "") -> Iterator[None]:
        """An error takes the log offline; with `no_room` a full disk does not.

        Raises: LogOffline; DiskFull.
        """
        self.require_online()
        try:
            yield
        except (OSError, InvalidBatch, DiskFull) as error:
            if no_room and isinstance(error, OSError) and is_out_of_room(error):
                raise DiskFull(f"{self.name}: {no_room}: {error}") from None
            self.take_offline(f"{what} failed: {error}", lacks_room=lacks_room(error))
            raise LogOffline(self.name, self.offline_reason) from None
