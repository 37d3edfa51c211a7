"""The metadata log as the driver changes it: appends, flushes, cuts, reads for peers.

Owns: the order of file operations of each effect, the group flush, the lock that keeps readers off
a log that another thread changes. Must not: know roles, epochs' meaning or peers. Invariant: a
leader's appends happen on the loop, everything that cuts happens while nothing is being flushed;
after a failed flush the log is offline, but for one that found no room: it is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from moldau.metadata.log import CommittedBatch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.quorum_records import LeaderChangeMessage, LeaderChangeVoter
from moldau.protocol.records import ControlRecordType, encode_control_batch
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer
from moldau.raft.batch_codec import MAX_PIECE_BYTES, check_fetched, encode_data_batch, encode_values
from moldau.raft.core.effects import AppendEpochStart, AppendFetched, AppendVoters
from moldau.raft.core.values import ElectionState
from moldau.raft.core.voters import VoterSet
from moldau.raft.delivery import RecentBatches
from moldau.raft.log_files import LogFiles, voters_in_batch
from moldau.raft.state_files import NOTE_EVERY, write_flushed_end, write_quorum_state
from moldau.raft.values import MetadataLogError
from moldau.runtime.clock import Clock
from moldau.storage.append import AppendOrigin, AppendResult, RecordBatches
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_segments import FlushJob, ReadResult
from moldau.storage.segment import LogSegment

logger = logging.getLogger(__name__)

INLINE_READ_BYTES: Final = 64 * 1024
"""Records near the end of the log are in the page cache: reading this many of them is cheaper than
asking another thread to."""

INLINE_CHECK_BYTES: Final = 4 * 1024
"""Decoding this many fetched bytes (a quarter of a millisecond, a change or a few) is cheaper than
the way to another thread and back."""

_LEADER_CHANGE_VERSION: Final = 0

VotersAt = tuple[int, VoterSet]


@dataclass(slots=True)
class FollowerAppend:
    """The outcome of fetched batches: the voters in those appended, and why the rest was not:
    `refusal`, or `no_room`.
    """

    voters: list[VotersAt] = field(default_factory=list)
    has_appended: bool = False
    refusal: str | None = None
    no_room: str | None = None


class RecordsFlush(FlushJob):
    """A flush job without the indexes and the directory."""

    __slots__ = ()

    def __init__(self, job: FlushJob) -> None:
        super().__init__(
            job.filesystem, job.directory, job.offset, job.leader_epoch_cache, job.truncation_count
        )
        self.files = job.files

    def run(self) -> None:
        """Sync the records; a new leader epoch is written with them. Never raises."""
        if self.leader_epoch_cache.is_dirty:
            super().run()
            return
        try:
            for file in self.files:
                file.fdatasync()
        except OSError as error:
            self.failure = error
        finally:
            for file in self.files:
                file.release()
            self.files.clear()


@dataclass(eq=False, repr=False)
class LogStore:
    """One log's files. `on_flushed` is called whenever more of the log is on stable storage,
    `on_no_room` when a flush found no room and has to be repeated, `on_failure` when nothing can be
    promised any more.
    """

    _files: LogFiles
    _clock: Clock
    _node_id: int
    _recent: RecentBatches
    _log_lock: asyncio.Lock
    _: KW_ONLY
    on_flushed: Callable[[], None]
    on_no_room: Callable[[str], None]
    on_failure: Callable[[str], None]
    _flush_task: asyncio.Task[None] | None = None
    _synced: tuple[LogSegment, int] | None = None
    """The active segment, and how often the log had been cut, when everything was synced."""

    def __post_init__(self) -> None:
        self._log = self._files.log
        self._offload = self._files.filesystem.offload

    async def persist(self, state: ElectionState) -> None:
        """Make the election state durable. Raises OSError."""
        files = self._files
        await self._offload(write_quorum_state, files.filesystem, files.directory, state)
        files.quorum_state = state

    def append_data(
        self,
        records: Sequence[tuple[Message, int]],
        leader_epoch: int,
        values: Sequence[bytes] | None = None,
    ) -> AppendResult:
        """Append metadata records as one batch and begin to flush it. `values` are the records
        encoded, if that was done before.
        """
        timestamp_ms = self._clock.now_ms()
        if values is None:
            batch = encode_data_batch(records, timestamp_ms=timestamp_ms)
        else:
            batch = encode_values(values, timestamp_ms=timestamp_ms)
        messages = tuple(record for record, _version in records)
        return self._append(batch, leader_epoch, timestamp_ms, messages)

    def append_epoch_start(self, effect: AppendEpochStart) -> list[VotersAt]:
        """Append a leader's first batch; the voters in it. Raises MetadataLogError, DiskFull."""
        message = LeaderChangeMessage(
            version=_LEADER_CHANGE_VERSION,
            leader_id=self._node_id,
            voters=[LeaderChangeVoter(voter_id=each) for each in effect.voter_ids],
            granting_voters=[
                LeaderChangeVoter(voter_id=each) for each in effect.granting_voter_ids
            ],
        )
        records = [(ControlRecordType.LEADER_CHANGE, message.to_bytes(_LEADER_CHANGE_VERSION))]
        if effect.voters is not None:
            records += effect.voters.control_records()
        return self._append_control(records, effect)

    def append_voters(self, effect: AppendVoters) -> list[VotersAt]:
        """Append a change of the voters. Raises MetadataLogError, DiskFull."""
        records = effect.voters.control_records()
        if not effect.kraft_version_changed:
            records = [each for each in records if each[0] is ControlRecordType.KRAFT_VOTERS]
        return self._append_control(records, effect)

    def _append_control(
        self,
        records: list[tuple[ControlRecordType, bytes]],
        effect: AppendEpochStart | AppendVoters,
    ) -> list[VotersAt]:
        timestamp_ms = self._clock.now_ms()
        batch = encode_control_batch(records, timestamp_ms=timestamp_ms)
        result = self._append(batch, effect.leader_epoch, timestamp_ms, ())
        if result.error is not ErrorCode.NONE:
            reason = f"{self._files.directory}: {result.error_message}"
            if self.found_no_room(result):
                raise DiskFull(reason)
            raise MetadataLogError(reason)
        return [] if effect.voters is None else [(result.last_offset, effect.voters)]

    def _append(
        self, batch: bytearray, leader_epoch: int, timestamp_ms: int, records: tuple[Message, ...]
    ) -> AppendResult:
        result = self._log.append_as_leader(
            RecordBatches.read(batch), leader_epoch=leader_epoch, origin=AppendOrigin.RAFT_LEADER
        )
        if result.error is ErrorCode.NONE:
            self._recent.add(
                CommittedBatch(
                    base_offset=result.base_offset,
                    last_offset=result.last_offset,
                    leader_epoch=leader_epoch,
                    append_timestamp_ms=timestamp_ms,
                    size_bytes=len(batch),
                    records=records,
                )
            )
            self.flush_soon()
        return result

    def found_no_room(self, result: AppendResult | ReadResult) -> bool:
        """Whether it was refused for want of room, or of a descriptor: the log is as it was."""
        return result.error is ErrorCode.KAFKA_STORAGE_ERROR and not self._log.offline

    async def append_fetched(self, effect: AppendFetched) -> FollowerAppend:
        """Append what a leader sent, as far as it is good. Raises MetadataLogError (the disk)."""
        outcome = FollowerAppend()
        if effect.base_offset != self._log.log_end_offset:
            outcome.refusal = (
                f"base offset {effect.base_offset} where {self._log.log_end_offset} is next"
            )
            return outcome
        check = partial(
            check_fetched,
            effect.records,
            base_offset=effect.base_offset,
            last_leader_epoch=self._files.last_leader_epoch,
            leader_epoch=effect.leader_epoch,
            max_piece_bytes=min(MAX_PIECE_BYTES, self._log.config.segment_bytes),
        )
        is_small = len(effect.records) <= INLINE_CHECK_BYTES
        fetched = check() if is_small else await self._offload(check)
        outcome.refusal = fetched.refusal
        voters = self._files.voters.latest
        for piece in fetched.pieces:
            result = self._log.append_as_follower(piece.records, leader_epoch=effect.leader_epoch)
            if result.error is not ErrorCode.NONE:
                if self._log.offline:
                    raise MetadataLogError(self._log.offline_reason)
                reason = result.error_message or result.error.name
                if self.found_no_room(result):
                    outcome.no_room = reason
                else:
                    outcome.refusal = reason
                break
            outcome.has_appended = True
            for batch in piece.batches:
                if batch is None:
                    self._recent.clear()
                else:
                    self._recent.add(batch)
            for control in piece.control:
                found = voters_in_batch(self._files.directory, control, voters)
                if found is not None:
                    outcome.voters.append(found)
                    voters = found[1]
        if outcome.has_appended:
            self.flush_soon()
        return outcome

    async def truncate(self, end_offset: int) -> None:
        """Remove everything from `end_offset` on. Raises LogOffline, OSError, DiskFull."""
        await self.flush_is_idle()
        async with self._log_lock:
            if self._files.flushed_end_offset > end_offset:
                await self._note_flushed(end_offset)
            await self._offload(self._log.truncate_to, end_offset)
        self._recent.truncate_to(end_offset)

    def flush_soon(self) -> None:
        """Flush in the background; appends during a flush share the next one."""
        if self._flush_task is None:
            self._flush_task = asyncio.get_running_loop().create_task(
                self._flush(), name="metadata-flush"
            )

    async def flush_is_idle(self) -> None:
        """Wait until everything appended is flushed, or cannot be."""
        while self._flush_task is not None:
            await asyncio.wait([self._flush_task])

    async def _flush(self) -> None:
        try:
            while (job := self._start_flush()) is not None:
                now = self._log.segments.active, self._log.truncation_count
                await self._offload(job.run)
                self._log.finish_flush(job)
                self._synced = now
                self.on_flushed()
                if self._log.recovery_point >= self._files.flushed_end_offset + NOTE_EVERY:
                    await self._try_to_note(self._log.recovery_point)
                if job.lacks_seals and self._log.recovery_point >= self._log.log_end_offset:
                    break  # the next flush tries to write them
        except DiskFull as error:
            self.on_no_room(str(error))
        except LogOffline as error:
            self.on_failure(str(error))
        finally:
            self._flush_task = None

    async def _try_to_note(self, end_offset: int) -> None:
        """A note that lags behind promises less: a full disk is no reason to stop."""
        files = self._files
        # At most this is in the file, also when its writing fails halfway.
        files.flushed_end_offset = max(files.flushed_end_offset, end_offset)
        try:
            await self._note_flushed(end_offset)
        except OSError as error:
            logger.warning("%s: not noted how far the log is flushed: %s", files.directory, error)

    async def _note_flushed(self, end_offset: int) -> None:
        """Raises OSError."""
        files = self._files
        await self._offload(write_flushed_end, files.filesystem, files.directory, end_offset)
        files.flushed_end_offset = end_offset

    def _start_flush(self) -> FlushJob | None:
        """Once the active segment has a durable name, its records are all that a commit needs: a
        start after a crash rebuilds the indexes. Seals that are due are written with all the rest.
        Raises LogOffline, DiskFull.
        """
        job = self._log.start_flush()
        segments = self._log.segments
        active = segments.active
        is_synced = self._synced == (active, self._log.truncation_count)
        if job is None or not is_synced or segments.seals.is_dirty:
            return job
        indexes = {active.offset_index.path, active.time_index.path}
        is_plain = len(job.files) == 1 and set(job.paths) == indexes
        return RecordsFlush(job) if is_plain else job

    async def read_records(self, start_offset: int, end_offset: int, max_bytes: int) -> Buffer:
        """Whole batches from the one with `start_offset` on, their CRC known to be good.

        Raises MetadataLogError; DiskFull, they cannot be read now.
        """
        result = self._log.read(start_offset, max_bytes=max_bytes, max_offset=end_offset)
        while result.verification is not None:
            await self._offload(result.verification.run)
            result = self._log.finish_verification(result)
        if result.error is not ErrorCode.NONE:
            reason = (
                f"{self._files.directory}: reading at offset {start_offset}: "
                f"{result.error_message or result.error.name}"
            )
            if self.found_no_room(result):
                raise DiskFull(reason)
            raise MetadataLogError(reason)
        region = result.records
        if isinstance(region, bytes):
            return region
        try:
            if region.is_cold or region.length > INLINE_READ_BYTES:
                return await self._offload(region.read)
            return region.read()
        except OSError as error:
            raise MetadataLogError(f"{self._files.directory}: {error}") from None
        finally:
            region.release()

    async def close(self) -> None:
        """Close the files. Raises LogOffline, OSError."""
        await self.flush_is_idle()
        if not self._log.offline:
            await self._offload(self._log.close)
            if self._files.flushed_end_offset != self._log.log_end_offset:
                await self._note_flushed(self._log.log_end_offset)
