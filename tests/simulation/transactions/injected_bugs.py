"""Bugs put into coordinators and transactions one at a time, to prove that they are found.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

from typing import Any

from moldau.broker.api import p02_list_offsets as list_offsets
from moldau.broker.coordinator.coordinators import ReplicaPartition
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.member_updates import MemberUpdates, Reconciliation
from moldau.broker.coordinator.group.core.offset_store import OffsetStore
from moldau.broker.coordinator.runtime import LogLoader
from moldau.broker.coordinator.transaction import marker_sender
from moldau.broker.coordinator.transaction.core import rules, state, transaction
from moldau.broker.coordinator.transaction.core.transaction import Transaction
from moldau.broker.coordinator.transaction.verification import TransactionalProduce
from moldau.broker.replica.verification_guards import NOT_REQUIRED
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import iter_batches
from moldau.storage.cleaner import log_cleaner
from moldau.storage.cleaner.batch_filter import TransactionWalk
from moldau.storage.cleaner.offset_map import OffsetMap
from moldau.storage.log import Log
from moldau.storage.log_recovery import LogRecovery
from moldau.storage.producer_entry import ProducerUpdate
from moldau.storage.producer_state import ProducerState
from tests.kit.injected_bugs import InjectedBug, Patch, table
from tests.simulation.transactions.injected_client_bugs import CLIENT_BUGS
from tests.simulation.transactions.injected_group_bugs import GROUP_BUGS
from tests.simulation.transactions.injected_member_bugs import MEMBER_BUGS
from tests.simulation.transactions.injected_upheaval_bugs import UPHEAVAL_BUGS

# -- partitions ------------------------------------------------------------------------------------


def marker_epoch_not_checked(patch: Patch) -> None:
    """A marker ends whatever its producer has open, however late it comes."""
    original = ProducerUpdate.check_marker

    def check(self: Any, header: Any, coordinator_epoch: int, transaction_version: int) -> None:
        known, self.producer_epoch = self.producer_epoch, -1
        original(self, header, coordinator_epoch, transaction_version)
        self.producer_epoch = known

    patch.setattr(ProducerUpdate, "check_marker", check)


def coordinator_epoch_ignored(patch: Patch) -> None:
    """A coordinator that is none any more may write markers."""
    original = ProducerUpdate.check_marker

    def check(self: Any, header: Any, coordinator_epoch: int, transaction_version: int) -> None:
        original(self, header, max(coordinator_epoch, self.coordinator_epoch), transaction_version)

    patch.setattr(ProducerUpdate, "check_marker", check)


def verification_skipped(patch: Patch) -> None:
    """Partitions append transactional batches without asking the coordinator."""

    def append(self: Any, partition: Any, batches: Any, slot: Any) -> None:
        self._operation.append(partition, batches, slot, NOT_REQUIRED)

    patch.setattr(TransactionalProduce, "append", append)


def producer_epoch_not_checked(patch: Patch) -> None:
    """A partition takes batches of epochs that are over."""
    patch.setattr(ProducerUpdate, "_check_epoch", lambda self, header: None)


def fenced_producer_writes(patch: Patch) -> None:
    """Neither partitions nor coordinators compare epochs of what is written."""
    original = rules.write_refusal

    def refusal(known: Any, producer: Any) -> ErrorCode:
        if known is not None and producer.producer_id == known.client_producer.producer_id:
            producer = known.client_producer
        return original(known, producer)

    patch.setattr(ProducerUpdate, "_check_epoch", lambda self, header: None)
    patch.setattr(rules, "write_refusal", refusal)


def aborted_index_dropped(patch: Patch) -> None:
    """Readers of committed records do not get the list of aborted transactions."""
    patch.setattr(Log, "aborted_transactions", lambda self, start, upper: [])


def files_beside_the_log_believed(patch: Patch) -> None:
    """A transaction index is taken as it lies there, also when no seal speaks for it."""
    patch.setattr(LogRecovery, "_distrust", lambda self, segment, end_offset: None)


def aborted_in_order_of_end(patch: Patch) -> None:
    """Aborted transactions are listed in the order of their markers."""
    original = Log.aborted_transactions

    def aborted(self: Any, start: int, upper: int) -> Any:
        return sorted(original(self, start, upper), key=lambda each: each.last_offset)

    patch.setattr(Log, "aborted_transactions", aborted)


def stable_offset_is_high_watermark(patch: Patch) -> None:
    """Readers of committed records are shown open transactions."""
    patch.setattr(ProducerState, "first_unstable_offset", property(lambda self: None))


def offsets_wait_for_transactions(patch: Patch) -> None:
    """A new leader names no latest committed offset while an earlier transaction is open."""
    original = list_offsets._search

    async def search(filesystem: Any, led: Any, request: Any, timestamp: int) -> Any:
        partition, log = led
        is_committed = request.isolation_level == list_offsets.READ_COMMITTED
        is_open = partition.core.leader_epoch_start_offset > log.last_stable_offset
        if timestamp == list_offsets.LATEST and is_committed and is_open:
            return list_offsets.Found(ErrorCode.OFFSET_NOT_AVAILABLE)
        return await original(filesystem, led, request, timestamp)

    patch.setattr(list_offsets, "_search", search)


def offsets_named_too_early(patch: Patch) -> None:
    """A new leader names a latest offset although it may know less than the one before it."""
    original = list_offsets._search

    async def search(filesystem: Any, led: Any, request: Any, timestamp: int) -> Any:
        found = await original(filesystem, led, request, timestamp)
        if timestamp != list_offsets.LATEST or found.error is not ErrorCode.OFFSET_NOT_AVAILABLE:
            return found
        partition, log = led
        offset = partition.core.high_watermark
        if request.isolation_level == list_offsets.READ_COMMITTED:
            offset = log.last_stable_offset
        return list_offsets.Found(ErrorCode.NONE, -1, offset, partition.core.leader_epoch)

    patch.setattr(list_offsets, "_search", search)


# -- the runtime of coordinators -------------------------------------------------------------------


def _commits_at_once(patch: Patch, topic: str) -> None:
    original = ReplicaPartition.high_watermark.fget  # type: ignore[attr-defined]

    def high_watermark(self: Any) -> int:
        if self._partition.topic_partition.topic == topic:
            return int(self.log_end_offset)
        return int(original(self))

    patch.setattr(ReplicaPartition, "high_watermark", property(high_watermark))


def former_coordinator_refuses(patch: Patch) -> None:
    """A coordinator of transactions refuses for good without a proof that it still leads."""
    patch.setattr(state, "_is_final", lambda *errors: False)


def group_answers_before_commit(patch: Patch) -> None:
    """Group coordinators answer as soon as they have written."""
    _commits_at_once(patch, CONSUMER_OFFSETS.topic)


def markers_before_commit(patch: Patch) -> None:
    """Transaction coordinators go on as soon as they have written."""
    _commits_at_once(patch, TRANSACTION_STATE.topic)


def loading_skips_tail(patch: Patch) -> None:
    """The last batch of every piece of the log is not replayed."""
    original = LogLoader.feed

    def feed(self: Any, records: Any) -> Any:
        positions = [position for position, _header in iter_batches(records)]
        return original(self, records[: positions[-1]] if positions else records)

    patch.setattr(LogLoader, "feed", feed)


# -- compaction ------------------------------------------------------------------------------------


def compaction_passes_stable_offset(patch: Patch) -> None:
    """The cleaner works on what open transactions may still decide."""
    patch.setattr(
        log_cleaner, "_first_uncleanable_index", lambda log, *_: max(len(log.segments) - 1, 0)
    )


def aborted_records_supersede(patch: Patch) -> None:
    """The cleaner takes what a transaction has aborted for the newest of its key."""
    patch.setattr(TransactionWalk, "is_aborted", lambda self, header: False)


def compaction_drops_the_newest(patch: Patch) -> None:
    """The cleaner keeps the older record of a key that has one."""
    original = OffsetMap.put

    def put(self: Any, columns: Any, first_offset: int) -> int:
        return original(self, columns, first_offset) if not self.count else columns.row_count

    patch.setattr(OffsetMap, "put", put)


def producers_of_cut_batches_kept(patch: Patch) -> None:
    """A log that is cut goes on with the producers that it had."""
    original = ProducerState.load

    def load(self: Any, *arguments: Any) -> None:
        if not self.producers:
            original(self, *arguments)

    patch.setattr(ProducerState, "load", load)


def stale_snapshots_kept(patch: Patch) -> None:
    """A producer snapshot beyond the log's end is passed over, and stays for the next cut."""
    original = ProducerState.load_newest

    def load_newest(self: Any, first_offset: int, log_end_offset: int, now_ms: int) -> None:
        beyond = [each for each in self.snapshot_offsets if each > log_end_offset]
        self.snapshot_offsets = [each for each in self.snapshot_offsets if each not in beyond]
        original(self, first_offset, log_end_offset, now_ms)
        self.snapshot_offsets += beyond

    patch.setattr(ProducerState, "load_newest", load_newest)


