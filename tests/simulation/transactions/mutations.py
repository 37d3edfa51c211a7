"""Bugs put into coordinators and transactions one at a time, to prove that they are found.

Owns: how each is put in and taken out again. Must not: be active unless asked for.
Invariant: what a mutation returns undoes it completely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moldau.broker.api import p02_list_offsets as list_offsets
from moldau.broker.coordinator.coordinators import ReplicaPartition
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.member_updates import MemberUpdates, Reconciliation
from moldau.broker.coordinator.group.core.offset_store import OffsetStore
from moldau.broker.coordinator.loader import LogLoader
from moldau.broker.coordinator.transaction import marker_sender
from moldau.broker.coordinator.transaction.core import rules, transaction
from moldau.broker.coordinator.transaction.core.transaction import Transaction
from moldau.broker.coordinator.transaction.verification import TransactionalProduce
from moldau.broker.replica.transactions import NOT_REQUIRED
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import iter_batches
from moldau.storage.cleaner import log_cleaner
from moldau.storage.cleaner.batch_filter import TransactionWalk
from moldau.storage.cleaner.offset_map import OffsetMap
from moldau.storage.log import Log
from moldau.storage.producer_entry import ProducerUpdate
from moldau.storage.producer_state import ProducerState
from tests.simulation.replication.mutations import Undo, _both, _replaced
from tests.simulation.transactions import group_mutations, upheaval_mutations

# -- partitions ------------------------------------------------------------------------------------


def marker_epoch_not_checked() -> Undo:
    """A marker ends whatever its producer has open, however late it comes."""
    original = ProducerUpdate.check_marker

    def check(self: Any, header: Any, coordinator_epoch: int, transaction_version: int) -> None:
        known, self.producer_epoch = self.producer_epoch, -1
        original(self, header, coordinator_epoch, transaction_version)
        self.producer_epoch = known

    return _replaced(ProducerUpdate, "check_marker", check)


def coordinator_epoch_ignored() -> Undo:
    """A coordinator that is none any more may write markers."""
    original = ProducerUpdate.check_marker

    def check(self: Any, header: Any, coordinator_epoch: int, transaction_version: int) -> None:
        original(self, header, max(coordinator_epoch, self.coordinator_epoch), transaction_version)

    return _replaced(ProducerUpdate, "check_marker", check)


def verification_skipped() -> Undo:
    """Partitions append transactional batches without asking the coordinator."""

    def append(self: Any, partition: Any, records: Any, producer: Any, slot: Any) -> None:
        self._operation.append(partition, records, slot, NOT_REQUIRED)

    return _replaced(TransactionalProduce, "append", append)


def producer_epoch_not_checked() -> Undo:
    """A partition takes batches of epochs that are over."""
    return _replaced(ProducerUpdate, "_check_epoch", lambda self, header: None)


def fenced_producer_writes() -> Undo:
    """Neither partitions nor coordinators compare epochs of what is written."""
    original = rules.write_refusal

    def refusal(known: Any, producer: Any) -> ErrorCode:
        if known is not None and producer.producer_id == known.client_producer.producer_id:
            producer = known.client_producer
        return original(known, producer)

    undo = _replaced(ProducerUpdate, "_check_epoch", lambda self, header: None)
    return _both(undo, _replaced(rules, "write_refusal", refusal))


def aborted_index_dropped() -> Undo:
    """Readers of committed records are not told what was aborted."""
    return _replaced(Log, "aborted_transactions", lambda self, start, upper: [])


def aborted_in_order_of_end() -> Undo:
    """Aborted transactions are told in the order of their markers."""
    original = Log.aborted_transactions

    def aborted(self: Any, start: int, upper: int) -> Any:
        return sorted(original(self, start, upper), key=lambda each: each.last_offset)

    return _replaced(Log, "aborted_transactions", aborted)


def stable_offset_is_high_watermark() -> Undo:
    """Readers of committed records are shown open transactions."""
    return _replaced(ProducerState, "first_unstable_offset", property(lambda self: None))


def offsets_wait_for_transactions() -> Undo:
    """A new leader names no latest committed offset while an earlier transaction is open."""
    original = list_offsets._search

    async def search(filesystem: Any, led: Any, request: Any, timestamp: int) -> Any:
        partition, log = led
        is_committed = request.isolation_level == list_offsets.READ_COMMITTED
        is_open = partition.core.leader_epoch_start_offset > log.last_stable_offset
        if timestamp == list_offsets.LATEST and is_committed and is_open:
            return list_offsets.Found(ErrorCode.OFFSET_NOT_AVAILABLE)
        return await original(filesystem, led, request, timestamp)

    return _replaced(list_offsets, "_search", search)


def offsets_named_too_early() -> Undo:
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

    return _replaced(list_offsets, "_search", search)


# -- the runtime of coordinators -------------------------------------------------------------------


def _commits_at_once(topic: str) -> Undo:
    original = ReplicaPartition.high_watermark.fget  # type: ignore[attr-defined]

    def high_watermark(self: Any) -> int:
        if self._partition.topic_partition.topic == topic:
            return int(self.log_end_offset)
        return int(original(self))

    return _replaced(ReplicaPartition, "high_watermark", property(high_watermark))


def group_answers_before_commit() -> Undo:
    """Group coordinators answer as soon as they have written."""
    return _commits_at_once(CONSUMER_OFFSETS.topic)


def markers_before_commit() -> Undo:
    """Transaction coordinators go on as soon as they have written."""
    return _commits_at_once(TRANSACTION_STATE.topic)


def loading_skips_tail() -> Undo:
    """Of every piece of the log the last batch is not replayed."""
    original = LogLoader.feed

    def feed(self: Any, records: Any) -> Any:
        positions = [position for position, _header in iter_batches(records)]
        return original(self, records[: positions[-1]] if positions else records)

    return _replaced(LogLoader, "feed", feed)


# -- compaction ------------------------------------------------------------------------------------


def compaction_passes_stable_offset() -> Undo:
    """The cleaner works on what open transactions may still decide."""
    return _replaced(
        log_cleaner, "_first_uncleanable_index", lambda log, *_: max(len(log.segments) - 1, 0)
    )


def aborted_records_supersede() -> Undo:
    """The cleaner takes what a transaction has aborted for the newest of its key."""
    return _replaced(TransactionWalk, "is_aborted", lambda self, header: False)


def compaction_drops_the_newest() -> Undo:
    """Of a key with an older record the cleaner keeps that one."""
    original = OffsetMap.put

    def put(self: Any, columns: Any, first_offset: int) -> int:
        return original(self, columns, first_offset) if not self.count else columns.row_count

    return _replaced(OffsetMap, "put", put)


def producers_of_cut_batches_kept() -> Undo:
    """A log that is cut goes on with the producers that it had."""
    original = ProducerState.load

    def load(self: Any, *arguments: Any) -> None:
        if not self.producers:
            original(self, *arguments)

    return _replaced(ProducerState, "load", load)


def stale_snapshots_kept() -> Undo:
    """A producer snapshot beyond the log's end is passed over, and stays for the next cut."""
    original = ProducerState.load_newest

    def load_newest(self: Any, first_offset: int, log_end_offset: int, now_ms: int) -> None:
        beyond = [each for each in self.snapshot_offsets if each > log_end_offset]
        self.snapshot_offsets = [each for each in self.snapshot_offsets if each not in beyond]
        original(self, first_offset, log_end_offset, now_ms)
        self.snapshot_offsets += beyond

    return _replaced(ProducerState, "load_newest", load_newest)


