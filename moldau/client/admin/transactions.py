"""Admin calls about transactions and the producers behind them (KIP-664).

Owns the translation between typed values and messages. Invariant: a call about several ids or
partitions returns for each its value or its error; only lists of everything raise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from moldau.client.admin.arguments import check_several
from moldau.client.admin.group_types import (
    AbortTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
)
from moldau.client.admin.groups import ask_every_broker
from moldau.client.cluster.cluster_client import ClusterClient, raise_for
from moldau.client.cluster.coordinators import CoordinatorCall, Coordinators, KeyType, Refusal
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import InvalidRequest, KafkaError, error_for
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p27_write_txn_markers as markers
from moldau.protocol.messages.p22_init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.protocol.messages.p65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from moldau.protocol.messages.p66_list_transactions import ListTransactionsRequest
from moldau.protocol.types import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1


class TransactionCalls:
    """The part of `Admin` that deals with transactions."""

    _client: ClusterClient
    _coordinators: Coordinators

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        transactional_id_pattern: str | None = None,
        timeout_ms: float | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids of the cluster in order, each broker asked for its own.

        Args:
            states, producer_ids: only these; empty for all. States in Kafka's words ("Ongoing").
            longer_than_ms: only transactions open for longer than that (KIP-994); -1 for all.
            transactional_id_pattern: only ids that match this RE2 expression (KIP-1152).

        Raises:
            InvalidRequest: a state or a pattern that the brokers do not know.
            UnsupportedByBroker: a broker does not know `longer_than_ms` (before Apache Kafka 3.8)
                or `transactional_id_pattern` (before 4.1).
            KafkaError: a broker did not tell; a list that lacks some would look whole.
        """
        check_several(states, producer_ids)
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=transactional_id_pattern,
        )

        def read(broker_id: int, response: Any) -> list[TransactionListing]:
            raise_for(response.error_code, None, f"transactions of broker {broker_id}")
            if response.unknown_state_filters:
                unknown = ", ".join(sorted(response.unknown_state_filters))
                raise InvalidRequest(
                    f"list transactions: no such state: {unknown}", code=ErrorCode.INVALID_REQUEST
                )
            return [
                TransactionListing(
                    each.transactional_id, each.producer_id, each.transaction_state, broker_id
                )
                for each in response.transaction_states
            ]

        has_pattern = transactional_id_pattern is not None
        found = await ask_every_broker(
            self._client,
            request,
            read,
            what="list transactions",
            timeout_ms=timeout_ms,
            versions=(2, 2) if has_pattern else (1, 2) if longer_than_ms >= 0 else None,
        )
        unique = {each.transactional_id: each for each in found}
        return sorted(unique.values(), key=lambda each: each.transactional_id)

    async def describe_transactions(
        self, transactional_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionDescription | KafkaError]:
        """State, producer and open partitions of each id, or why it cannot be told
        (TRANSACTIONAL_ID_NOT_FOUND).
        """
        check_several(transactional_ids)
        return await self._coordinators.ask(DESCRIBE, transactional_ids, timeout_ms=timeout_ms)

    async def abort_transaction(
        self, transaction: AbortTransaction, *, timeout_ms: float | None = None
    ) -> None:
        """Write an abort marker into one partition, past the coordinator.

        For transactions that the coordinator knows nothing of any more (`transactions
        find-hanging`); one that it still knows is better left to it.

        Raises:
            UnknownTopicOrPartition, AuthorizationFailed
            BrokerError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED: the partition has
                seen a newer producer or marker.
        """
        topic, index = transaction.partition
        request = markers.WriteTxnMarkersRequest(
            markers=[
                markers.WritableTxnMarker(
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=transaction.coordinator_epoch,
                    topics=[markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
                )
            ]
        )

        async def attempt() -> None:
            await self._client.refresh_metadata([topic])
            problem = self._client.metadata.problem(topic, index)
            if self._client.metadata.leader(topic, index) is None:
                is_final = problem == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise error_for(problem, None, f"{transaction.partition}", final=is_final)
            leader_id = await self._client.leader_of(topic, index)
            response = await self._client.ask_node(leader_id, request)
            for marker in response.markers:
                for answered in marker.topics:
                    for entry in answered.partitions:
                        raise_for(
                            entry.error_code,
                            None,
                            f"abort the transaction of producer {transaction.producer_id} "
                            f"on {transaction.partition}",
                        )

        await self._client.retry(attempt, what="abort transaction", timeout_ms=timeout_ms)

    async def fence_producers(
        self, transactional_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, ProducerIdAndEpoch | KafkaError]:
        """Shut out whoever uses the ids, and abort what they have open."""
        check_several(transactional_ids)
        limit_ms = self._client.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        call = CoordinatorCall(
            KeyType.TRANSACTION,
            "fence producers of",
            lambda keys: InitProducerIdRequest(
                transactional_id=keys[0],
                # Nobody writes under this epoch: the time only has to be one that is allowed.
                transaction_timeout_ms=max(1, int(limit_ms)),
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
            ),
            _read_fenced,
            keys_per_request=1,
        )
        return await self._coordinators.ask(call, transactional_ids, timeout_ms=timeout_ms)


def _read_described(
    response: DescribeTransactionsResponse, _: Sequence[str], broker: Broker
) -> dict[str, TransactionDescription | Refusal]:
    found: dict[str, TransactionDescription | Refusal] = {}
    for each in response.transaction_states:
        if each.error_code != ErrorCode.NONE:
            found[each.transactional_id] = Refusal(each.error_code)
            continue
        found[each.transactional_id] = TransactionDescription(
            each.transactional_id,
            broker,
            each.producer_id,
            each.producer_epoch,
            each.transaction_state,
            each.transaction_timeout_ms,
            None if each.transaction_start_time_ms < 0 else each.transaction_start_time_ms,
            frozenset(
                TopicPartition(topic.topic, index)
                for topic in each.topics
                for index in topic.partitions
            ),
        )
    return found


def _read_fenced(
    response: InitProducerIdResponse, keys: Sequence[str], _: Broker
) -> dict[str, ProducerIdAndEpoch | Refusal]:
    if response.error_code != ErrorCode.NONE:
        return {keys[0]: Refusal(response.error_code)}
    return {keys[0]: ProducerIdAndEpoch(response.producer_id, response.producer_epoch)}


DESCRIBE: Final[CoordinatorCall[TransactionDescription]] = CoordinatorCall(
    KeyType.TRANSACTION,
    "describe transaction",
    lambda keys: DescribeTransactionsRequest(transactional_ids=list(keys)),
    _read_described,
)
