"""Transactions as one partition sees them: who may begin one, and how one ends.

Owns the verification guards of the producers (KIP-890) and the append of a transaction's marker.
Must not ask a coordinator (`transaction.verification` does). Invariant: where verification is
asked for, a client's batch begins a transaction in the log only under a guard that was made before
the coordinator was asked; since then this broker has led without a break, and no marker of the
producer has come. Without that the following would leave a transaction open for ever:

1. a batch arrives, the coordinator is asked, and says that the partition is in the transaction;
2. before the answer is here the transaction times out, and its abort marker is written;
3. the answer arrives and the batch is appended: no marker will ever come for it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    ControlRecordType,
    EndTxnMarker,
    encode_end_txn_batch,
)
from moldau.storage.append import AppendOrigin, AppendResult
from moldau.storage.producer_entry import FIRST_VERSION_WITH_EPOCH_BUMP, MAX_PRODUCER_EPOCH

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition
    from moldau.storage.log import Log

MAX_GUARDS: Final = 10_000
"""Producers of one partition whose verification is under way or has failed; one more makes the
oldest of them begin anew."""

NO_SEQUENCE: Final = -1
ACKS_ALL: Final = -1

_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
_TRANSACTIONAL_BIT: Final = 0x10
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_AT: Final = 43

Records = bytearray | memoryview


class BatchProducer:
    """Who sent a transactional batch, as its header says."""

    __slots__ = ("base_sequence", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence


def transactional_producer(records: Records) -> BatchProducer | None:
    """The producer of a transactional batch of magic 2; None for anything else."""
    if (
        len(records) < BATCH_HEADER_SIZE
        or not records[_ATTRIBUTES_AT] & _TRANSACTIONAL_BIT
        or records[_MAGIC_AT] != 2
    ):
        return None
    return BatchProducer(*_PRODUCER.unpack_from(records, _PRODUCER_AT))


class VerificationGuard:
    """One producer's first batches of a transaction in one partition, while the coordinator is
    asked about them. Requests that wait at the same time share it.

    States: current → void (a marker came, the transaction began, or somebody else may have led).
    """

    __slots__ = (
        "is_current",
        "lowest_sequence",
        "producer_epoch",
        "producer_id",
        "supports_epoch_bump",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = base_sequence
        self.supports_epoch_bump = supports_epoch_bump
        self.is_current = True


NOT_REQUIRED: Final = VerificationGuard(-1, -1, -1, supports_epoch_bump=False)
"""In place of a guard where `transaction.partition.verification.enable` is off."""


class VerificationGuards:
    """The guards of one partition, by producer id and epoch, and how many requests wait."""

    __slots__ = ("_count", "_guards", "_waiting")

    def __init__(self) -> None:
        self._guards: dict[int, dict[int, VerificationGuard]] = {}
        self._count = 0
        self._waiting: dict[tuple[int, int], int] = {}
        """Requests that wait for an answer, under whatever guards."""

    def __len__(self) -> int:
        return self._count

    def has_waiting(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether requests of a producer wait for an answer."""
        return (producer_id, producer_epoch) in self._waiting

    def begin_waiting(
        self, producer: BatchProducer, *, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """A request waits from now on, under the current guard of its producer (made if there is
        none), until `end_waiting`.
        """
        guard = self._obtain(producer, supports_epoch_bump=supports_epoch_bump)
        key = (guard.producer_id, guard.producer_epoch)
        self._waiting[key] = self._waiting.get(key, 0) + 1
        return guard

    def end_waiting(self, guard: VerificationGuard, *, is_refused: bool) -> None:
        """A request has its answer. If the coordinator will not have the transaction, nothing of it
        counts, not even its sequence, unless others wait still.
        """
        key = (guard.producer_id, guard.producer_epoch)
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]
            if is_refused and guard.is_current:
                self._drop(guard)

    def _obtain(self, producer: BatchProducer, *, supports_epoch_bump: bool) -> VerificationGuard:
        guards = self._guards.get(producer.producer_id)
        guard = None if guards is None else guards.get(producer.producer_epoch)
        if guard is not None:
            guard.lowest_sequence = min(guard.lowest_sequence, producer.base_sequence)
            return guard
        if self._count >= MAX_GUARDS:
            self._drop(next(iter(next(iter(self._guards.values())).values())))
        guard = VerificationGuard(
            producer.producer_id,
            producer.producer_epoch,
            producer.base_sequence,
            supports_epoch_bump=supports_epoch_bump,
        )
        self._guards.setdefault(producer.producer_id, {})[producer.producer_epoch] = guard
        self._count += 1
        return guard

    def drop_up_to(self, producer_id: int, producer_epoch: int) -> None:
        """Guards of a producer's epochs up to `producer_epoch` are void."""
        guards = self._guards.get(producer_id)
        if guards is not None:
            for guard in [each for epoch, each in guards.items() if epoch <= producer_epoch]:
                self._drop(guard)

    def void_all(self) -> None:
        """Another broker leads, or may have led meanwhile."""
        for guards in list(self._guards.values()):
            for guard in list(guards.values()):
                self._drop(guard)

    def _drop(self, guard: VerificationGuard) -> None:
        guard.is_current = False
        guards = self._guards[guard.producer_id]
        del guards[guard.producer_epoch]
        self._count -= 1
        if not guards:
            del self._guards[guard.producer_id]


