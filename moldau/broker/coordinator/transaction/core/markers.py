"""The markers that end one transaction, and which of them are written.

Owns the count of a single ending. Must not know brokers or retries. Invariant: what one ending was
answered never counts for another, also not for one of the same producer: they are told apart by
being another object.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.coordinator.transaction.core.statuses import TransactionStatus
from moldau.broker.coordinator.transaction.core.transaction import ProducerIdAndEpoch, Transaction
from moldau.protocol.types import TopicPartition


class SendMarkers:
    """The command to write a marker into each of `remaining`, again and again until that is done.

    Attributes:
        producer: goes into the markers.
        transaction_version: from 2 on the epoch is one that no record of the transaction has.
        remaining: partitions whose leader has not yet said that the marker is committed.
        is_cancelled: it is complete, or another coordinator's now: a marker that were sent now
            might end the producer's next transaction.
    """

    __slots__ = (
        "is_cancelled",
        "is_commit",
        "producer",
        "remaining",
        "transaction_version",
        "transactional_id",
    )

    def __init__(self, transaction: Transaction) -> None:
        assert transaction.status.is_prepared
        self.transactional_id = transaction.transactional_id
        self.producer: ProducerIdAndEpoch = transaction.own_producer
        self.is_commit = transaction.status is TransactionStatus.PREPARE_COMMIT
        self.transaction_version = transaction.client_version
        self.remaining: set[TopicPartition] = set(transaction.partitions)
        self.is_cancelled = False

    def written(self, partitions: Iterable[TopicPartition]) -> bool:
        """Take note of it; whether that were the last."""
        self.remaining.difference_update(partitions)
        return not self.remaining
