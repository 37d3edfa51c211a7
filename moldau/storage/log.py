"""Log: one partition's records, as a list of segments.

Owns: the offsets of the log, appending and rolling, the order in which files and memory change.
Must not: know replication, acknowledgements or other partitions; wait; read clocks by itself.
Invariant: log_start_offset <= high_watermark <= log_end_offset, recovery_point <= log_end_offset,
and everything below the recovery point is on stable storage. After a failed append the log is what
it was before, or offline. All methods belong to one loop; what blocks on a disk for long (flush,
verification, recompression, opening) is split off for `Filesystem.offload`.

The neighbours: log_recovery opens, log_append appends, log_read reads, log_lookup finds by time,
log_maintenance flushes, expires and cuts.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_right
from collections.abc import Callable

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage import log_append, log_lookup, log_maintenance, log_read
from moldau.storage.leader_epoch_cache import LeaderEpochCache
from moldau.storage.log_config import LogConfig
from moldau.storage.open_files import OpenSegments
from moldau.storage.producer_entry import ProducerEntry
from moldau.storage.producer_state import ProducerState
from moldau.storage.segment import LogSegment

logger = logging.getLogger("moldau.storage")

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
        "first_dirty_offset",
        "high_watermark",
        "is_out_of_room",
        "last_flush_ms",
        "leader_epoch_cache",
        "log_end_offset",
        "log_start_offset",
        "may_have_holes",
        "offline",
        "offline_reason",
        "on_first_dirty_changed",
        "on_offline",
        "on_recovery_point_lowered",
        "on_roll",
        "open_segments",
        "producer_state",
        "recovery_point",
        "replacement_count",
        "roomless_producers",
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
        self.is_out_of_room = False
        """The last append found no room; said once, not for every append."""
        self.roomless_producers: dict[int, float] = {}
        """Whose latest batch found no room, and when (monotonic): what came behind it is no gap of
        theirs."""
        self.offline = False
        self.offline_reason = ""
        self.last_flush_ms = clock.monotonic_ms()
        """By the monotonic clock: `flush.ms` is a promise that no set clock may break."""
        self.truncation_count = 0
        """Grows whenever bytes below the end were cut: what was located before is void."""
        self.replacement_count = 0
        """Grows whenever compaction put one segment in the place of others."""
        self.first_dirty_offset: int | None = None
        """Compaction has looked at everything below; None: there was none, and no offset misses."""
        self.may_have_holes = config.compacts
        """Whether offsets may be missing between batches: compaction is or was at work, here or
        where the records were fetched from."""
        self.on_roll: Callable[[Log], None] | None = None
        """Called after a roll: the segments below want a flush, off the loop."""
        self.on_offline: Callable[[Log], None] | None = None
        self.on_first_dirty_changed: Callable[[Log], None] | None = None
        """Called to make `first_dirty_offset` durable before what depends on it happens."""
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
        first_dirty_offset: int | None = None,
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
        if first_dirty_offset is not None:
            log.first_dirty_offset = first_dirty_offset
            log.may_have_holes = True
        open_log(
            log,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            clean_shutdown=clean_shutdown,
        )
        log.share_open_segments(OpenSegments() if open_segments is None else open_segments)
        return log

    def share_open_segments(self, open_segments: OpenSegments) -> None:
        """Count this log's closed segments among those of all logs of the loop."""
        self.open_segments = open_segments
        for segment in self.segments:
            segment.adopt_by(open_segments)

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

    def segment_index_for(self, record_offset: int) -> int:
        """Index of the segment that would hold `record_offset` (0 for anything below the first)."""
        return max(bisect_right(self._base_offsets, record_offset) - 1, 0)

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

    # -- rolling ---------------------------------------------------------------------------------

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
            if old.is_active:
                old.deactivate()
        except OSError:
            log_maintenance.discard_segment(segment, self.filesystem)
            raise
        self.set_segments([*self.segments, segment])
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    def rest(self) -> None:
        """Give back the descriptors and mappings of a log nobody appends to; the next append opens
        it again. Raises: LogOffline.
        """
        log_maintenance.rest(self)

    # -- the rest of the interface, by file ------------------------------------------------------

    needs_preparation = log_append.needs_preparation
    append_as_leader = log_append.append_as_leader
    append_as_follower = log_append.append_as_follower
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
    advance_log_start_offset = log_maintenance.advance_log_start_offset
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
        self.may_have_holes |= config.compacts

    def note_first_dirty(self, first_dirty_offset: int) -> None:
        """Compaction has looked at everything below, or at nothing any more from there on;
        from now on offsets may be missing. Raises: OSError.
        """
        self.first_dirty_offset = first_dirty_offset
        self.may_have_holes = True
        if self.on_first_dirty_changed is not None:
            self.on_first_dirty_changed(self)

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
        self.leader_epoch_cache.is_closed = True  # without waiting: the disk may hang
        for segment in self.segments:
            segment.abandon()
        if self.on_offline is not None:
            self.on_offline(self)
