"""One partition's replica on this broker: the core's decisions applied to a log.

Owns `PartitionCore` and `Log` together, and the requests that wait for the partition to change.
Must not know requests, responses or other partitions. Invariants: the log's high watermark is the
one that the core decided; after an append nothing refers to the bytes it was given; a proposal that
the core has made is submitted or returned, never dropped; consumers get nothing from the high
watermark on; bytes that this process has not read before leave only after they were verified; a
`FetchPartition` is among the watchers of the partition it names, and of no other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.broker.replica.core.in_sync_set import IsrAnswer, IsrChange, PartitionState
from moldau.broker.replica.core.partition_core import (
    UNKNOWN_LEADER_EPOCH,
    FollowerFetch,
    PartitionCore,
    ReplicaFigures,
)
from moldau.broker.replica.deferred_appends import DeferredAppends, StartWork
from moldau.broker.replica.fetch_read import EMPTY_RECORDS, NO_OFFSET, FetchRead
from moldau.broker.replica.unclean_election_notice import UncleanElectionNotice
from moldau.broker.replica.verification_guards import (
    NOT_REQUIRED,
    VerificationGuard,
    VerificationGuards,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import ControlRecordType, EndTxnMarker, encode_end_txn_batch
from moldau.protocol.types import ZERO_UUID
from moldau.storage.append import (
    AppendOrigin,
    AppendResult,
    RecordBatches,
    prepare,
)
from moldau.storage.faults import AppendRejected, LogOffline
from moldau.storage.producer_entry import FIRST_VERSION_WITH_EPOCH_BUMP, MAX_PRODUCER_EPOCH
from moldau.storage.transaction_proof import prove

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.replica.context import ReplicationContext
    from moldau.broker.replica.topic_stats import TopicStats
    from moldau.protocol.types import TopicPartition
    from moldau.storage.log import Log
    from moldau.storage.log_segments import ReadResult

logger = logging.getLogger(__name__)

ACKS_ALL: Final = -1
NO_REPLICA: Final = -1

PartitionKey = tuple["str | UUID", int]


class ProduceOwner(Protocol):
    """A request that waits until appended records are committed."""

    def commit_decided(self, wait: ProduceWait, error: ErrorCode) -> None:
        """Everything before `wait.required_offset` is committed (NONE), or will not be."""


@dataclass(slots=True, eq=False)
class ProduceWait:
    """One partition's part of an acks=all produce that waits for the high watermark.

    `slot` is the owner's own: where in its response the partition stands.
    """

    owner: ProduceOwner
    partition: Partition
    required_offset: int
    slot: Any


class FetchOwner(Protocol):
    """A session, or a fetch without one: it is called when a fetched partition has changed."""

    def partition_changed(self, fetched: FetchPartition) -> None:
        """New data, another leader, another log start offset, or the partition is gone."""

    def high_watermark_moved(self, fetched: FetchPartition) -> None:
        """Only the high watermark is new: data for a consumer, not for a follower."""


@dataclass(slots=True, eq=False)
class FetchPartition:
    """One partition in a fetch: from where, how much, and what the client got last.

    `partition` is the local replica while it is known; a partition that changes calls `owner`.
    `is_follower`: the client reads past the high watermark, to the end of the log; `replica_id` is
    its broker, `log_start_offset` its own. `is_position_news`: the client has named the partition
    in its latest request, and the leader has not noted that yet.
    """

    owner: FetchOwner
    topic: str
    topic_id: UUID
    partition_index: int
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    partition: Partition | None = None
    is_follower: bool = False
    is_position_news: bool = True
    replica_id: int = NO_REPLICA
    reported_high_watermark: int = -1
    reported_log_start_offset: int = -1

    @property
    def key(self) -> PartitionKey:
        """The topic id (from v13 on) or name, and the partition index."""
        if self.topic_id is ZERO_UUID or self.topic:
            return (self.topic, self.partition_index)
        return (self.topic_id, self.partition_index)

    def watch(self, partition: Partition) -> None:
        if self.partition is not partition:
            self.unwatch()
            self.partition = partition
            partition.fetch_watchers[self] = None

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.fetch_watchers.pop(self, None)
            self.partition = None


@dataclass(slots=True, eq=False, repr=False)
class Partition:
    """One replica. All methods belong to the data loop; none of them waits.

    `start_work` starts a coroutine that may leave the loop; when it ends, the requests that
    `changed` made ready are completed. `flush` makes durable what a log holds now; it returns False
    when the log went offline instead. `submit_isr_change` takes a proposal to the controller, and
    `isr_change_answered` gets the answer.
    """

    topic_partition: TopicPartition
    topic_id: UUID
    local_broker_id: InitVar[int]
    _: KW_ONLY
    stats: TopicStats
    start_work: StartWork
    flush: Callable[[Log], Awaitable[bool]]
    submit_isr_change: Callable[[Partition, IsrChange], None]
    context: ReplicationContext
    core: PartitionCore = field(init=False)
    deferred: DeferredAppends = field(init=False)
    log: Log | None = None
    min_insync_replicas: int = 1
    is_deleted: bool = False
    is_opening: bool = False
    is_verifying: bool = False
    is_proving: bool = False
    damaged_in_epoch: int = UNKNOWN_LEADER_EPOCH
    """The newest leader epoch in which other brokers may know how far the log reached that was
    damaged since this process began; -1 without one."""
    follower_problem: str = ""
    fetch_watchers: dict[FetchPartition, None] = field(default_factory=dict)
    produce_waits: dict[ProduceWait, None] = field(default_factory=dict)
    low_watermark_waits: dict[Callable[[Partition], None], None] = field(default_factory=dict)
    guards: VerificationGuards = field(default_factory=VerificationGuards)
    _unclean_election: UncleanElectionNotice = field(default_factory=UncleanElectionNotice)

    def __post_init__(self, local_broker_id: int) -> None:
        self.core = PartitionCore(local_broker_id, self.context)
        self.deferred = DeferredAppends(self.start_work, self._prepare_and_append, self._flush_log)

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition}, {self.core.role.name})"

    @property
    def is_leader(self) -> bool:
        return self.core.is_leader

    @property
    def is_offline(self) -> bool:
        """Whether the local log cannot be used; one that is being opened is not offline."""
        return not self.is_opening and (self.log is None or self.log.offline)

    @property
    def unusable_error(self) -> ErrorCode:
        """The error for clients while there is no log to use."""
        if self.is_opening:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.KAFKA_STORAGE_ERROR

    @property
    def is_under_min_isr(self) -> bool:
        return self.core.is_leader and self.core.is_under_min_isr(self.min_insync_replicas)

    @property
    def is_at_min_isr(self) -> bool:
        """Whether this broker leads and acks=all requires every replica that is in sync."""
        core = self.core
        # No more can be required than are assigned.
        required_count = min(self.min_insync_replicas, max(1, len(core.replicas)))
        return core.is_leader and len(core.isr) == required_count

    @property
    def is_reassigning(self) -> bool:
        """Whether this broker leads and replicas are being moved (KIP-455)."""
        core = self.core
        return core.is_leader and bool(core.adding_replicas or core.removing_replicas)

    def has_late_transaction(self, late_after_ms: int) -> bool:
        """Whether this broker leads and the producer whose open transaction holds back the last
        stable offset has been silent for longer than `late_after_ms` (KIP-664).
        """
        log = self.log
        if not self.core.is_leader or log is None or log.offline:
            return False
        idle_ms = log.producer_state.oldest_transaction_idle_ms(log.clock.now_ms())
        return idle_ms is not None and idle_ms > late_after_ms

    # -- leadership ------------------------------------------------------------------------------

    def apply_state(self, state: PartitionState) -> None:
        """Take over what the controller decided; waiting requests are answered."""
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
            self._count_isr_change(before)
        if log is not None and not log.offline:
            if begins_leading:
                log.leader_epoch_cache.assign(self.core.leader_epoch, log_end_offset)
            self._unclean_election.look(self.topic_partition, self.core, log)
            self.core.advance_high_watermark(self.min_insync_replicas)
            log.update_high_watermark(self.core.high_watermark)
            self._submit(self.core.propose())
        self.changed()

    def log_opened(self) -> None:
        """The log was opened late: apply the controller's decision again, now to a log."""
        state = self.core.state
        self.core.resign()
        self.apply_state(state)

    def resign(self) -> None:
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
        """Tell every waiting request that something about the partition is new."""
        for fetched in self.fetch_watchers:
            fetched.owner.partition_changed(fetched)
        if self.produce_waits:
            self._decide_commits()
        if self.low_watermark_waits:
            self._tell_low_watermark()

    # -- the in-sync set -------------------------------------------------------------------------

    def follower_fetched(self, fetch: FollowerFetch) -> ErrorCode:
        """Note how far a follower's log reaches, after its fetch found that log in line with this
        one. Call it once for a request, however often the request is looked at again. Returns why
        the fetch does not count, or NONE.
        """
        core = self.core
        error = core.check_follower(fetch.replica_id, fetch.broker_epoch, -1)
        log = self.log
        if error is ErrorCode.NONE and (log is None or log.offline):
            error = self.unusable_error
        if error is not ErrorCode.NONE or log is None:
            return error
        if core.follower_fetched(fetch, self.min_insync_replicas):
            self.high_watermark_moved(log)
        elif self.low_watermark_waits:
            self._tell_low_watermark()
        self._submit(core.propose_after_fetch(fetch.replica_id))
        return ErrorCode.NONE

    def check_isr(self) -> None:
        """Propose what is due: followers that lag leave the ISR, followers that could not join
        before join now.

        Call it every half of `replica.lag.time.max.ms`, and when metadata says that brokers have
        come or gone: the high watermark may have waited for a broker that is not eligible any more.
        """
        log = self.log
        if not self.core.is_leader or log is None or log.offline:
            return
        if self.core.advance_high_watermark(self.min_insync_replicas):
            self.high_watermark_moved(log)
        self._submit(self.core.propose(again=True))
        if self.low_watermark_waits:
            self._tell_low_watermark()

    def isr_change_answered(
        self, change: IsrChange, error: ErrorCode, state: PartitionState | None
    ) -> IsrChange | None:
        """Take over the controller's answer to a proposal: an error, or NONE and the state in which
        the partition is now. An error that does not answer this proposal, of a lost connection for
        instance, means that it has to be sent again.

        Returns what to send next: the same proposal again, or one that is due now.
        """
        core = self.core
        before = core.isr
        answer = core.isr_change_answered(change, error, state)
        if answer is IsrAnswer.RETRY:
            return change
        if answer is IsrAnswer.REFUSED:
            self.context.failed_isr_updates.count += 1
            logger.info(
                "%s: the controller refused ISR %s (%s); it stays %s",
                self.topic_partition,
                _joined(change.isr),
                error.name,
                _joined(core.in_sync.members),
            )
        log = self.log
        if answer is not IsrAnswer.COMMITTED:
            if log is None or log.offline or core.in_sync.refused.isdisjoint(change.isr):
                return None
            return self._next_change()
        logger.info(
            "%s: ISR %s from %s to %s in partition epoch %d",
            self.topic_partition,
            "shrank" if core.isr < before else "grew" if core.isr > before else "confirmed,",
            _joined(sorted(before)),
            _joined(core.in_sync.members),
            core.partition_epoch,
        )
        self._count_isr_change(before)
        if log is None or log.offline:
            return None
        core.advance_high_watermark(self.min_insync_replicas)
        self.high_watermark_moved(log)
        return self._next_change()

    def _count_isr_change(self, before: frozenset[int]) -> None:
        """The controller has committed a proposal: its answer or, earlier, the metadata said so."""
        self.context.isr_shrinks.count += not self.core.isr >= before
        self.context.isr_expands.count += not self.core.isr <= before

    def _submit(self, change: IsrChange | None) -> None:
        if change is not None:
            self.submit_isr_change(self, self._logged(change))

    def _next_change(self) -> IsrChange | None:
        change = self.core.propose()
        return None if change is None else self._logged(change)

    def _logged(self, change: IsrChange) -> IsrChange:
        logger.info(
            "%s: proposing ISR %s instead of %s (leader epoch %d, partition epoch %d, high "
            "watermark %d, log end offset %d): %s",
            self.topic_partition,
            _joined(change.isr),
            _joined(self.core.in_sync.members),
            change.leader_epoch,
            change.partition_epoch,
            self.core.high_watermark,
            -1 if self.log is None else self.log.log_end_offset,
            change.reason,
        )
        return change

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of the live replicas: what DeleteRecords waits for. -1
        while a live follower has not reported where its log begins, or without a usable log.
        """
        log = self.log
        if log is None or log.offline:
            return NO_OFFSET
        return self.core.low_watermark(log.log_start_offset)

    def replica_figures(self) -> list[ReplicaFigures]:
        log = self.log
        return self.core.replica_figures(NO_OFFSET if log is None else log.log_start_offset)

    def _tell_low_watermark(self) -> None:
        for tell in list(self.low_watermark_waits):
            if tell in self.low_watermark_waits:
                tell(self)

    # -- writing ---------------------------------------------------------------------------------

    def must_queue(self, batches: RecordBatches) -> bool:
        """Whether an append has to go through `deferred.enqueue`: the topic has its own codec
        and the batch another, or needs keys and the batch is compressed; or such a batch is still
        on its way.
        """
        log = self.log
        if log is None or not log.config.looks_at_records:
            return not self.deferred.is_line_empty
        return not self.deferred.is_line_empty or log.needs_preparation(batches)

    async def _prepare_and_append(
        self, batches: RecordBatches, required_acks: int, guard: VerificationGuard | None
    ) -> AppendResult:
        log = self.log
        if log is not None and not log.offline and log.needs_preparation(batches):
            try:
                batches = await log.filesystem.offload(prepare, batches, log.config)
            except AppendRejected as rejected:
                return log.rejected(rejected)
            if log.config.target_codec is not None:
                self.stats.message_conversions.count += 1
        return self.append(batches, required_acks, guard=guard)

    async def _flush_log(self) -> bool:
        return self.log is not None and await self.flush(self.log)

    def append(
        self,
        batches: RecordBatches,
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
        if origin is AppendOrigin.CLIENT and batches.headers[0][1].is_transactional:
            result = self._append_transactional(log, batches, guard)
        else:
            result = log.append_as_leader(
                batches,
                leader_epoch=core.leader_epoch,
                origin=origin,
                transaction_version=transaction_version,
            )
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

    def holds_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the log holds the beginning of a producer's transaction, not its end."""
        log = self.log
        return log is not None and log.producer_state.has_open_transaction(
            producer_id, producer_epoch
        )

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
    ) -> VerificationGuard | ErrorCode | None:
        """Begin the verification of a batch, before its coordinator is asked.
        `supports_epoch_bump`: the request is of a version that gives each transaction an epoch.

        Returns a guard; None when no question is needed, because the log holds the transaction's
        beginning already, and no earlier batch waits for an answer, so that none is overtaken; or
        the error for which this broker cannot append at all.
        """
        error = self._append_error
        if error is not ErrorCode.NONE:
            return error
        identity = (producer_id, producer_epoch)
        if self.holds_transaction(*identity) and identity not in self.guards.waiting:
            return None
        return self.guards.begin_waiting(
            *identity, base_sequence, supports_epoch_bump=supports_epoch_bump
        )

    def refusal_after_verification(self, guard: VerificationGuard) -> ErrorCode:
        """Why this broker cannot append what its coordinator has confirmed under the guard."""
        error = self._append_error
        if error is not ErrorCode.NONE:
            return error
        if self.holds_transaction(guard.producer_id, guard.producer_epoch):
            return ErrorCode.NONE
        return self.guards.refusal(guard)

    @property
    def _append_error(self) -> ErrorCode:
        """Why this broker cannot append anything."""
        if not self.core.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log is None or self.log.offline:
            return self.unusable_error
        return ErrorCode.NONE

    def _append_transactional(
        self, log: Log, batches: RecordBatches, guard: VerificationGuard | None
    ) -> AppendResult:
        """Append a transactional batch if its coordinator knows of the transaction; if not, the
        error is INVALID_TXN_STATE, or NOT_LEADER_OR_FOLLOWER where it has to be asked again.
        """
        header = batches.headers[0][1]
        identity = (header.producer_id, header.producer_epoch)
        if guard is NOT_REQUIRED:
            guard = None
        else:
            refusal = ErrorCode.INVALID_TXN_STATE
            if guard is not None and identity == (guard.producer_id, guard.producer_epoch):
                refusal = self.guards.refusal(guard)
            if refusal is not ErrorCode.NONE:
                guard = None
                if not log.producer_state.has_open_transaction(*identity):
                    return AppendResult(
                        refusal,
                        "the batch is not part of an ongoing transaction, as far as is known here",
                        log_start_offset=log.log_start_offset,
                    )
        result = log.append_as_leader(
            batches, leader_epoch=self.core.leader_epoch, verification=guard
        )
        if result.error is ErrorCode.NONE and not result.is_duplicate:
            self.guards.drop_up_to(*identity)
        return result

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        transaction_version: int = 0,
    ) -> AppendResult:
        """End a producer's transaction in this partition, as the leader, as with acks=all.

        A marker that comes again is appended again, as Apache Kafka does: it ends nothing then.
        The caller waits for the high watermark. Errors: NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS, INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED.

        Args:
            coordinator_epoch: the leader epoch of the coordinator's partition; an administrator who
                aborts a hanging transaction names the one that the partition has seen (KIP-664).
            transaction_version: of the transaction; from 2 on `producer_epoch` is the one after it.
        """
        log = self.log
        batch = encode_end_txn_batch(
            EndTxnMarker(
                ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT,
                coordinator_epoch,
            ),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=0 if log is None else log.clock.now_ms(),
        )
        result = self.append(
            RecordBatches.read(batch),
            ACKS_ALL,
            AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )
        if result.error is ErrorCode.NONE:
            ended_epoch = producer_epoch
            if (
                transaction_version >= FIRST_VERSION_WITH_EPOCH_BUMP
                and producer_epoch < MAX_PRODUCER_EPOCH
            ):
                ended_epoch -= 1  # what is verified for this epoch is the next transaction already
            self.guards.drop_up_to(producer_id, ended_epoch)
        return result

    def wait_for_commit(self, wait: ProduceWait) -> ErrorCode | None:
        error = self.core.is_committed(wait.required_offset, self.min_insync_replicas)
        if error is None:
            self.produce_waits[wait] = None
        return error

    def high_watermark_moved(self, log: Log) -> None:
        log.update_high_watermark(self.core.high_watermark)
        for fetched in self.fetch_watchers:
            fetched.owner.high_watermark_moved(fetched)
        if self.produce_waits:
            self._decide_commits()
        if self.low_watermark_waits:
            self._tell_low_watermark()

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
        without_records: bool = False,
    ) -> FetchRead:
        """Read for a fetch, from the batch that holds its fetch offset.

        Args:
            max_bytes: the partition's share of the response.
            min_one_batch: return the first batch even if it is larger than that.
            read_committed: stop at the last stable offset, and name aborted transactions.
            leader_only: a follower answers NOT_LEADER_OR_FOLLOWER (before KIP-392).
            for_replica: read past the high watermark, to the end of the log.
            without_records: report how the log stands, but leave the records out.
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
        # A client past this log's end whose log parts from it has to cut its log, not to begin
        # again elsewhere. A client below this log's start has to begin elsewhere, wherever the logs
        # part: no cut would help it.
        is_diverging = fetched.last_fetched_epoch >= 0 and _diverges(fetched, log, read)
        if read.error is not ErrorCode.NONE:
            return read
        if fetch_offset < log.log_start_offset:
            return FetchRead(ErrorCode.OFFSET_OUT_OF_RANGE)
        if not is_diverging and fetch_offset > log.log_end_offset:
            return FetchRead(ErrorCode.OFFSET_OUT_OF_RANGE)
        read.high_watermark = core.high_watermark
        read.log_start_offset = log.log_start_offset
        read.last_stable_offset = log.last_stable_offset
        if is_diverging:
            return read
        if for_replica:
            upper = log.log_end_offset
        elif read_committed:
            upper = read.last_stable_offset
        else:
            upper = read.high_watermark
        if read_committed:
            read.aborted_transactions = []
        if fetch_offset < upper and without_records:
            read.is_starved = True
        elif fetch_offset < upper:
            self._read_log(log, read, fetch_offset, upper, max_bytes, min_one_batch)
        return read

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
            fetch_offset, max_bytes=max_bytes, max_offset=upper, min_one_message=min_one_batch
        )
        if result.verification is not None:
            read.pending = True
            if not self.is_verifying:
                self.is_verifying = True
                self.start_work(self._verify(log, result))
            return
        if result.error is not ErrorCode.NONE:
            read.error = result.error
            return
        read.records, read.size_bytes = result.records, len(result.records)
        read.is_starved = not read.size_bytes
        if read.aborted_transactions is None or not read.size_bytes:
            return
        try:
            wanted = fetch_offset, result.next_offset
            if log.segments.first_unproved(*wanted) is None:
                read.aborted_transactions = [
                    (aborted.producer_id, aborted.first_offset)
                    for aborted in log.aborted_transactions(*wanted)
                ]
                return
            read.pending = True
            if not self.is_proving:
                self.is_proving = True
                self.start_work(self._prove(log, *wanted))
        except LogOffline as offline:
            read.error = offline.error
        if not isinstance(result.records, bytes):
            result.records.release()
        read.records, read.size_bytes = EMPTY_RECORDS, 0

    async def _prove(self, log: Log, start_offset: int, upper_bound_offset: int) -> None:
        """Read transaction indexes from the log's markers, then let the fetches look again."""
        is_proved = await prove(log, start_offset, upper_bound_offset)
        self.is_proving = False
        if is_proved or log.offline:
            self.changed()

    async def _verify(self, log: Log, result: ReadResult) -> None:
        """Check bytes that this process has not read before, then let the fetches look again."""
        assert result.verification is not None
        await log.filesystem.offload(result.verification.run)
        self.is_verifying = False
        verified = log.finish_verification(result).records
        if not isinstance(verified, bytes):
            verified.release()
        self.changed()


def _diverges(fetched: FetchPartition, log: Log, read: FetchRead) -> bool:
    """Compare the epoch of the client's last record with this log's history (KIP-595)."""
    leader_epoch, end_offset = log.end_offset_for_epoch(fetched.last_fetched_epoch)
    if leader_epoch < 0 or end_offset < 0:
        read.error = ErrorCode.OFFSET_OUT_OF_RANGE
        return True
    if leader_epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
        read.diverging_epoch = leader_epoch
        read.diverging_end_offset = end_offset
        return True
    return False


def _joined(replica_ids: Iterable[int]) -> str:
    return ",".join(map(str, replica_ids))
