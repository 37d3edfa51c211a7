"""A partition's replica on this broker: the core's decisions applied to a log.

Owns the pair of `PartitionCore` and `Log`, and who waits for the partition to change. Must not know
requests, responses or other partitions. Invariants: what the log is told of the high watermark is
what the core decided; after an append nothing refers to the bytes it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.broker.replica import following, leading, reading, transactions
from moldau.broker.replica.core import PartitionCore, PartitionState
from moldau.broker.replica.deferred import DeferredAppends, Flush, Records, StartWork
from moldau.broker.replica.transactions import VerificationGuard, VerificationGuards
from moldau.protocol.errors import ErrorCode
from moldau.storage.append import AppendOrigin, AppendResult

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.replica.context import ReplicationContext
    from moldau.broker.replica.core import ReplicaFigures
    from moldau.broker.replica.fetch_sessions import FetchPartition
    from moldau.broker.replica.topic_stats import TopicStats
    from moldau.protocol.types import TopicPartition
    from moldau.storage.log import Log

NO_OFFSET: Final = -1
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


class LowWatermarkWaiter(Protocol):
    """Whoever waits until the followers have dropped records, too (DeleteRecords)."""

    def partition_changed(self, partition: Partition) -> None:
        """The low watermark may have moved, or this broker leads no longer."""


class Partition:
    """One replica. All methods belong to the data loop; none of them waits.

    Args:
        start_work: starts a coroutine that may leave the loop; whoever runs it also completes the
            requests that `changed` made ready when it ends.
        flush: makes durable what a log holds now; False when the log went offline instead.
        context: the rest of the cluster.
    """

    __slots__ = (
        "context",
        "core",
        "deferred",
        "fetch_watchers",
        "follower_problem",
        "guards",
        "is_deleted",
        "is_opening",
        "is_verifying",
        "log",
        "low_watermark_waits",
        "min_insync_replicas",
        "produce_waits",
        "start_work",
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
        context: ReplicationContext,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.stats = stats
        self.context = context
        self.core = PartitionCore(local_broker_id, context)
        self.log: Log | None = None
        self.min_insync_replicas = 1
        self.is_deleted = False
        self.is_opening = False
        self.fetch_watchers: dict[FetchPartition, None] = {}
        self.produce_waits: dict[ProduceWait, None] = {}
        self.follower_problem = ""
        self.low_watermark_waits: dict[LowWatermarkWaiter, None] = {}
        self.guards = VerificationGuards()
        self.deferred = DeferredAppends(self, start_work, flush)
        self.is_verifying = False
        self.start_work = start_work

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
        core = self.core
        # No more can be asked for than are assigned.
        required_count = min(self.min_insync_replicas, max(1, len(core.replicas)))
        return core.is_leader and len(core.isr) == required_count

    @property
    def is_reassigning(self) -> bool:
        """Whether this broker leads and replicas are being moved (KIP-455)."""
        core = self.core
        return core.is_leader and bool(core.adding_replicas or core.removing_replicas)

    def has_late_transaction(self, late_after_ms: int) -> bool:
        """Whether this broker leads and nothing was heard for `late_after_ms` of the producer whose
        open transaction holds the last stable offset back (KIP-664).
        """
        log = self.log
        if not self.core.is_leader or log is None or log.offline:
            return False
        idle_ms = log.producer_state.oldest_transaction_idle_ms(log.clock.now_ms())
        return idle_ms is not None and idle_ms > late_after_ms

    # -- leadership ------------------------------------------------------------------------------

    def apply_state(self, state: PartitionState) -> None:
        """Take over what the controller decided; waiting requests hear of it."""
        log = self.log
        log_end_offset = log.log_end_offset if log is not None else 0
        high_watermark = log.high_watermark if log is not None else 0
        led_epoch = self.core.leader_epoch if self.core.is_leader else None
        before, has_proposed = self.core.isr, self.core.in_sync.pending is not None
        begins_leading = self.core.apply_state(
            state, log_end_offset=log_end_offset, high_watermark=high_watermark
        )
        if led_epoch is None or not self.core.is_leader or self.core.leader_epoch > led_epoch + 1:
            self.guards.void_all()
        if has_proposed and led_epoch == self.core.leader_epoch and not self.core.in_sync.pending:
            leading.count_isr_change(self, before)
        if log is not None and not log.offline:
            if begins_leading:
                log.assign_leader_epoch(self.core.leader_epoch, log_end_offset)
                leading.say_if_unclean(self, log)
            self.core.advance_high_watermark(self.min_insync_replicas)
            log.update_high_watermark(self.core.high_watermark)
            leading.submit(self, self.core.propose())
        self.changed()

    def log_opened(self) -> None:
        """The log could be opened after all: begin anew with what the controller decided."""
        state = self.core.state
        self.core.resign()
        self.apply_state(state)

    def resign(self) -> None:
        """The replica leaves this broker: whoever waits is told."""
        self.is_deleted = True
        self.core.resign()
        self.guards.void_all()
        self.changed()

    def settings_changed(self) -> None:
        """`min.insync.replicas` or the log's settings are new; more may count as committed."""
        log = self.log
        if log is not None and self.core.advance_high_watermark(self.min_insync_replicas):
            self.high_watermark_moved(log)

    def changed(self) -> None:
        """Tell everyone who waits that something about the partition is new."""
        self._tell_fetches()
        if self.produce_waits:
            self._decide_commits()
        if self.low_watermark_waits:
            self.tell_low_watermark()

    # -- leading and following -------------------------------------------------------------------

    follower_fetched = leading.follower_fetched
    check_isr = leading.check_isr
    isr_change_answered = leading.isr_change_answered

    follower_position = following.follower_position
    apply_fetched = following.apply_fetched
    apply_leader_offsets = following.apply_leader_offsets

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of the live replicas: what DeleteRecords waits for. -1
        while a live follower has not said where its log begins, or without a usable log.
        """
        log = self.log
        if log is None or log.offline:
            return NO_OFFSET
        return self.core.low_watermark(log.log_start_offset)

    def replica_figures(self) -> list[ReplicaFigures]:
        """How every replica stands, the leader first; empty where this broker does not lead."""
        log = self.log
        return self.core.replica_figures(NO_OFFSET if log is None else log.log_start_offset)

    def tell_low_watermark(self) -> None:
        """A follower has said where its log begins, or is not waited for any more."""
        for waiter in list(self.low_watermark_waits):
            if waiter in self.low_watermark_waits:
                waiter.partition_changed(self)

    # -- writing ---------------------------------------------------------------------------------

    def must_queue(self, records: Records) -> bool:
        """Whether an append has to go through `deferred.enqueue`: the topic has a codec of its own
        and the batch another, or needs keys and the batch is compressed; or such a batch is still
        on its way.
        """
        log = self.log
        if log is None or not log.config.looks_at_records:
            return not self.deferred.is_line_empty
        return not self.deferred.is_line_empty or log.needs_preparation(records)

    def append(
        self,
        records: Records,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Append a producer's, or a coordinator's, batches as the leader.

        Args:
            required_acks: -1, 0 or 1; -1 insists on `min.insync.replicas`.
            guard: for a producer's transactional batch: under which it was verified.
            transaction_version: for a transaction's marker.
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
        producer = None
        if origin is AppendOrigin.CLIENT:
            producer = transactions.transactional_producer(records)
        if producer is None:
            result = log.append_as_leader(
                records,
                leader_epoch=core.leader_epoch,
                origin=origin,
                transaction_version=transaction_version,
            )
        else:
            result = transactions.append_transactional(self, log, records, producer, guard)
        if result.error is ErrorCode.NONE and not result.is_duplicate:
            if core.local_log_grew(log.log_end_offset, self.min_insync_replicas):
                self.high_watermark_moved(log)
            if core.followers:
                # Followers read past the high watermark: to them the append itself is news.
                for fetched in self.fetch_watchers:
                    if fetched.is_follower:
                        fetched.owner.partition_changed(fetched)
        elif log.offline:
            self.changed()
        return result

    append_marker = transactions.append_marker

    def wait_for_commit(self, wait: ProduceWait) -> ErrorCode | None:
        """Start to wait for a high watermark, or say at once what is already decided."""
        error = self.core.is_committed(wait.required_offset, self.min_insync_replicas)
        if error is None:
            self.produce_waits[wait] = None
        return error

    def high_watermark_moved(self, log: Log) -> None:
        """The core has moved it: the log and whoever waits hear of it."""
        log.update_high_watermark(self.core.high_watermark)
        for fetched in self.fetch_watchers:
            fetched.owner.high_watermark_moved(fetched)
        if self.produce_waits:
            self._decide_commits()
        if self.low_watermark_waits:
            self.tell_low_watermark()

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

    read = reading.read
