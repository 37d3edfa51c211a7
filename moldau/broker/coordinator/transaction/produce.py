"""The transactional batches of one produce request, until their coordinator has spoken (KIP-890).

Owns the list of batches that wait for it, and the errors that producers of each version are told.
Must not ask by itself (`verification` does) or answer the request. Invariant: a batch is appended,
or refused, exactly once, in the order in which the request holds the batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.coordinator.transaction.verification import Support
from moldau.broker.replica.transactions import (
    NOT_REQUIRED,
    BatchProducer,
    VerificationGuard,
    begin_verification,
    end_verification,
)
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.broker.replica.delayed_produce import ProduceOperation
    from moldau.broker.replica.partition import Partition
    from moldau.protocol.messages.p00_produce import PartitionProduceResponse
    from moldau.protocol.types import TopicPartition

FIRST_WITH_ABORTABLE_ERROR: Final = 11
FIRST_THAT_ADDS_PARTITIONS: Final = 12

_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_support(api_version: int) -> Support:
    """What a version of Produce says about transactions."""
    if api_version >= FIRST_THAT_ADDS_PARTITIONS:
        return Support.ADDS_PARTITIONS
    if api_version >= FIRST_WITH_ABORTABLE_ERROR:
        return Support.ABORTABLE_ERROR
    return Support.OLD_ERRORS


def produce_error(error: ErrorCode, support: Support) -> tuple[ErrorCode, str | None]:
    """What a producer is told when its transaction could not be verified.

    NOT_ENOUGH_REPLICAS makes producers of any version try again without asking for metadata;
    CONCURRENT_TRANSACTIONS is understood by those that add partitions by producing.
    """
    if error is ErrorCode.INVALID_TXN_STATE:
        return error, "the partition was not added to the transaction"
    if error in _TRY_AGAIN or (
        error is ErrorCode.CONCURRENT_TRANSACTIONS and not support.adds_partitions
    ):
        return (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the coordinator could not confirm the transaction: {error.name}",
        )
    return error, None


class _Held(NamedTuple):
    partition: Partition
    records: bytearray | memoryview
    slot: PartitionProduceResponse
    guard: VerificationGuard


class TransactionalProduce:
    """Collects (`append`), then asks once for all of them (`verify`).

    Args:
        producer_id, producer_epoch: of every transactional batch in the request.
    """

    __slots__ = (
        "_held",
        "_operation",
        "_producer_epoch",
        "_producer_id",
        "_services",
        "_support",
        "_transactional_id",
    )

    def __init__(
        self,
        services: BrokerServices,
        operation: ProduceOperation,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        api_version: int,
    ) -> None:
        self._services = services
        self._operation = operation
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._support = produce_support(api_version)
        self._held: list[_Held] = []

    def append(
        self,
        partition: Partition,
        records: bytearray | memoryview,
        producer: BatchProducer,
        slot: PartitionProduceResponse,
    ) -> None:
        """Append a batch now, if the log holds the transaction's beginning, or hold it back."""
        operation, support = self._operation, self._support
        if not (support.adds_partitions or self._services.transaction_verifier.is_enabled):
            operation.append(partition, records, slot, NOT_REQUIRED)
            return
        guard = begin_verification(partition, producer, supports_epoch_bump=support.adds_partitions)
        if isinstance(guard, ErrorCode):
            operation.fail(slot, guard, None)
        elif guard is None:
            operation.append(partition, records, slot)
        else:
            operation.hold()
            self._held.append(_Held(partition, records, slot, guard))

    def verify(self) -> None:
        """Every batch has been looked at: ask about those held back."""
        if self._held:
            self._services.transaction_verifier.verify(
                self._transactional_id,
                self._producer_id,
                self._producer_epoch,
                [each.partition.topic_partition for each in self._held],
                self._support,
                self._verified,
            )

    def _verified(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        for partition, records, slot, guard in self._held:
            error = errors[partition.topic_partition]
            end_verification(partition, guard, error)
            if error is ErrorCode.NONE:
                self._operation.append(partition, records, slot, guard)
            else:
                self._operation.fail(slot, *produce_error(error, self._support))
            self._operation.held_is_decided()
        self._services.replica_manager.complete_soon()
