"""The metadata log of a quorum with one voter: append, flush, committed.

Owns: the epoch this start opened, the high watermark, group commit, delivery to listeners,
snapshots and trimming. Runs on one event loop; what waits for the disk goes through
`Filesystem.offload`. The quorum of several voters replaces this module behind the same port.
Must not: know what records mean. Invariant: a batch is delivered only when it is on stable storage;
after a failed flush nothing is ever committed again (what the disk holds is unknown), and the owner
is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.leader_change_message import LeaderChangeMessage
from moldau.protocol.messages.leader_change_message import Voter as LeaderChangeVoter
from moldau.protocol.records import ControlRecordType, encode_control_batch
from moldau.protocol.schema import Message
from moldau.raft.batch_codec import encode_data_batch
from moldau.raft.core.values import ElectionState, SnapshotId
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.log_files import (
    LogFiles,
    finish_read,
    open_log_files,
    start_read,
)
from moldau.raft.quorum_state import write_quorum_state
from moldau.raft.snapshot_files import (
    SnapshotWriter,
    read_snapshot_file,
    snapshot_batches,
    snapshot_path,
)
from moldau.raft.subscription import LogListener, Subscription, SubscriptionState
from moldau.raft.values import CommittedBatch, MetadataLogError
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.filesystem import Filesystem
from moldau.storage.append import AppendOrigin
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_config import LogConfig

logger = logging.getLogger("moldau.raft")

_LEADER_CHANGE_VERSION: Final = 0
_NOBODY: Final = -1
CACHED_SNAPSHOT_MS: Final = 60_000
"""How long the snapshot that the start decoded is kept for the listeners of the start."""


@dataclass(frozen=True, slots=True)
class MetadataLogSettings:
    """Where the log is and how much of it is kept.

    `retention_bytes` and `retention_ms` bound old snapshots and the log below the latest one
    (`metadata.max.retention.*`); -1 means without limit.
    """

    metadata_directory: str
    node_id: int
    directory_id: UUID
    endpoints: tuple[VoterEndpoint, ...]
    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 * 1024**2
    retention_bytes: int = 100 * 1024**2
    retention_ms: int = 7 * 24 * 3600 * 1000


class SingleVoterLog:
    """States: opened by `open` -> leading -> failed or closed."""

    def __init__(
        self,
        files: LogFiles,
        clock: Clock,
        settings: MetadataLogSettings,
        on_fatal: Callable[[str], None],
    ) -> None:
        """Use `open`."""
        self._files = files
        self._log = files.log
        self._filesystem = files.filesystem
        self._clock = clock
        self._settings = settings
        self._on_fatal = on_fatal
        self._uncommitted: deque[CommittedBatch] = deque()
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failure: str | None = None
        self._release_timer: TimerHandle | None = None
        self.leader_epoch = files.last_leader_epoch + 1
        self.epoch_start_offset = self._log.log_end_offset
        self.high_watermark = 0

    @classmethod
    async def open(
        cls,
        filesystem: Filesystem,
        clock: Clock,
        settings: MetadataLogSettings,
        on_fatal: Callable[[str], None],
    ) -> SingleVoterLog:
        """Open the log and lead: a new epoch, durable, with everything before it committed.

        Args:
            on_fatal: told once, in one line, when the node must not go on.

        Raises:
            MetadataLogError: damage, contradictions, or other voters; nothing was overwritten.
            OSError: the disk refuses.
        """
        config = LogConfig(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            segment_index_bytes=settings.segment_index_bytes,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        files = await filesystem.offload(
            open_log_files, filesystem, clock, settings.metadata_directory, config
        )
        log = cls(files, clock, settings, on_fatal)
        try:
            log._check_voters()
            await filesystem.offload(log._lead)
        except (MetadataLogError, OSError, LogOffline):
            files.log.abandon()
            raise
        log._release_timer = clock.call_later(CACHED_SNAPSHOT_MS, log.release_cached_snapshot)
        return log

    # -- leading ---------------------------------------------------------------------------------

    def _check_voters(self) -> None:
        own = self._settings
        voters = self._files.voters.voters
        if not voters:
            return
        names = ", ".join(str(voter) for voter in voters)
        if [voter.voter_id for voter in voters] != [own.node_id]:
            raise MetadataLogError(
                f"{self._files.directory}: the quorum's voters are {names}; "
                f"node {own.node_id} can only be the single voter of its quorum"
            )
        if voters[0].directory_id != own.directory_id:
            raise MetadataLogError(
                f"{self._files.directory}: the voter is {names}, "
                "and this directory has another id: it was formatted anew or copied"
            )

    def _lead(self) -> None:
        """Open the next epoch: election state first, then the log's LeaderChange. Blocks."""
        own = self._settings
        state = ElectionState(leader_id=own.node_id, leader_epoch=self.leader_epoch)
        write_quorum_state(self._filesystem, self._files.directory, state)
        voter = LeaderChangeVoter(voter_id=own.node_id)
        message = LeaderChangeMessage(
            version=_LEADER_CHANGE_VERSION,
            leader_id=own.node_id,
            voters=[voter],
            granting_voters=[voter],
        )
        records = [(ControlRecordType.LEADER_CHANGE, message.to_bytes(_LEADER_CHANGE_VERSION))]
        records += self._voter_records()
        batch = encode_control_batch(records, timestamp_ms=self._clock.now_ms())
        result = self._log.append_as_leader(
            batch, leader_epoch=self.leader_epoch, origin=AppendOrigin.RAFT_LEADER
        )
        if result.error is not ErrorCode.NONE:
            raise MetadataLogError(f"{self._files.directory}: {result.error_message}")
        self._log.flush()
        self.high_watermark = self._log.log_end_offset
        self._log.update_high_watermark(self.high_watermark)

    def _voter_records(self) -> list[tuple[ControlRecordType, bytes]]:
        """The voter's control records where the log lacks them: at first, and after a move."""
        known = self._files.voters
        if known.kraft_version < 1:
            return []
        own = self._settings
        voter = VoterDescription(own.node_id, own.directory_id, own.endpoints)
        voters = VoterSet((voter,), known.kraft_version)
        is_new = self._log.log_end_offset == 0
        if not is_new and (voters == known or not own.endpoints):
            return []
        if not own.endpoints:
            voters = known
        self._files.voters = voters
        return voters.control_records()

    # -- the port --------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._log.log_end_offset

    @property
    def node_id(self) -> int:
        """The voter, which leads."""
        return self._settings.node_id

    @property
    def directory_id(self) -> UUID:
        """The voter's directory."""
        return self._settings.directory_id

    @property
    def voters(self) -> VoterSet:
        """The quorum's voters."""
        return self._files.voters

    @property
    def snapshots(self) -> Sequence[SnapshotId]:
        """The snapshots on disk, oldest first."""
        return tuple(self._files.snapshots)

    def append(
        self, records: Sequence[tuple[Message, int]], *, leader_epoch: int
    ) -> tuple[ErrorCode, int]:
        """Append one batch; it is delivered once it is flushed, with those appended meanwhile."""
        assert records, "a batch has records"
        if leader_epoch != self.leader_epoch or self._failure is not None or self._is_closed:
            return ErrorCode.NOT_CONTROLLER, -1
        timestamp_ms = self._clock.now_ms()
        batch = encode_data_batch(records, timestamp_ms=timestamp_ms)
        result = self._log.append_as_leader(
            batch, leader_epoch=leader_epoch, origin=AppendOrigin.RAFT_LEADER
        )
        if result.error is not ErrorCode.NONE:
            logger.error("metadata append refused: %s", result.error_message)
            if self._log.offline:
                self._fail(self._log.offline_reason)
            return result.error, -1
        self._uncommitted.append(
            CommittedBatch(
                base_offset=result.base_offset,
                last_offset=result.last_offset,
                leader_epoch=leader_epoch,
                append_timestamp_ms=timestamp_ms,
                size_bytes=len(batch),
                records=tuple(record for record, _version in records),
            )
        )
        if self._flush_task is None:
            self._flush_task = asyncio.get_running_loop().create_task(
                self._flush(), name="metadata-flush"
            )
        return ErrorCode.NONE, result.last_offset

    def add_listener(self, listener: LogListener) -> Subscription:
        """Deliver everything there is to `listener`, then everything that commits."""
        subscription = Subscription(listener, self._catch_up)
        self._subscriptions.append(subscription)
        self._catch_up(subscription)
        return subscription

    # -- commit ----------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Flush until nothing new was appended meanwhile; each flush commits what it covered."""
        try:
            while self._uncommitted and self._failure is None:
                job = self._log.start_flush()
                if job is not None:
                    await self._filesystem.offload(job.run)
                    self._log.finish_flush(job)
                self._commit_up_to(self._log.recovery_point)
        except (LogOffline, DiskFull) as error:
            self._fail(str(error))
        finally:
            self._flush_task = None

    def _commit_up_to(self, offset: int) -> None:
        self.high_watermark = offset
        self._log.update_high_watermark(offset)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0].last_offset < offset:
            batch = uncommitted.popleft()
            for subscription in list(self._subscriptions):
                if (
                    subscription.state is SubscriptionState.LIVE
                    and subscription.next_offset == batch.base_offset
                ):
                    subscription.give(batch)

    def _fail(self, reason: str) -> None:
        """Nothing can be committed any more: lead no longer, and tell the owner."""
        if self._failure is not None:
            return
        self._failure = reason
        logger.critical("the metadata log failed: %s", reason)
        for subscription in list(self._subscriptions):
            if subscription.state is not SubscriptionState.CLOSED:
                subscription.listener.handle_leader_change(_NOBODY, self.leader_epoch)
        self._on_fatal(f"metadata log: {reason}")

    # -- catching up -----------------------------------------------------------------------------

    def _catch_up(self, subscription: Subscription) -> None:
        task = asyncio.get_running_loop().create_task(
            self._serve_from_disk(subscription), name="metadata-catch-up"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_from_disk(self, subscription: Subscription) -> None:
        """Bring a listener to the high watermark; it is live when the last read found no more."""
        try:
            while subscription.state is SubscriptionState.CATCHING_UP and not self._is_closed:
                if await self._needs_snapshot(subscription):
                    continue
                self._tell_leader(subscription)
                if subscription.next_offset >= self.high_watermark:
                    subscription.state = SubscriptionState.LIVE
                    return
                start_offset = subscription.next_offset
                region = start_read(self._files, start_offset, self.high_watermark)
                batches = await self._filesystem.offload(
                    finish_read, self._files.directory, region, start_offset
                )
                for batch in batches:
                    if subscription.state is not SubscriptionState.CATCHING_UP:
                        break
                    subscription.give(batch.as_committed())
                    self._tell_leader(subscription)
        except (MetadataLogError, OSError) as error:
            self._fail(str(error))

    def _tell_leader(self, subscription: Subscription) -> None:
        if subscription.next_offset >= self.epoch_start_offset and self._failure is None:
            subscription.tell_leader(self._settings.node_id, self.leader_epoch)

    async def _needs_snapshot(self, subscription: Subscription) -> bool:
        """Give the latest snapshot to a listener that is new, or behind the log's start."""
        if subscription.next_offset < 0:
            subscription.next_offset = 0
            is_behind = bool(self._files.snapshots)
        else:
            is_behind = subscription.next_offset < self._log.log_start_offset
        if not is_behind:
            return False
        snapshot_id = self._files.snapshots[-1]
        if snapshot_id.end_offset == 0:
            return False  # the bootstrap snapshot has no metadata records
        cached = self._files.latest_snapshot
        if cached is None or cached.end_offset != snapshot_id.end_offset:
            path = snapshot_path(self._files.directory, snapshot_id)
            loaded, _ = await self._filesystem.offload(
                read_snapshot_file, self._filesystem, path, snapshot_id
            )
            cached = loaded
        subscription.give_snapshot(cached)
        return True

    def release_cached_snapshot(self) -> None:
        """The listeners of the start-up have it: give the memory back."""
        self._files.latest_snapshot = None

    # -- snapshots -------------------------------------------------------------------------------

    async def write_snapshot(
        self,
        *,
        end_offset: int,
        leader_epoch: int,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> None:
        """Write a snapshot of everything below `end_offset`, then trim log and older snapshots.

        Raises:
            OSError: it could not be written; nothing changed.
        """
        assert end_offset <= self.high_watermark, "only what is committed"
        snapshot_id = SnapshotId(end_offset, leader_epoch)
        newest = self._files.snapshots[-1].end_offset if self._files.snapshots else -1
        if self._is_closed or end_offset <= newest:
            return
        offload = self._filesystem.offload
        path = snapshot_path(self._files.directory, snapshot_id)
        writer = await offload(SnapshotWriter, self._filesystem, path)
        try:
            for batch in snapshot_batches(
                records,
                leader_epoch=leader_epoch,
                last_contained_log_time_ms=last_contained_log_time_ms,
                voters=self._files.voters,
                timestamp_ms=self._clock.now_ms(),
            ):
                await offload(writer.append, batch)
            await offload(writer.finish)
        except OSError:
            await offload(writer.abandon)
            raise
        self._files.snapshots.append(snapshot_id)
        logger.info("wrote metadata snapshot %s", path)
        if not self._is_closed and self._failure is None:
            self._trim()

    def _trim(self) -> None:
        """Begin a segment, so that the next start checks little, and drop what is old enough."""
        try:
            self._log.roll()
            while len(self._files.snapshots) > 1 and self._may_drop_oldest():
                self._drop_oldest()
        except LogOffline as problem:
            self._fail(str(problem))
        except (DiskFull, OSError) as problem:
            logger.warning("the metadata log could not be trimmed for now: %s", problem)

    def _drop_oldest(self) -> None:
        """First the log, then the snapshot: a crash in between leaves too much, not too little."""
        oldest, following = self._files.snapshots[0], self._files.snapshots[1]
        error, _ = self._log.delete_records(following.end_offset)
        if error is not ErrorCode.NONE:
            raise LogOffline(self._log.name, self._log.offline_reason or error.name)
        self._filesystem.unlink(snapshot_path(self._files.directory, oldest))
        del self._files.snapshots[0]

    def _may_drop_oldest(self) -> bool:
        """Whether the oldest snapshot, and the log up to the next one, are due to go (KIP-630)."""
        settings, snapshots = self._settings, self._files.snapshots
        filesystem, directory = self._filesystem, self._files.directory
        if settings.retention_ms >= 0:
            age_ms = self._clock.now_ms() - filesystem.modified_ms(
                snapshot_path(directory, snapshots[1])
            )
            if age_ms > settings.retention_ms:
                return True
        if settings.retention_bytes < 0:
            return False
        total = self._log.size_bytes + sum(
            filesystem.size_bytes(snapshot_path(directory, each)) for each in snapshots
        )
        return total > settings.retention_bytes

    # -- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Commit what was appended, deliver it, close the files."""
        while self._flush_task is not None:
            await asyncio.wait([self._flush_task])
        self._is_closed = True
        if self._release_timer is not None:
            self._release_timer.cancel()
        for subscription in self._subscriptions:
            subscription.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if not self._log.offline:
            try:
                await self._filesystem.offload(self._log.close)
            except LogOffline as error:
                logger.error("closing the metadata log: %s", error)
