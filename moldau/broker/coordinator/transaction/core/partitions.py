"""What AddPartitionsToTxn and AddOffsetsToTxn do to a transactional id (KIP-98, KIP-890).

Owns the decisions, which change nothing. Invariant: a partition that a broker is told is in the
transaction is in the log's record of it, so that the transaction's end reaches it.
"""

from __future__ import annotations

from collections.abc import Collection

from moldau.broker.coordinator.transaction.core.statuses import TransactionStatus
from moldau.broker.coordinator.transaction.core.transaction import ProducerIdAndEpoch, Transaction
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition


def refusal(transaction: Transaction | None, producer: ProducerIdAndEpoch) -> ErrorCode:
    """Why that producer may not write into the id's transaction; NONE if it may."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    client = transaction.client_producer
    if transaction.is_kept:
        if producer == client:
            # It was handed over to be ended, not to be written into.
            return ErrorCode.INVALID_TXN_STATE
        if producer.producer_id in (transaction.producer_id, client.producer_id):
            return ErrorCode.PRODUCER_FENCED
    if producer.producer_id != client.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.producer_epoch != client.producer_epoch or producer.is_of_markers:
        return ErrorCode.PRODUCER_FENCED
    if transaction.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def add(
    transaction: Transaction | None,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    client_version: int,
    now_ms: float,
) -> Transaction | ErrorCode:
    """What is to be written; NONE if they are in the transaction already."""
    if transaction is not None and transaction.status.is_prepared:
        # Whoever is to go on may do so with another pair than the one in the log so far.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = refusal(transaction, producer)
    if error is not ErrorCode.NONE:
        return error
    assert transaction is not None
    if transaction.status is TransactionStatus.ONGOING and transaction.partitions.issuperset(
        partitions
    ):
        return ErrorCode.NONE
    return transaction.with_partitions(partitions, client_version, now_ms)


def verify(
    transaction: Transaction | None,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """For each partition whether it is in the transaction: NONE or TRANSACTION_ABORTABLE."""
    error = refusal(transaction, producer)
    if error is not ErrorCode.NONE:
        return dict.fromkeys(partitions, error)
    assert transaction is not None
    return {
        partition: ErrorCode.NONE
        if partition in transaction.partitions
        else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }
