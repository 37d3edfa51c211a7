"""Admin calls about transactions and the producers behind them (KIP-664).

A call about several ids returns for each its value or its error; only lists of everything raise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.client.admin.calls import AdminCalls, check_several
from moldau.client.cluster.coordinators import CoordinatorCall, KeyType
from moldau.client.cluster.metadata_cache import Broker
from moldau.client.errors import (
    BrokerError,
    InvalidRequest,
    KafkaError,
    NoBrokerAvailable,
    ProducerFenced,
    UnsupportedByBroker,
    error_for,
    raise_for,
)
from moldau.client.producer.coordinator_link import AnswerLost, CannotSay, CoordinatorLink, NotSent
from moldau.client.producer.core import transaction_requests as requests
from moldau.client.producer.core.transaction_states import (
    LAST_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
)
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch as Pair
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p22_init_producer_id as initialized
from moldau.protocol.messages import p27_write_txn_markers as markers
from moldau.protocol.messages import p65_describe_transactions as described
from moldau.protocol.messages import p66_list_transactions as listed
from moldau.protocol.messages.p26_end_txn import EndTxnResponse
from moldau.protocol.types import TopicPartition

if TYPE_CHECKING:
    from moldau.client.admin.partitions import ProducerState


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id of a list."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id as its coordinator knows it.

    `partitions` are those of the open transaction, or those still without a marker while it ends.
    `start_time_ms` is None when no transaction is open.
    """

    transactional_id: str
    coordinator: Broker
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_time_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """An open transaction on one partition, to be aborted there without its coordinator."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def of(cls, partition: TopicPartition, producer: ProducerState) -> AbortTransaction:
        """Describe the transaction by the partition's state of the producer.

        A partition without any marker of the producer knows no coordinator epoch (-1), and accepts
        any from 0 on.
        """
        return cls(
            partition,
            producer.producer_id,
            producer.producer_epoch,
            max(0, producer.coordinator_epoch),
        )


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """The newest producer of a transactional id, after fencing."""

    producer_id: int
    producer_epoch: int


_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_UNKNOWN: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
)


class TransactionCalls(AdminCalls):
    """The part of `Admin` that deals with transactions."""

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
            KafkaError: a broker did not answer; a list without its transactions would look
                complete.
        """
        check_several(states, producer_ids)
        request = listed.ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=transactional_id_pattern,
        )

        def read(
            broker_id: int, response: listed.ListTransactionsResponse
        ) -> list[TransactionListing]:
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
        return await self._ask_every_broker(
            request,
            read,
            lambda each: each.transactional_id,
            what="list transactions",
            timeout_ms=timeout_ms,
            versions=(2, 2) if has_pattern else (1, 2) if longer_than_ms >= 0 else None,
        )

    async def describe_transactions(
        self, transactional_ids: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionDescription | KafkaError]:
        """State, producer and open partitions of each id, or why they are not known
        (TRANSACTIONAL_ID_NOT_FOUND).
        """
        check_several(transactional_ids)
        return await self._coordinators.ask(_DESCRIBE, transactional_ids, timeout_ms=timeout_ms)

    async def abort_transaction(
        self, transaction: AbortTransaction, *, timeout_ms: float | None = None
    ) -> None:
        """Write an abort marker into one partition without the coordinator.

        For transactions that the coordinator does not know any more (`transactions find-hanging`);
        leave the others to the coordinator.

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
            (leader_id,) = await self._by_leader([transaction.partition])
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
        """Fence the producers of these ids, and abort their open transactions."""
        check_several(transactional_ids)
        limit_ms = self._client.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        call = CoordinatorCall(
            KeyType.TRANSACTION,
            "fence producers of",
            lambda keys: initialized.InitProducerIdRequest(
                transactional_id=keys[0],
                # No transaction is begun under this epoch: any allowed time will do.
                transaction_timeout_ms=max(1, int(limit_ms)),
                producer_id=NO_PRODUCER_ID,
                producer_epoch=NO_PRODUCER_EPOCH,
            ),
            lambda made, _: ProducerIdAndEpoch(made.producer_id, made.producer_epoch),
        )
        return await self._coordinators.ask(call, transactional_ids, timeout_ms=timeout_ms)

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool = True,
        *,
        timeout_ms: float | None = None,
    ) -> ProducerIdAndEpoch:
        """Commit or abort the open transaction of a producer in another process.

        For applications that decide about the work of many producers at once: each producer flushes
        and hands over its producer id and epoch, and one process ends their transactions. The call
        may be made again, also by another process, with the same outcome: the second call changes
        nothing.

        Args:
            producer_id, producer_epoch: the producer's when it wrote.
            commit: whether to make its records visible; False to abort them.

        Returns:
            The producer's id and epoch from now on; with transaction version 2 it is another epoch,
            and the process that has the producer open would be fenced if it went on.

        Raises:
            ProducerFenced: the transaction is not open any more under this epoch: it took longer
                than its timeout and was aborted, a newer producer has aborted it, or it ended and
                the producer has gone on.
            InvalidRequest: the arguments.
            BrokerError: INVALID_TXN_STATE: there is nothing to commit, or it ended the other way;
                INVALID_PRODUCER_ID_MAPPING: the cluster knows no such producer of this id, which
                has expired or is used by another producer.
            TransactionalIdAuthorizationFailed
            RequestTimeout: the outcome may have been written; the same call returns it.
        """
        producer = _checked(transactional_id, producer_id, producer_epoch)
        link = CoordinatorLink(self._client)
        what = f"{'commit' if commit else 'abort'} the transaction of {transactional_id!r}"

        async def attempt() -> ProducerIdAndEpoch:
            try:
                features = await link.features(transactional_id)
                ask = requests.end(transactional_id, producer, features.transaction_version, commit)
                response: EndTxnResponse = await link.ask(ask, lambda _: None)
            except (NotSent, AnswerLost) as fault:
                link.forget_coordinator(transactional_id)
                raise NoBrokerAvailable(f"{what}: {fault}") from fault
            except CannotSay as error:
                raise UnsupportedByBroker(f"{what}: {error}") from None
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                following = Pair(response.producer_id, response.producer_epoch)
                return ProducerIdAndEpoch(*(following if following.is_known else producer))
            link.forget_coordinator(transactional_id)
            raise _refusal(code, what, producer, commit)

        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)


def _checked(transactional_id: str, producer_id: int, producer_epoch: int) -> Pair:
    problem = None
    if not transactional_id:
        problem = "the transactional id is empty"
    elif not 0 <= producer_id < 2**63:
        problem = f"{producer_id} is no producer id (0 or more)"
    elif not 0 <= producer_epoch <= LAST_PRODUCER_EPOCH:
        problem = f"{producer_epoch} is no producer epoch (0 to {LAST_PRODUCER_EPOCH})"
    if problem is not None:
        raise InvalidRequest(f"end transaction: {problem}", code=ErrorCode.INVALID_REQUEST)
    return Pair(producer_id, producer_epoch)


def _refusal(code: ErrorCode, what: str, producer: Pair, commit: bool) -> KafkaError:
    if code in _FENCED:
        return ProducerFenced(
            f"{what}: {code.name}: producer {producer} has no open transaction: it was aborted "
            "because it took too long or a newer producer has the id, or it ended and the "
            "producer has gone on",
            code=code,
        )
    if code in _UNKNOWN:
        return BrokerError(
            f"{what}: {code.name}: the cluster knows no producer {producer.producer_id} of this "
            "id: the id has expired, or another producer has it",
            code=code,
        )
    if code is ErrorCode.INVALID_TXN_STATE:
        other = "aborted" if commit else "committed"
        return BrokerError(
            f"{what}: {code.name}: producer {producer} has nothing open, or its transaction was "
            f"{other}",
            code=code,
        )
    return error_for(code, None, what)


def _read_described(each: described.TransactionState, broker: Broker) -> TransactionDescription:
    return TransactionDescription(
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


_DESCRIBE: Final[CoordinatorCall[TransactionDescription]] = CoordinatorCall(
    KeyType.TRANSACTION,
    "describe transaction",
    lambda keys: described.DescribeTransactionsRequest(transactional_ids=list(keys)),
    _read_described,
    lambda response: ((each.transactional_id, each) for each in response.transaction_states),
)
