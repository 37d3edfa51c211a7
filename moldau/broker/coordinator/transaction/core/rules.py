"""What the requests of producers do to a transactional id: InitProducerId, AddPartitionsToTxn,
EndTxn.

Owns the decisions, fencing and `transaction.max.timeout.ms` among them, which change nothing
(KIP-98, KIP-360, KIP-890, KIP-939). Must not write records or answer; a transaction whose timeout
has passed is aborted in `state`. Invariants:

- A producer gets a pair (producer id, epoch) that no producer has had, unless it repeats the
  request that gave it that pair; the producer that had the id before is fenced by it.
- A partition that an answer to a broker names as in the transaction is in the log's record of it,
  so that the transaction's end reaches it.
- An outcome that was written stays; asking for the other one is INVALID_TXN_STATE once the markers
  are written, and CONCURRENT_TRANSACTIONS before. From transaction version 2 on a repeated EndTxn
  is known by its epoch, which the first one has used up. Below, only the state shows it, so that a
  late repetition may be taken for the next transaction's end (which is why version 2 exists).

Where Apache Kafka looks only at the producer id of a producer that comes back while a transaction
is open, the epoch counts here too: a producer that was fenced cannot abort its successor's
transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from moldau.broker.coordinator.core.result import NO_PRODUCER, Producer
from moldau.broker.coordinator.transaction.core.transaction import (
    EPOCH_BUMP_VERSION,
    NO_TIMEOUT_MS,
    Transaction,
    TransactionStatus,
    new_transaction,
)
from moldau.config.settings import KeyedSettings, of_key
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p22_init_producer_id as p22
from moldau.protocol.records.header import NO_PRODUCER_ID
from moldau.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionSettings(KeyedSettings):
    """Limits and times, which do not change while the broker runs.

    Attributes:
        max_timeout_ms: the longest timeout a producer may ask for.
        two_phase_commit_enabled: whether producers may ask for none (KIP-939).
        expiration_ms: after which an id without a transaction is forgotten.
        abort_interval_ms: between two searches for timed-out transactions.
        expiry_interval_ms: between two searches for ids to forget.
    """

    max_timeout_ms: int = of_key("transaction.max.timeout.ms")
    two_phase_commit_enabled: bool = of_key("transaction.two.phase.commit.enable")
    expiration_ms: int = of_key("transactional.id.expiration.ms")
    abort_interval_ms: int = of_key("transaction.abort.timed.out.transaction.cleanup.interval.ms")
    expiry_interval_ms: int = of_key("transaction.remove.expired.transaction.cleanup.interval.ms")


def producer_fenced_error(error: ErrorCode, api_version: int, *, known_since: int) -> ErrorCode:
    """PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to clients that do not know it (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and api_version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# -- InitProducerId --------------------------------------------------------------------------------


class Recovery(NamedTuple):
    """The pairs of a producer that came back. It asks with `before` again after a lost answer."""

    before: Producer
    after: Producer


class Decision(NamedTuple):
    """A record to write, and the answer for when it is committed.

    Attributes:
        transaction: what the record says.
        answer: the producer's pair; None while the open transaction is being aborted.
        ongoing: the pair of the transaction that is kept for it.
        recovery: what makes a repetition of this request known.
        used_producer_id: whether the spare producer id was used.
    """

    transaction: Transaction
    answer: Producer | None
    ongoing: Producer = NO_PRODUCER
    recovery: Recovery | None = None
    used_producer_id: bool = False


def initialization_refusal(
    request: p22.InitProducerIdRequest, settings: TransactionSettings, server_version: int
) -> ErrorCode:
    """What is wrong with an InitProducerId whatever the id's state; NONE for nothing."""
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if request.enable2_pc and not settings.two_phase_commit_enabled:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if request.keep_prepared_txn and server_version < EPOCH_BUMP_VERSION:
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.enable2_pc and not (
        0 < request.transaction_timeout_ms <= settings.max_timeout_ms
    ):
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def initialize(
    request: p22.InitProducerIdRequest,
    transaction: Transaction | None,
    *,
    recovery: Recovery | None,
    spare_producer_id: int,
    server_version: int,
    now_ms: float,
) -> Decision | ErrorCode:
    """What an InitProducerId leads to.

    Args:
        transaction: the id as it is, None for a new one.
        recovery: the last one of this id, as far as remembered.
        spare_producer_id: -1 if there is none: COORDINATOR_LOAD_IN_PROGRESS where one is needed.
        server_version: the finalized `transaction.version`.
    """
    timeout_ms = NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms
    if transaction is None:
        if spare_producer_id == NO_PRODUCER_ID:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        made = new_transaction(
            request.transactional_id or "", spare_producer_id, timeout_ms, now_ms
        )
        return Decision(made, made.producer, used_producer_id=True)
    if transaction.status.is_prepared:
        # A fenced producer gets this too: it learns that it is fenced when the markers are
        # written.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    current = transaction.client_producer
    expected = None  # the pair of a producer that comes back (KIP-360)
    if request.producer_id != NO_PRODUCER_ID:
        expected = Producer(request.producer_id, request.producer_epoch)
    is_repeated = _is_repeated(expected, transaction, recovery)
    if expected is not None and not is_repeated and (expected != current or current.is_of_markers):
        return ErrorCode.PRODUCER_FENCED
    if transaction.status is TransactionStatus.ONGOING:
        if is_repeated:
            # The producer has had its answer, or it could not have begun.
            return ErrorCode.PRODUCER_FENCED
        return _with_open_transaction(
            request, transaction, timeout_ms, spare_producer_id, server_version, now_ms
        )
    # The producer that repeats its request gets the same pair again.
    following = current if is_repeated else _following(current, spare_producer_id)
    if following is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return Decision(
        transaction.initialized(following, timeout_ms, now_ms),
        following,
        recovery=None if expected is None else Recovery(expected, following),
        used_producer_id=current.is_exhausted and not is_repeated,
    )


def _with_open_transaction(
    request: p22.InitProducerIdRequest,
    transaction: Transaction,
    timeout_ms: int,
    spare_producer_id: int,
    server_version: int,
    now_ms: float,
) -> Decision | ErrorCode:
    is_exhausted = transaction.client_producer.is_exhausted
    if request.keep_prepared_txn:
        following = _following(transaction.client_producer, spare_producer_id)
        if following is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return Decision(
            transaction.kept_for(following, timeout_ms, now_ms),
            following,
            ongoing=transaction.producer,
            used_producer_id=is_exhausted,
        )
    uses_spare = is_exhausted and (transaction.is_kept or server_version >= EPOCH_BUMP_VERSION)
    if uses_spare and spare_producer_id == NO_PRODUCER_ID:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    fenced = transaction.fenced(
        server_version=server_version, spare_producer_id=spare_producer_id, now_ms=now_ms
    )
    # No producer gets the epoch that the markers carry: the next request gets one above.
    return Decision(fenced, None, used_producer_id=uses_spare)


def _is_repeated(
    expected: Producer | None, transaction: Transaction, recovery: Recovery | None
) -> bool:
    """Whether the producer was answered already, by this request or by the end of a transaction
    whose answer it has not got.
    """
    if expected is None:
        return False
    if recovery is not None and recovery == (expected, transaction.client_producer):
        return True
    return expected == transaction.ended_by


def _following(current: Producer, spare_producer_id: int) -> Producer | None:
    """The pair after `current`; None if it needs a producer id and there is none."""
    if not current.is_exhausted:
        return Producer(current.producer_id, current.producer_epoch + 1)
    if spare_producer_id == NO_PRODUCER_ID:
        return None
    return Producer(spare_producer_id, 0)


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------


def write_refusal(transaction: Transaction | None, producer: Producer) -> ErrorCode:
    """Why that producer may not write into the id's transaction; NONE if it may."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.is_kept and producer == transaction.client_producer:
        # It was handed over to be ended, not to be written into.
        return ErrorCode.INVALID_TXN_STATE
    error = _fence(transaction, producer)
    if error is ErrorCode.NONE and transaction.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return error


def _fence(transaction: Transaction, producer: Producer) -> ErrorCode:
    """Whether the pair is the one to be used now."""
    client = transaction.client_producer
    if producer.producer_id not in (client.producer_id, transaction.producer.producer_id):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer != client or producer.is_of_markers:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def add_partitions(
    transaction: Transaction | None,
    producer: Producer,
    partitions: Collection[TopicPartition],
    *,
    client_version: int,
    now_ms: float,
) -> Transaction | ErrorCode:
    """What is to be written; NONE if all of them are in the transaction already."""
    if transaction is not None and transaction.status.is_prepared:
        # The client may go on with another pair than the one that is in the log so far.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = write_refusal(transaction, producer)
    if error is not ErrorCode.NONE:
        return error
    assert transaction is not None
    if transaction.status is TransactionStatus.ONGOING and transaction.partitions.issuperset(
        partitions
    ):
        return ErrorCode.NONE
    return transaction.with_partitions(partitions, client_version, now_ms)


def verify_partitions(
    transaction: Transaction | None,
    producer: Producer,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """NONE for each partition that is in the transaction, otherwise TRANSACTION_ABORTABLE."""
    error = write_refusal(transaction, producer)
    if error is not ErrorCode.NONE:
        return dict.fromkeys(partitions, error)
    assert transaction is not None
    return {
        partition: ErrorCode.NONE
        if partition in transaction.partitions
        else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


# -- EndTxn ----------------------------------------------------------------------------------------


def end_transaction(
    transaction: Transaction | None,
    producer: Producer,
    *,
    is_commit: bool,
    client_version: int,
    spare_producer_id: int,
    now_ms: float,
) -> Decision | Producer | ErrorCode:
    """What an EndTxn leads to; the pair that the producer goes on with if it repeats one whose
    answer was lost.

    Args:
        client_version: the transaction version that the client speaks: 2 for EndTxn v5.
        spare_producer_id: -1 if there is none: COORDINATOR_LOAD_IN_PROGRESS where one is needed.
    """
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.status.is_prepared:
        # To every producer: the pair to go on with may be in use already, and is not in the log
        # yet.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_open = transaction.status is TransactionStatus.ONGOING
    # Below transaction version 2 the epoch stays from one transaction to the next.
    bumps = client_version >= EPOCH_BUMP_VERSION or transaction.is_kept
    is_repeated = bumps and producer == transaction.ended_by
    error = ErrorCode.NONE if is_repeated else _fence(transaction, producer)
    if error is not ErrorCode.NONE:
        return error
    if is_repeated or not (bumps or is_open):
        commit, abort = TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT
        if transaction.status is (commit if is_commit else abort):
            return transaction.producer
        return ErrorCode.INVALID_TXN_STATE
    if is_commit and not is_open:
        # Only an abort may be of a transaction that has not got as far as the coordinator.
        return ErrorCode.INVALID_TXN_STATE
    uses_spare = bumps and transaction.client_producer.is_exhausted
    if uses_spare and spare_producer_id == NO_PRODUCER_ID:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    prepared = transaction.prepared(
        is_commit=is_commit,
        client_version=EPOCH_BUMP_VERSION if bumps else client_version,
        spare_producer_id=spare_producer_id,
        now_ms=now_ms,
    )
    return Decision(prepared, prepared.producer_after_end, used_producer_id=uses_spare)