# -- transaction coordinators ----------------------------------------------------------------------


def epoch_not_bumped() -> Undo:
    """All transactions of an instance have one epoch."""
    return _replaced(transaction, "EPOCH_BUMP_VERSION", 99)


def late_end_ends_the_next() -> Undo:
    """EndTxn is taken whatever its epoch."""
    undo = _replaced(rules, "_fence", lambda *_: ErrorCode.NONE)
    return _both(undo, _replaced(Transaction, "ended_by", property(lambda self: None)))


def instances_share_an_epoch() -> Undo:
    """Who comes anew gets the pair that the one before it had."""
    return _replaced(rules, "_following", lambda current, spare: current)


def markers_lost() -> Undo:
    """A marker counts as written whatever its leader says."""
    return _replaced(marker_sender, "DONE_ERRORS", frozenset(ErrorCode))


# -- group coordinators ----------------------------------------------------------------------------


def offsets_visible_before_marker() -> Undo:
    """Offsets of a transaction count as soon as they are written."""
    original = OffsetStore.put

    def put(self: Any, key: Any, stored: Any, producer_id: Any) -> None:
        original(self, key, stored, None)

    return _replaced(OffsetStore, "put", put)


def pending_offsets_taken_for_stable() -> Undo:
    """Nobody waits for the offsets of a transaction that is about to end."""
    return _replaced(OffsetStore, "is_pending", lambda *_: False)


