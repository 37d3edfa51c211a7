"""What EndTxn does to a transactional id (KIP-98, KIP-890, KIP-939).

Owns the decision, which changes nothing. Invariants: an outcome that was written stays; asking for
the other one is INVALID_TXN_STATE, once the markers are written; before that everybody is told to
try again. From transaction version 2 on a repetition is told by its epoch,
which the first one has used up; below that it is told only by the state, so that a repetition that
comes late may be taken for the next transaction's (which is why version 2 exists).
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.broker.coordinator.transaction.core.statuses import TransactionStatus
from moldau.broker.coordinator.transaction.core.transaction import (
    EPOCH_BUMP_VERSION,
    NO_PRODUCER_ID,
    ProducerIdAndEpoch,
    Transaction,
)
from moldau.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome is to be written, and answered once that is committed."""

    transaction: Transaction
    used_producer_id: bool


@dataclass(frozen=True, slots=True)
class EndedBefore:
    """It was done already, and only the answer was lost."""

    producer: ProducerIdAndEpoch


def decide(
    transaction: Transaction | None,
    producer: ProducerIdAndEpoch,
    *,
    is_commit: bool,
    client_version: int,
    spare_producer_id: int,
    now_ms: float,
) -> Ending | EndedBefore | ErrorCode:
    """What the request leads to.

    Args:
        client_version: the transaction version that the client speaks: 2 for EndTxn v5.
        spare_producer_id: -1 if there is none: COORDINATOR_LOAD_IN_PROGRESS where one is needed.
    """
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.status.is_prepared:
        # Whoever asks: the pair to go on with may be in use already, and is not in the log yet.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if client_version < EPOCH_BUMP_VERSION and not transaction.is_kept:
        return _end_without_bump(transaction, producer, is_commit, client_version, now_ms)
    is_repeated = producer == transaction.ended_by
    error = _fence(transaction, producer, is_repeated)
    if error is not ErrorCode.NONE:
        return error
    if is_repeated:
        if _is_outcome(transaction.status, is_commit):
            return EndedBefore(transaction.own_producer)
        return ErrorCode.INVALID_TXN_STATE
    if transaction.status is not TransactionStatus.ONGOING and is_commit:
        # Only an abort may be of a transaction that has not got as far as the coordinator.
        return ErrorCode.INVALID_TXN_STATE
    if transaction.needs_producer_id_to_end and spare_producer_id == NO_PRODUCER_ID:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return Ending(
        transaction.prepared(
            is_commit=is_commit,
            client_version=EPOCH_BUMP_VERSION,
            spare_producer_id=spare_producer_id,
            now_ms=now_ms,
        ),
        used_producer_id=transaction.needs_producer_id_to_end,
    )


def _fence(transaction: Transaction, producer: ProducerIdAndEpoch, is_repeated: bool) -> ErrorCode:
    """Whether the pair is the one to be used now, or was when it was last ended."""
    if is_repeated:
        return ErrorCode.NONE
    client = transaction.client_producer
    if producer.producer_id not in (client.producer_id, transaction.producer_id):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer != client or producer.is_of_markers:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _end_without_bump(
    transaction: Transaction,
    producer: ProducerIdAndEpoch,
    is_commit: bool,
    client_version: int,
    now_ms: float,
) -> Ending | EndedBefore | ErrorCode:
    """Below transaction version 2 the epoch stays from one transaction to the next."""
    if producer.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != transaction.producer_epoch or producer.is_of_markers:
        return ErrorCode.PRODUCER_FENCED
    if transaction.status is TransactionStatus.ONGOING:
        prepared = transaction.prepared(
            is_commit=is_commit,
            client_version=client_version,
            spare_producer_id=NO_PRODUCER_ID,
            now_ms=now_ms,
        )
        return Ending(prepared, used_producer_id=False)
    if not _is_outcome(transaction.status, is_commit):
        return ErrorCode.INVALID_TXN_STATE
    return EndedBefore(transaction.own_producer)


def _is_outcome(status: TransactionStatus, is_commit: bool) -> bool:
    """Whether the last transaction ended in that way."""
    return status is (
        TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT
    )
