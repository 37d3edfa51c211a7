"""Transactions that hang: open on a partition, and no coordinator is going to end them (KIP-664).

Must not change anything. Invariant: what the search reports was still open after its coordinator
had been asked, and the coordinator does not count the partition to any transaction that it is going
to end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from moldau import client
from moldau.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open on a partition, as the partition sees it."""

    partition: client.TopicPartition
    producer: client.ProducerState


async def find_hanging(
    admin: client.Admin,
    partitions: Collection[client.TopicPartition],
    *,
    now_ms: int,
    older_than_ms: int,
    broker_id: int | None = None,
) -> tuple[list[OpenTransaction], list[client.KafkaError]]:
    """Search partitions for transactions whose last record is older than any may be; those that
    were found, and why partitions could not be asked.

    Args:
        older_than_ms: no transaction of the cluster may last longer
            (`transaction.max.timeout.ms`).
        broker_id: ask this replica of each partition instead of the leader.

    Raises:
        KafkaError: the coordinators could not be asked: then nothing can be said.
    """
    asked = await admin.describe_partition_producers(partitions, broker_id=broker_id)
    errors = [each for each in asked.values() if isinstance(each, client.KafkaError)]
    candidates = [
        each
        for each in _open_transactions(asked)
        if now_ms - each.producer.last_timestamp_ms > older_than_ms
    ]
    if not candidates:
        return [], errors
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
    return [each for each in suspected if _identity(each) in still_open], errors


def _open_transactions(
    asked: Mapping[client.TopicPartition, list[client.ProducerState] | client.KafkaError],
) -> list[OpenTransaction]:
    return [
        OpenTransaction(partition, producer)
        for partition, producers in asked.items()
        if not isinstance(producers, client.KafkaError)
        for producer in producers
        if producer.current_transaction_start_offset is not None
    ]


def _identity(transaction: OpenTransaction) -> tuple[client.TopicPartition, int, int | None]:
    producer = transaction.producer
    return (transaction.partition, producer.producer_id, producer.current_transaction_start_offset)


async def _expected(
    admin: client.Admin, producer_ids: Collection[int]
) -> dict[int, frozenset[client.TopicPartition]]:
    """For each producer the partitions that its coordinator is going to write a marker to."""
    listed = await admin.list_transactions(producer_ids=sorted(producer_ids))
    described = await admin.describe_transactions([each.transactional_id for each in listed])
    expected: dict[int, frozenset[client.TopicPartition]] = {}
    for each in listed:
        description = described[each.transactional_id]
        if isinstance(description, client.TransactionDescription):
            expected[each.producer_id] = description.partitions
        elif description.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise description
    return expected