def generation_not_checked() -> Undo:
    """Members of former generations may commit offsets."""
    return _replaced(ClassicGroup, "validate_offset_commit", lambda *_, **__: ErrorCode.NONE)


def unreleased_partitions_given() -> Undo:
    """A member of a consumer group gets what another one has not given back yet."""
    original = Reconciliation.next_step

    def next_step(self: Any, member: Any) -> Any:
        return original(replace(self, is_released=lambda *_: True), member)

    return _replaced(Reconciliation, "next_step", next_step)


def revocation_not_awaited() -> Undo:
    """What a member was asked to give back counts as given back."""
    undo = _replaced(Reconciliation, "_still_has", lambda *_: False)
    return _both(undo, _commits_for_any_partition())


def member_epoch_not_checked() -> Undo:
    """Members of consumer groups that were put out may commit offsets."""
    undo = _replaced(ConsumerGroup, "validate_offset_commit", lambda *_, **__: ErrorCode.NONE)
    return _both(undo, _commits_for_any_partition())


def assignments_stop_with_the_clock() -> Undo:
    """A target assignment of the future counts as just computed."""
    original = MemberUpdates.refresh_target

    def refresh_target(self: Any, update: Any) -> Any:
        if update.now_ms < update.group.assignment_timestamp_ms:
            return update.group.assignment_epoch, update.group.target_of(update.new)
        return original(self, update)

    return _replaced(MemberUpdates, "refresh_target", refresh_target)


def _commits_for_any_partition() -> Undo:
    """Behind whatever gives a partition to two members there is another wall; it is taken away."""
    return _replaced(ConsumerGroup, "partition_commit_error", lambda *_, **__: ErrorCode.NONE)


MUTATIONS: dict[str, Callable[[], Undo]] = (
    {
        mutation.__name__.replace("_", "-"): mutation
        for mutation in (
            marker_epoch_not_checked,
            coordinator_epoch_ignored,
            verification_skipped,
            producer_epoch_not_checked,
            fenced_producer_writes,
            aborted_index_dropped,
            aborted_in_order_of_end,
            stable_offset_is_high_watermark,
            offsets_wait_for_transactions,
            offsets_named_too_early,
            group_answers_before_commit,
            markers_before_commit,
            loading_skips_tail,
            compaction_passes_stable_offset,
            aborted_records_supersede,
            compaction_drops_the_newest,
            producers_of_cut_batches_kept,
            stale_snapshots_kept,
            epoch_not_bumped,
            late_end_ends_the_next,
            instances_share_an_epoch,
            markers_lost,
            offsets_visible_before_marker,
            pending_offsets_taken_for_stable,
            generation_not_checked,
            unreleased_partitions_given,
            revocation_not_awaited,
            member_epoch_not_checked,
            assignments_stop_with_the_clock,
        )
    }
    | group_mutations.MUTATIONS
    | upheaval_mutations.MUTATIONS
)
