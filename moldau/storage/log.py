"""Log: one partition's records, as a list of segments.

Owns: the offsets of the log, appending and rolling, the order in which files and memory change.
Must not: know replication, acknowledgements or other partitions; wait; read clocks by itself.
Invariant: log_start_offset <= high_watermark <= log_end_offset, recovery_point <= log_end_offset,
and everything below the recovery point is on stable storage. After a failed append the log is what
it was before, or offline. All methods belong to one loop; what blocks on a disk for long (flush,
verification, recompression, opening) is split off for `Filesystem.offload`.

The neighbours: log_recovery opens, log_read reads, log_lookup finds by time, log_maintenance
flushes, expires and cuts.
"""

from __future__ import annotations

import logging
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Callable

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BatchHeader,
    InvalidBatch,
    patch_batch,
    patch_log_append_time,
)
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage import log_lookup, log_maintenance, log_read
from moldau.storage.append import (
    AppendOrigin,
    AppendResult,
    check_batches,
    needs_preparation,
)
from moldau.storage.faults import AppendRejected, is_disk_full
from moldau.storage.leader_epoch_cache import LeaderEpochCache
from moldau.storage.log_config import LogConfig
from moldau.storage.open_files import OpenSegments
from moldau.storage.producer_append import ProducerUpdate, note_marker
from moldau.storage.producer_entry import ProducerBatch, ProducerEntry
from moldau.storage.producer_state import ProducerState
from moldau.storage.segment import LogSegment
from moldau.storage.transaction_index import AbortedTransaction

logger = logging.getLogger("moldau.storage")

Batches = list[tuple[int, BatchHeader]]

DEFAULT_PRODUCER_EXPIRATION_MS = 24 * 3600 * 1000