# -- transaction coordinators ----------------------------------------------------------------------


def epoch_not_bumped(patch: Patch) -> None:
    """All transactions of an instance have one epoch."""
    patch.setattr(transaction, "EPOCH_BUMP_VERSION", 99)


def late_end_ends_the_next(patch: Patch) -> None:
    """EndTxn is taken whatever its epoch."""
    patch.setattr(rules, "_fence", lambda *_: ErrorCode.NONE)
    patch.setattr(Transaction, "ended_by", property(lambda self: None))


def instances_share_an_epoch(patch: Patch) -> None:
    """A producer that comes again gets the pair that the one before it had."""
    patch.setattr(rules, "_following", lambda current, spare: current)


def markers_lost(patch: Patch) -> None:
    """A marker counts as written whatever its leader says."""
    patch.setattr(marker_sender, "DONE_ERRORS", frozenset(ErrorCode))


# -- group coordinators ----------------------------------------------------------------------------


def offsets_visible_before_marker(patch: Patch) -> None:
    """Offsets of a transaction count as soon as they are written."""
    original = OffsetStore.put

    def put(self: Any, key: Any, stored: Any, producer_id: Any) -> None:
        original(self, key, stored, None)

    patch.setattr(OffsetStore, "put", put)


def pending_offsets_taken_for_stable(patch: Patch) -> None:
    """The coordinator does not wait for the offsets of a transaction that is about to end."""
    patch.setattr(OffsetStore, "is_pending", lambda *_: False)


