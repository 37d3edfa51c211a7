"""A partition's replica on this broker: the core's decisions applied to a log.

Owns the pair of `PartitionCore` and `Log`, and who waits for the partition to change. Must not know
requests, responses or other partitions. Invariants: what the log is told of the high watermark is
what the core decided; after an append nothing refers to the bytes it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.broker.partition.core import PartitionCore, PartitionState
from moldau.broker.partition.deferred import DeferredAppends, Flush, Records, StartWork
from moldau.protocol.errors import ErrorCode
from moldau.storage.append import AppendResult
from moldau.storage.faults import LogOffline

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.fetch_sessions import FetchPartition
    from moldau.broker.topic_stats import TopicStats
    from moldau.protocol.types import RecordsSource, TopicPartition
    from moldau.storage.log import Log
    from moldau.storage.log_read import ReadResult

NO_OFFSET: Final = -1
EMPTY_RECORDS: Final = b""
ACKS_ALL: Final = -1


class ProduceOwner(Protocol):
    """Whoever wants to hear that appended records are committed."""

    def commit_decided(self, wait: ProduceWait, error: ErrorCode) -> None:
        """Everything before `wait.required_offset` is committed (NONE), or will not be."""


class ProduceWait:
    """One partition's part of an acks=all produce that waits for the high watermark.

    `slot` is the owner's own: where in its response the partition stands.
    """

    __slots__ = ("owner", "partition", "required_offset", "slot")

    def __init__(
        self, owner: ProduceOwner, partition: Partition, required_offset: int, slot: Any
    ) -> None:
        self.owner = owner
        self.partition = partition
        self.required_offset = required_offset
        self.slot = slot


class FetchRead:
    """What one partition has for one fetch.

    `records` are whole batches, possibly none. `pending` says that there are some which have to be
    looked at off the loop first: ask again when the partition says that it changed. `is_starved`
    says that there are some which the byte limits left out.
    """

    __slots__ = (
        "aborted_transactions",
        "diverging_end_offset",
        "diverging_epoch",
        "error",
        "high_watermark",
        "is_starved",
        "last_stable_offset",
        "log_start_offset",
        "pending",
        "records",
        "size_bytes",
    )

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.error = error
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.records: bytes | RecordsSource = EMPTY_RECORDS
        self.size_bytes = 0
        self.aborted_transactions: list[tuple[int, int]] | None = None
        self.diverging_epoch = -1
        self.diverging_end_offset = NO_OFFSET
        self.pending = False
        self.is_starved = False

    @property
    def is_diverging(self) -> bool:
        """Whether the client's log and ours part before its fetch offset (KIP-595)."""
        return self.diverging_end_offset >= 0 or self.diverging_epoch >= 0


