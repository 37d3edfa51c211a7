"""Open transactions that nobody will ever end, found by asking both sides (KIP-664).

Owns the search. Must not change anything, nor print. Invariant: what is reported was still open
after its coordinator had been asked, and the coordinator does not count the partition to any
transaction that it is going to end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from moldau.client import (
    Admin,
    KafkaError,
    ProducerState,
    TopicPartition,
    TransactionDescription,
)
from moldau.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open on a partition, as the partition sees it."""

    partition: TopicPartition
    producer: ProducerState


@dataclass(frozen=True, slots=True)
class Search:
    """What was found, and what could not be asked."""

    hanging: tuple[OpenTransaction, ...]
    errors: tuple[KafkaError, ...]
    partition_count: int


async def find_hanging(
    admin: Admin,
    partitions: Collection[TopicPartition],
    *,
    now_ms: int,
    older_than_ms: int,
    broker_id: int | None = None,
) -> Search:
    """Search partitions for transactions whose last record is older than any may be.

    Args:
        older_than_ms: no transaction of the cluster may last longer
            (`transaction.max.timeout.ms`).
        broker_id: ask this replica of each partition instead of the leader.

    Raises:
        KafkaError: the coordinators could not be asked: then nothing can be said.
    """
    asked = await admin.describe_partition_producers(partitions, broker_id=broker_id)
    errors = tuple(each for each in asked.values() if isinstance(each, KafkaError))
    candidates = [
        each
        for each in _open_transactions(asked)
        if now_ms - each.producer.last_timestamp_ms > older_than_ms
    ]
    if not candidates:
        return Search((), errors, len(partitions))
    expected = await _expected(admin, {each.producer.producer_id for each in candidates})
    suspected = [
        each
        for each in candidates
        if each.partition not in expected.get(each.producer.producer_id, ())
    ]
    # A marker may have come between the two questions: look again at what is left.
    again = await admin.describe_partition_producers(
        {each.partition for each in suspected}, broker_id=broker_id
    )
    still_open = {_identity(each) for each in _open_transactions(again)}
    hanging = tuple(each for each in suspected if _identity(each) in still_open)
    return Search(hanging, errors, len(partitions))


def _open_transactions(
    asked: Mapping[TopicPartition, list[ProducerState] | KafkaError],
) -> list[OpenTransaction]:
    return [
        OpenTransaction(partition, producer)
        for partition, producers in asked.items()
        if not isinstance(producers, KafkaError)
        for producer in producers
        if producer.current_transaction_start_offset is not None
    ]


def _identity(transaction: OpenTransaction) -> tuple[TopicPartition, int, int | None]:
    producer = transaction.producer
    return (
        transaction.partition,
        producer.producer_id,
        producer.current_transaction_start_offset,
    )


async def _expected(
    admin: Admin, producer_ids: Collection[int]
) -> dict[int, frozenset[TopicPartition]]:
    """For each producer the partitions that its coordinator is going to write a marker to."""
    listed = await admin.list_transactions(producer_ids=sorted(producer_ids))
    described = await admin.describe_transactions([each.transactional_id for each in listed])
    expected: dict[int, frozenset[TopicPartition]] = {}
    for each in listed:
        description = described[each.transactional_id]
        if isinstance(description, TransactionDescription):
            expected[each.producer_id] = description.partitions
        elif description.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise description
    return expected