def generation_not_checked(patch: Patch) -> None:
    """Members of former generations may commit offsets."""
    patch.setattr(ClassicGroup, "validate_offset_commit", lambda *_, **__: ErrorCode.NONE)


def unreleased_partitions_given(patch: Patch) -> None:
    """A member of a consumer group gets what another one has not given back yet."""
    original = Reconciliation.next_step

    def next_step(self: Any, member: Any) -> Any:
        return original(self._replace(is_released=lambda *_: True), member)

    patch.setattr(Reconciliation, "next_step", next_step)


def revocation_not_awaited(patch: Patch) -> None:
    """What a member was asked to give back counts as given back."""
    patch.setattr(Reconciliation, "_still_has", lambda *_: False)
    _commits_for_any_partition(patch)


def member_epoch_not_checked(patch: Patch) -> None:
    """Members of consumer groups that were put out may commit offsets."""
    patch.setattr(ConsumerGroup, "validate_offset_commit", lambda *_, **__: ErrorCode.NONE)
    _commits_for_any_partition(patch)


def assignments_stop_with_the_clock(patch: Patch) -> None:
    """A target assignment of the future counts as just computed."""
    original = MemberUpdates.refresh_target

    def refresh_target(self: Any, update: Any) -> Any:
        if update.now_ms < update.group.assignment_timestamp_ms:
            return update.group.assignment_epoch, update.group.target_of(update.new)
        return original(self, update)

    patch.setattr(MemberUpdates, "refresh_target", refresh_target)


def _commits_for_any_partition(patch: Patch) -> None:
    """Behind whatever gives a partition to two members there is another wall; it is taken away."""
    patch.setattr(ConsumerGroup, "partition_commit_error", lambda *_, **__: ErrorCode.NONE)


BUGS = table(
    InjectedBug(marker_epoch_not_checked, 5, ("late_requests",)),
    InjectedBug(coordinator_epoch_ignored),
    InjectedBug(verification_skipped, 4),
    InjectedBug(producer_epoch_not_checked),
    InjectedBug(fenced_producer_writes, 4),
    InjectedBug(aborted_index_dropped, 1),
    InjectedBug(files_beside_the_log_believed, 16, ("coordinator_leaves",)),
    InjectedBug(aborted_in_order_of_end, 3),
    InjectedBug(stable_offset_is_high_watermark, 1),
    InjectedBug(offsets_wait_for_transactions, 2, ("kill_coordinator", "stop_broker")),
    InjectedBug(offsets_named_too_early, 12, ("unheard_leader_dies",)),
    InjectedBug(former_coordinator_refuses),
    InjectedBug(group_answers_before_commit, 1, ("kill_coordinator", "cut_replication")),
    InjectedBug(markers_before_commit, 1, ("kill_coordinator", "cut_replication")),
    InjectedBug(loading_skips_tail, 1, ("kill_coordinator", "coordinator_leaves")),
    InjectedBug(compaction_passes_stable_offset),
    InjectedBug(aborted_records_supersede, 35, ("kill_coordinator", "coordinator_leaves")),
    InjectedBug(compaction_drops_the_newest),
    InjectedBug(producers_of_cut_batches_kept),
    InjectedBug(stale_snapshots_kept),
    InjectedBug(epoch_not_bumped, 4),
    InjectedBug(late_end_ends_the_next),
    InjectedBug(instances_share_an_epoch, 1),
    InjectedBug(markers_lost),
    InjectedBug(offsets_visible_before_marker, 6),
    InjectedBug(pending_offsets_taken_for_stable),
    InjectedBug(generation_not_checked, 3, ("late_requests",)),
    InjectedBug(unreleased_partitions_given, 1),
    InjectedBug(revocation_not_awaited, 66),
    InjectedBug(member_epoch_not_checked, 30, ("late_requests",)),
    InjectedBug(assignments_stop_with_the_clock, 42, ("lose_an_hour",)),
    *CLIENT_BUGS,
    *MEMBER_BUGS,
    *GROUP_BUGS,
    *UPHEAVAL_BUGS,
)