class Log:
    """One partition's log. States: online -> offline, for good (a restart opens it anew)."""

    __slots__ = (
        "_base_offsets",
        "active_segment",
        "clock",
        "config",
        "directory",
        "filesystem",
        "high_watermark",
        "last_flush_ms",
        "leader_epoch_cache",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "offline_reason",
        "on_offline",
        "on_recovery_point_lowered",
        "on_roll",
        "open_segments",
        "producer_state",
        "recovery_point",
        "schedule_deletion",
        "segments",
        "topic_id",
        "topic_partition",
        "truncation_count",
    )

    def __init__(
        self,
        filesystem: Filesystem,
        clock: Clock,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: uuid.UUID = ZERO_UUID,
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
        open_segments: OpenSegments | None = None,
    ) -> None:
        """Only log_recovery builds one; everybody else calls `Log.open`."""
        self.filesystem = filesystem
        self.clock = clock
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.open_segments = open_segments if open_segments is not None else OpenSegments()
        self.segments: list[LogSegment] = []
        self._base_offsets: list[int] = []
        self.active_segment: LogSegment
        self.leader_epoch_cache = LeaderEpochCache(filesystem, directory)
        self.producer_state = ProducerState(filesystem, directory, producer_expiration_ms)
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.recovery_point = 0
        self.offline = False
        self.offline_reason = ""
        self.last_flush_ms = clock.now_ms()
        self.truncation_count = 0
        """Grows whenever bytes below the end were cut: what was located before is void."""
        self.on_roll: Callable[[Log], None] | None = None
        """Called after a roll: the segments below want a flush, off the loop."""
        self.on_offline: Callable[[Log], None] | None = None
        self.on_recovery_point_lowered: Callable[[Log], None] | None = None
        """Called before files are cut: checkpoint the lowered recovery point durably, or a crash
        makes the cut look like damage."""
        self.schedule_deletion: Callable[[int, list[str]], None] | None = None
        """Called with (delay_ms, paths) to unlink renamed files later; None unlinks at once."""

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
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
        open_segments: OpenSegments | None = None,
    ) -> Log:
        """Open, recover or create the log in `directory`. Blocks on the disk; any one thread.

        Damage below the recovery point, or a failing disk, gives a log that is offline.
        `open_segments` is shared by all logs of a loop. Raises: DiskFull.
        """
        from moldau.storage.log_recovery import open_log

        log = cls(
            filesystem,
            clock,
            directory,
            topic_partition,
            config,
            topic_id=topic_id,
            producer_expiration_ms=producer_expiration_ms,
            open_segments=OpenSegments(limit=4),
        )
        open_log(
            log,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
        )
        log.open_segments = OpenSegments() if open_segments is None else open_segments
        for segment in log.segments:
            segment.adopt_by(log.open_segments)
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
        """Bytes of all segments' log files."""
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

    def assign_leader_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """A leader was elected: its epoch begins at `start_offset`."""
        self.leader_epoch_cache.assign(leader_epoch, start_offset)

    def segment_index_for(self, offset: int) -> int:
        """Index of the segment that would hold `offset` (0 for anything below the first)."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def end_offset_of(self, index: int) -> int:
        """Where the offsets of segment number `index` end (exclusive)."""
        if index + 1 < len(self.segments):
            return self._base_offsets[index + 1]
        return self.log_end_offset

    def set_segments(self, segments: list[LogSegment]) -> None:
        """Replace the list of segments (the last one is the active one)."""
        self.segments = segments
        self._base_offsets = [segment.base_offset for segment in segments]
        self.active_segment = segments[-1]

    # -- appending -------------------------------------------------------------------------------

    def needs_preparation(self, records: bytearray | memoryview) -> bool:
        """Whether `append.prepare(records, log.config)` must run first, off the loop."""
        return self.config.target_codec is not None and needs_preparation(records, self.config)

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendResult:
        """Check batches, give them offsets and the leader epoch in place, write them at the end.

        `records` is changed only if all batches pass. A batch that an idempotent producer sends
        again is not written; the result names its first offsets. Never raises for bad input or a
        bad disk: the result carries the error.
        """
        if self.offline:
            return self._storage_error(self.offline_reason)
        config = self.config
        now_ms = self.clock.now_ms()
        try:
            batches = check_batches(records, config, origin, now_ms)
            from_client = origin is AppendOrigin.CLIENT
            duplicate = self._assign_offsets(batches, leader_epoch, from_client)
            if duplicate is not None:
                return self._duplicate(duplicate, now_ms)
            updates = self._check_producers(records, batches, now_ms, origin)
        except AppendRejected as error:
            return AppendResult(
                error.error,
                error.message,
                log_start_offset=self.log_start_offset,
                record_errors=error.record_errors,
            )
        for position, header in batches:
            patch_batch(
                records,
                position,
                base_offset=header.base_offset,
                partition_leader_epoch=leader_epoch,
            )
            if config.uses_log_append_time:
                patch_log_append_time(records, position, header, now_ms)
        return self._write(records, batches, updates, now_ms)

    def _assign_offsets(
        self, batches: Batches, leader_epoch: int, from_client: bool
    ) -> ProducerBatch | None:
        """Put offsets and leader epoch in the headers; a duplicate ends it."""
        offset = self.log_end_offset
        for _, header in batches:
            if from_client and header.producer_id >= 0:
                duplicate = self.producer_state.find_duplicate(header)
                if duplicate is not None:
                    return duplicate
            header.base_offset = offset
            header.partition_leader_epoch = leader_epoch
            offset += header.last_offset_delta + 1
        if offset - self.log_end_offset > 2**31:
            raise AppendRejected(ErrorCode.INVALID_RECORD, "more records than a segment can number")
        return None

    def append_as_follower(
        self, records: bytearray | memoryview, *, leader_epoch: int
    ) -> AppendResult:
        """Write batches fetched from the leader, with the offsets and epochs they carry.

        Batches of a newer epoch than `leader_epoch` are left out (KIP-966: they are another
        leader's). Never raises: the result carries the error.
        """
        if self.offline:
            return self._storage_error(self.offline_reason)
        now_ms = self.clock.now_ms()
        try:
            checked = check_batches(records, self.config, AppendOrigin.RAFT_LEADER, now_ms)
            batches: Batches = []
            next_offset = self.log_end_offset
            for position, header in checked:
                if header.partition_leader_epoch > leader_epoch:
                    records = records[:position]
                    break
                # The first batch of an empty log may begin below it: the log start offset can lie
                # inside the leader's batch.
                is_first = not self.active_segment.size_bytes and not batches
                if (header.last_offset if is_first else header.base_offset) < next_offset:
                    raise AppendRejected(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"base offset {header.base_offset} where {next_offset} is next",
                    )
                next_offset = header.next_offset
                batches.append((position, header))
            if not batches:
                return AppendResult(ErrorCode.NONE, log_start_offset=self.log_start_offset)
            updates = self._check_producers(records, batches, now_ms, None)
        except AppendRejected as error:
            return AppendResult(
                error.error, error.message, log_start_offset=self.log_start_offset
            )
        return self._write(records, batches, updates, now_ms)

    def _check_producers(
        self,
        records: bytearray | memoryview,
        batches: Batches,
        now_ms: int,
        origin: AppendOrigin | None,
    ) -> list[ProducerUpdate]:
        """What the batches do to their producers, or AppendRejected. A follower (no origin) takes
        what its leader took.
        """
        updates: dict[int, ProducerUpdate] = {}
        for position, header in batches:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            update = updates.get(producer_id)
            if update is None:
                update = updates[producer_id] = self.producer_state.prepare(producer_id)
            if header.is_control:
                note_marker(
                    update, records, position, header, now_ms, check=origin is not None
                )
            else:
                if origin is AppendOrigin.CLIENT:
                    update.check_data(header)
                update.add_data(header, header.base_offset, now_ms)
        return list(updates.values())

    def _write(
        self,
        records: bytearray | memoryview,
        batches: Batches,
        updates: list[ProducerUpdate],
        now_ms: int,
    ) -> AppendResult:
        first = batches[0][1]
        last = batches[-1][1]
        next_offset = last.base_offset + last.last_offset_delta + 1
        segment = self.active_segment
        try:
            if self._must_roll(segment, len(records), batches, next_offset - 1, now_ms):
                segment = self.roll_to(first.base_offset)
            aborted = self._note_aborted(segment, updates)
            try:
                segment.append(records, batches, self.config.index_interval_bytes)
            except OSError:
                if aborted:
                    segment.transaction_index.truncate_to(first.base_offset)
                raise
        except (OSError, InvalidBatch) as error:
            return self._write_failed(error, first.base_offset)
        for _, header in batches:
            if header.partition_leader_epoch != self.leader_epoch_cache.latest_epoch:
                self.leader_epoch_cache.assign(header.partition_leader_epoch, header.base_offset)
        self.apply_producers(updates)
        self.producer_state.map_end_offset = next_offset
        self.log_end_offset = next_offset
        return AppendResult(
            ErrorCode.NONE,
            None,
            first.base_offset,
            next_offset - 1,
            now_ms if self.config.uses_log_append_time else -1,
            self.log_start_offset,
            (),
            False,
            next_offset - first.base_offset,
            len(records),
        )

    def _note_aborted(self, segment: LogSegment, updates: list[ProducerUpdate]) -> bool:
        """Aborted transactions go to the index first: without room for it nothing is written."""
        noted = False
        for update in updates:
            for completed in update.completed:
                if completed.is_aborted:
                    last_stable_offset = self.producer_state.last_stable_offset_after(completed)
                    segment.transaction_index.append(
                        AbortedTransaction(*completed[:3], last_stable_offset)
                    )
                    noted = True
        return noted

    def apply_producers(self, updates: list[ProducerUpdate]) -> None:
        """The batches are in the file: what they did to their producers is true now."""
        for update in updates:
            self.producer_state.apply(update)
            for completed in update.completed:
                self.producer_state.complete(completed)

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

    def _write_failed(self, error: OSError | InvalidBatch, offset: int) -> AppendResult:
        if isinstance(error, OSError) and is_disk_full(error):
            if self.active_segment.file().size_bytes == self.active_segment.size_bytes:
                logger.warning("%s: no room to append at offset %d: %s", self.name, offset, error)
                return self._storage_error(f"no room on the disk: {error}")
            self.take_offline(f"an append could not be undone: {error}")
        else:
            self.take_offline(f"append at offset {offset} failed: {error}")
        return self._storage_error(self.offline_reason)

    def _storage_error(self, message: str) -> AppendResult:
        return AppendResult(
            ErrorCode.KAFKA_STORAGE_ERROR, message, log_start_offset=self.log_start_offset
        )

    # -- rolling ---------------------------------------------------------------------------------

    def _must_roll(
        self,
        segment: LogSegment,
        size_bytes: int,
        batches: Batches,
        last_offset: int,
        now_ms: int,
    ) -> bool:
        if not segment.has_room_for(size_bytes, last_offset, self.config):
            return True
        if not segment.size_bytes:
            return False
        timestamp_ms = max(header.max_timestamp_ms for _, header in batches)
        base_ms = segment.rolling_base_timestamp_ms()
        waited_ms = timestamp_ms - base_ms if base_ms >= 0 else now_ms - segment.created_ms
        return waited_ms > self.config.segment_ms - self._roll_jitter_ms(segment)

    def _roll_jitter_ms(self, segment: LogSegment) -> int:
        """Spreads the rolls of logs begun together; the same for a segment after a restart."""
        limit = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if limit <= 0:
            return 0
        return zlib.crc32(f"{self.name}/{segment.base_offset}".encode()) % limit

    def roll_to(self, base_offset: int) -> LogSegment:
        """Close the active segment and begin one at `base_offset`. Raises: OSError.

        The new files exist before the old segment is touched: without room for them nothing
        happened.
        """
        old = self.active_segment
        if not old.size_bytes:
            return log_maintenance.replace_empty_segment(self, base_offset)
        segment = log_maintenance.create_segment(self, base_offset)
        try:
            self.producer_state.map_end_offset = base_offset
            self.producer_state.take_snapshot()
        except OSError:
            log_maintenance.discard_segment(segment, self.filesystem)
            raise
        old.deactivate()
        self.set_segments([*self.segments, segment])
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    # -- the rest of the interface, by file ------------------------------------------------------

    read = log_read.read
    finish_verification = log_read.finish_verification
    aborted_transactions = log_read.aborted_transactions
    offset_for_timestamp = log_lookup.offset_for_timestamp
    offset_of_max_timestamp = log_lookup.offset_of_max_timestamp
    start_flush = log_maintenance.start_flush
    finish_flush = log_maintenance.finish_flush
    flush = log_maintenance.flush
    apply_retention = log_maintenance.apply_retention
    delete_records = log_maintenance.delete_records
    truncate_to = log_maintenance.truncate_to
    truncate_fully_and_start_at = log_maintenance.truncate_fully_and_start_at
    roll = log_maintenance.roll
    close = log_maintenance.close
    abandon = log_maintenance.abandon

    @property
    def needs_flush(self) -> bool:
        """Whether `flush.messages` asks for a flush before the last append is acknowledged."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def update_config(self, config: LogConfig) -> None:
        """Settings of the topic changed; they apply from the next append and roll on."""
        self.config = config

    def active_producers(self) -> list[ProducerEntry]:
        """What DescribeProducers shows."""
        return list(self.producer_state.producers.values())

    def expire_producers(self) -> int:
        """Forget producers silent for `producer.id.expiration.ms`; returns how many."""
        return self.producer_state.expire(self.clock.now_ms())

    def take_offline(self, reason: str) -> None:
        """The files cannot be trusted or used any more; every later call answers an error."""
        if self.offline:
            return
        self.offline = True
        self.offline_reason = reason
        logger.error("%s: taken offline: %s", self.name, reason)
        for segment in self.segments:
            segment.abandon()
        if self.on_offline is not None:
            self.on_offline(self)
