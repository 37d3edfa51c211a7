"""What the transaction coordinator answers, before it becomes a message of some API version.

Owns the values, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from moldau.broker.coordinator.transaction.core.transaction import (
    NO_PRODUCER,
    ProducerIdAndEpoch,
    Transaction,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition


class InitProducerIdAnswer(NamedTuple):
    """Who the producer is now; and, if there is a transaction that was kept for it, whose that is
    in the partitions' logs.
    """

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER
    ongoing: ProducerIdAndEpoch = NO_PRODUCER


class EndTransactionAnswer(NamedTuple):
    """How it went, and who the producer is from now on."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


class PartitionsAnswer(NamedTuple):
    """One error for each partition that was asked about."""

    errors: dict[TopicPartition, ErrorCode]

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition], error: ErrorCode) -> PartitionsAnswer:
        """The same for all of them."""
        return cls(dict.fromkeys(partitions, error))


class DescribeAnswer(NamedTuple):
    """An id as it is; None where there is an error."""

    error: ErrorCode
    transaction: Transaction | None = None


class ListAnswer(NamedTuple):
    """The ids of one partition that were asked for."""

    error: ErrorCode
    transactions: list[Transaction]