def holds_transaction(partition: Partition | None, producer_id: int, producer_epoch: int) -> bool:
    """Whether the partition's log holds the beginning of a producer's transaction, not its end."""
    log = None if partition is None else partition.log
    return log is not None and log.producer_state.has_open_transaction(producer_id, producer_epoch)


def begin_verification(
    partition: Partition, producer: BatchProducer, *, supports_epoch_bump: bool
) -> VerificationGuard | ErrorCode | None:
    """Before the coordinator is asked about a batch.

    Args:
        supports_epoch_bump: the request is of a version that gives each transaction an epoch.

    Returns:
        A guard; None when the log holds the transaction's beginning already, so that nobody need be
        asked, and no earlier batch waits for an answer, so that none is overtaken; or why this
        broker cannot append at all.
    """
    core = partition.core
    if not core.is_leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = partition.log
    if log is None or log.offline:
        return partition.unusable_error
    guards = partition.guards
    identity = (producer.producer_id, producer.producer_epoch)
    if log.producer_state.has_open_transaction(*identity) and not guards.has_waiting(*identity):
        return None
    return guards.begin_waiting(producer, supports_epoch_bump=supports_epoch_bump)


def end_verification(partition: Partition, guard: VerificationGuard, error: ErrorCode) -> None:
    """The coordinator has answered one request about the guard's transaction, or cannot."""
    is_refused = error is not ErrorCode.NONE and not error.retriable
    partition.guards.end_waiting(guard, is_refused=is_refused)


def append_transactional(
    partition: Partition,
    log: Log,
    records: Records,
    producer: BatchProducer,
    guard: VerificationGuard | None,
) -> AppendResult:
    """Append a producer's transactional batch, if its transaction is one that its coordinator
    knows of; INVALID_TXN_STATE if not. For `Partition.append`, which does the rest.
    """
    if guard is NOT_REQUIRED:
        guard = None
    else:
        if guard is not None and not (
            guard.is_current
            and guard.producer_id == producer.producer_id
            and guard.producer_epoch == producer.producer_epoch
        ):
            guard = None
        if guard is None and not log.producer_state.has_open_transaction(
            producer.producer_id, producer.producer_epoch
        ):
            return AppendResult(
                ErrorCode.INVALID_TXN_STATE,
                "the batch is not part of an ongoing transaction",
                log_start_offset=log.log_start_offset,
            )
    result = log.append_as_leader(
        records, leader_epoch=partition.core.leader_epoch, verification=guard
    )
    if result.error is ErrorCode.NONE and not result.is_duplicate:
        partition.guards.drop_up_to(producer.producer_id, producer.producer_epoch)
    return result


def append_marker(
    partition: Partition,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    *,
    is_commit: bool,
    transaction_version: int = 0,
) -> AppendResult:
    """End a producer's transaction in this partition, as the leader, with acks=all's demands.

    A marker that comes again is appended again, as Apache Kafka does: it ends nothing then.
    The caller waits for the high watermark. Errors: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR,
    NOT_ENOUGH_REPLICAS, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.

    Args:
        coordinator_epoch: the leader epoch of the coordinator's partition; an administrator who
            aborts a hanging transaction names the one that the partition has seen (KIP-664).
        transaction_version: of the transaction; from 2 on `producer_epoch` is the one after it.
    """
    log = partition.log
    now_ms = 0 if log is None else log.clock.now_ms()
    kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
    batch = encode_end_txn_batch(
        EndTxnMarker(kind, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp_ms=now_ms,
    )
    result = partition.append(
        batch, ACKS_ALL, AppendOrigin.COORDINATOR, transaction_version=transaction_version
    )
    if result.error is ErrorCode.NONE:
        ended_epoch = producer_epoch
        if (
            transaction_version >= FIRST_VERSION_WITH_EPOCH_BUMP
            and producer_epoch < MAX_PRODUCER_EPOCH
        ):
            ended_epoch -= 1  # what is verified for this epoch is the next transaction already
        partition.guards.drop_up_to(producer_id, ended_epoch)
    return result