class Partition:
    """One replica. All methods belong to the data loop; none of them waits.

    Args:
        start_work: starts a coroutine that may leave the loop; whoever runs it also completes the
            requests that `changed` made ready when it ends.
        flush: makes durable what a log holds now; False when the log went offline instead.
    """

    __slots__ = (
        "_is_verifying",
        "_start_work",
        "core",
        "deferred",
        "fetch_watchers",
        "is_deleted",
        "is_opening",
        "log",
        "min_insync_replicas",
        "produce_waits",
        "stats",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        local_broker_id: int,
        *,
        stats: TopicStats,
        start_work: StartWork,
        flush: Flush,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.stats = stats
        self.core = PartitionCore(local_broker_id)
        self.log: Log | None = None
        self.min_insync_replicas = 1
        self.is_deleted = False
        self.is_opening = False
        self.fetch_watchers: dict[FetchPartition, None] = {}
        self.produce_waits: dict[ProduceWait, None] = {}
        self.deferred = DeferredAppends(self, start_work, flush)
        self._is_verifying = False
        self._start_work = start_work

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition}, {self.core.role.name})"

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.core.is_leader

    @property
    def is_offline(self) -> bool:
        """Whether the local log cannot be used (one that is just being made can, soon)."""
        return not self.is_opening and (self.log is None or self.log.offline)

    @property
    def unusable_error(self) -> ErrorCode:
        """What a client is told while there is no log to use."""
        if self.is_opening:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads and a replica is not in sync."""
        return self.core.is_under_replicated

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this broker leads and fewer are in sync than acks=all asks for."""
        return self.core.is_leader and self.core.is_under_min_isr(self.min_insync_replicas)

    @property
    def is_at_min_isr(self) -> bool:
        """Whether this broker leads and no replica in sync can be spared."""
        return self.core.is_leader and len(self.core.isr) == self.min_insync_replicas

    # -- leadership ------------------------------------------------------------------------------

    def apply_state(self, state: PartitionState) -> None:
        """Take over what the controller decided; waiting requests hear of it."""
        log = self.log
        log_end_offset = log.log_end_offset if log is not None else 0
        high_watermark = log.high_watermark if log is not None else 0
        begins_leading = self.core.apply_state(
            state, log_end_offset=log_end_offset, high_watermark=high_watermark
        )
        if log is not None and not log.offline:
            if begins_leading:
                log.assign_leader_epoch(self.core.leader_epoch, log_end_offset)
            self.core.advance_high_watermark(self.min_insync_replicas)
            log.update_high_watermark(self.core.high_watermark)
        self.changed()

    def log_opened(self) -> None:
        """The log could be opened after all: begin anew with what the controller decided."""
        core = self.core
        state = PartitionState(
            core.leader_id, core.leader_epoch, core.partition_epoch, core.replicas, tuple(core.isr)
        )
        core.resign()
        self.apply_state(state)

    def resign(self) -> None:
        """The replica leaves this broker: whoever waits is told."""
        self.is_deleted = True
        self.core.resign()
        self.changed()

    def settings_changed(self) -> None:
        """`min.insync.replicas` or the log's settings are new; more may count as committed."""
        log = self.log
        if log is not None and self.core.advance_high_watermark(self.min_insync_replicas):
            self._high_watermark_moved(log)

    def changed(self) -> None:
        """Tell everyone who waits that something about the partition is new."""
        self._tell_fetches()
        if self.produce_waits:
            self._decide_commits()

    # -- writing ---------------------------------------------------------------------------------

    def must_queue(self, records: Records) -> bool:
        """Whether an append has to go through `deferred.enqueue`: the topic has a codec of its own
        and the batch another, or such a batch is still on its way.
        """
        log = self.log
        if log is None or log.config.target_codec is None:
            return not self.deferred.is_line_empty
        return not self.deferred.is_line_empty or log.needs_preparation(records)

    def append(self, records: Records, required_acks: int) -> AppendResult:
        """Append a producer's batches as the leader.

        Args:
            required_acks: -1, 0 or 1; -1 insists on `min.insync.replicas`.
        """
        core = self.core
        if not core.is_leader:
            return AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        if log is None or log.offline:
            return AppendResult(self.unusable_error)
        if required_acks == ACKS_ALL and core.is_under_min_isr(self.min_insync_replicas):
            return AppendResult(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(core.isr)} replicas in sync, min.insync.replicas is "
                f"{self.min_insync_replicas}",
            )
        result = log.append_as_leader(records, leader_epoch=core.leader_epoch)
        if result.error is ErrorCode.NONE and not result.is_duplicate:
            moved = core.update_log_end_offset(
                core.local_broker_id, log.log_end_offset, self.min_insync_replicas
            )
            if moved:
                self._high_watermark_moved(log)
            elif len(core.replicas) > 1:
                # Followers read past the high watermark: to them the append itself is news.
                self._tell_fetches()
        elif log.offline:
            self.changed()
        return result

    def wait_for_commit(self, wait: ProduceWait) -> ErrorCode | None:
        """Start to wait for a high watermark, or say at once what is already decided."""
        error = self.core.is_committed(wait.required_offset, self.min_insync_replicas)
        if error is None:
            self.produce_waits[wait] = None
        return error

    def follower_fetched(self, replica_id: int, log_end_offset: int) -> None:
        """A follower's fetch says how far its log reaches."""
        log = self.log
        if log is not None and self.core.update_log_end_offset(
            replica_id, log_end_offset, self.min_insync_replicas
        ):
            self._high_watermark_moved(log)

    def _high_watermark_moved(self, log: Log) -> None:
        log.update_high_watermark(self.core.high_watermark)
        self.changed()

    def _tell_fetches(self) -> None:
        for fetched in self.fetch_watchers:
            fetched.owner.partition_changed(fetched)

    def _decide_commits(self) -> None:
        for wait in list(self.produce_waits):
            if wait not in self.produce_waits:
                continue  # an answer before it ended its connection, and with that this wait
            error = self.core.is_committed(wait.required_offset, self.min_insync_replicas)
            if error is not None:
                del self.produce_waits[wait]
                wait.owner.commit_decided(wait, error)

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self,
        fetched: FetchPartition,
        *,
        max_bytes: int,
        min_one_batch: bool,
        read_committed: bool,
        leader_only: bool,
        for_replica: bool = False,
    ) -> FetchRead:
        """Read for a fetch, from the batch that holds its fetch offset.

        Args:
            max_bytes: the partition's share of the response.
            min_one_batch: return the first batch even if it is larger than that.
            read_committed: stop at the last stable offset, and name aborted transactions.
            leader_only: a follower answers NOT_LEADER_OR_FOLLOWER (before KIP-392).
            for_replica: read past the high watermark, to the end of the log.
        """
        core = self.core
        current = fetched.current_leader_epoch
        if current not in (-1, core.leader_epoch) or not core.is_leader:
            error = core.check_leader_epoch(current)
            if error is ErrorCode.NONE and (leader_only or self.is_deleted):
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if error is not ErrorCode.NONE:
                return FetchRead(error)
        log = self.log
        if log is None or log.offline:
            return FetchRead(self.unusable_error)
        read = FetchRead()
        fetch_offset = fetched.fetch_offset
        # Where the logs part comes first: a client past our end has to cut its log, not to begin
        # anew somewhere else.
        if fetched.last_fetched_epoch >= 0 and self._diverges(fetched, log, read):
            if read.error is not ErrorCode.NONE:
                return read
        elif not log.log_start_offset <= fetch_offset <= log.log_end_offset:
            return FetchRead(ErrorCode.OFFSET_OUT_OF_RANGE)
        read.high_watermark = core.high_watermark
        read.log_start_offset = log.log_start_offset
        read.last_stable_offset = log.last_stable_offset
        if read.is_diverging:
            return read
        if for_replica:
            upper = log.log_end_offset
        elif read_committed:
            upper = read.last_stable_offset
        else:
            upper = read.high_watermark
        if read_committed:
            read.aborted_transactions = []
        if fetch_offset < upper:
            self._read_log(log, read, fetch_offset, upper, max_bytes, min_one_batch)
        return read

    def _diverges(self, fetched: FetchPartition, log: Log, read: FetchRead) -> bool:
        """Compare the epoch of the last record the client has with our history (KIP-595)."""
        leader_epoch, end_offset = log.end_offset_for_epoch(fetched.last_fetched_epoch)
        if leader_epoch < 0 or end_offset < 0:
            read.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return True
        if leader_epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
            read.diverging_epoch = leader_epoch
            read.diverging_end_offset = end_offset
            return True
        return False

    def _read_log(
        self,
        log: Log,
        read: FetchRead,
        fetch_offset: int,
        upper: int,
        max_bytes: int,
        min_one_batch: bool,
    ) -> None:
        result = log.read(
            fetch_offset,
            max_bytes=max_bytes,
            max_offset=upper,
            min_one_message=min_one_batch,
        )
        if result.verification is not None:
            read.pending = True
            if not self._is_verifying:
                self._is_verifying = True
                self._start_work(self._verify(log, result))
            return
        if result.error is not ErrorCode.NONE:
            read.error = result.error
            return
        read.records = result.records
        read.size_bytes = len(result.records)
        read.is_starved = not read.size_bytes
        if read.aborted_transactions is not None and read.size_bytes:
            try:
                read.aborted_transactions = [
                    (aborted.producer_id, aborted.first_offset)
                    for aborted in log.aborted_transactions(fetch_offset, result.next_offset)
                ]
            except LogOffline as offline:
                read.error = offline.error
                read.records = EMPTY_RECORDS
                read.size_bytes = 0

    async def _verify(self, log: Log, result: ReadResult) -> None:
        """Check bytes that this process has not seen before, then let the fetches look again."""
        assert result.verification is not None
        await log.filesystem.offload(result.verification.run)
        self._is_verifying = False
        verified = log.finish_verification(result).records
        if not isinstance(verified, bytes):
            verified.release()
        self.changed()
