"""Whether partitions belong to a transaction: coordinators are asked, for each produce (KIP-890).

Owns the questions under way: one at a time per transactional id, one request at a time per
coordinator with all that is to be asked there, back-off while the coordinator is busy with the
transaction before; and the batches of produce requests that wait for the answers. Must not know
partitions beyond their name. Invariants: every question is answered exactly once, and questions
about one transactional id are answered in their order: the batches appended next would be out of
sequence otherwise; a batch is appended, or refused, exactly once, in the order in which the request
holds the batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.replica.verification_guards import NOT_REQUIRED, VerificationGuard
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages import p24_add_partitions_to_txn as p24
from moldau.protocol.types import TopicPartition, by_topic
from moldau.runtime.connection import UnsupportedByPeer
from moldau.runtime.fault_words import words_of
from moldau.runtime.leader_link import LINK_ERRORS
from moldau.server.fair_shares import FairShares

if TYPE_CHECKING:
    from moldau.broker.coordinator.core.result import Producer
    from moldau.broker.coordinator.other_brokers import OtherBrokers
    from moldau.broker.coordinator.ports import RuntimePorts
    from moldau.broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau.broker.replica.delayed_produce import ProduceOperation
    from moldau.broker.replica.partition import Partition
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.config import NodeConfig
    from moldau.protocol.messages.p00_produce import PartitionProduceResponse
    from moldau.runtime.connection import Connection
    from moldau.runtime.leader_link import LeaderLink
    from moldau.runtime.timers import WheelTimer
    from moldau.storage.append import RecordBatches


logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""Questions that wait for an answer; one more is refused with COORDINATOR_LOAD_IN_PROGRESS.
A principal has as many as it leaves to others.
"""

MAX_TRANSACTIONS_PER_REQUEST: Final = 1_000

FIRST_BATCHED_VERSION: Final = 4
METRIC_PREFIX: Final = "kafka.server:type=AddPartitionsToTxnManager,name="

Errors = Mapping[TopicPartition, ErrorCode]
OnVerified = Callable[[Errors], None]


class Support(Enum):
    """What the version of a client's request says about transactions."""

    OLD_ERRORS = "old errors"
    """Verified only; TRANSACTION_ABORTABLE is not known to it."""
    ABORTABLE_ERROR = "abortable error"
    """Verified only."""
    ADDS_PARTITIONS = "adds partitions"
    """Partitions are added by the request itself, each transaction has its own epoch."""

    @staticmethod
    def of(api_version: int, *, abortable_since: int, adds_since: int) -> Support:
        """Judge by the first versions of an API that know TRANSACTION_ABORTABLE, and that add."""
        if api_version >= adds_since:
            return Support.ADDS_PARTITIONS
        return Support.ABORTABLE_ERROR if api_version >= abortable_since else Support.OLD_ERRORS

    @property
    def adds_partitions(self) -> bool:
        """Whether the coordinator is to add what it does not know yet."""
        return self is Support.ADDS_PARTITIONS


class _Question(NamedTuple):
    """The partitions of one request in one transaction."""

    producer: Producer
    partitions: Sequence[TopicPartition]
    support: Support
    done: OnVerified
    principal: str


class _Round:
    """Questions about one transaction that are asked together."""

    __slots__ = ("adds", "begun_ms", "partitions", "producer", "questions", "transactional_id")

    def __init__(self, transactional_id: str, questions: list[_Question], begun_ms: float) -> None:
        first = questions[0]
        self.transactional_id = transactional_id
        self.questions = questions
        self.producer = first.producer
        self.adds = first.support.adds_partitions
        self.partitions = list(dict.fromkeys(p for each in questions for p in each.partitions))
        self.begun_ms = begun_ms


class TransactionVerifier:
    """Owned by the data loop.

    Attributes:
        is_enabled: `transaction.partition.verification.enable`; requests that add partitions are
            verified either way.
    """

    def __init__(
        self,
        config: NodeConfig,
        ports: RuntimePorts,
        brokers: OtherBrokers,
        coordinator: TransactionCoordinator,
        manager: ReplicaManager,
    ) -> None:
        self._ports = ports
        self._brokers = brokers
        self._coordinator = coordinator
        self._manager = manager
        self.is_enabled = bool(config["transaction.partition.verification.enable"])
        self._retry_backoff_ms = int(config["add.partitions.to.txn.retry.backoff.ms"])
        self._retry_limit_ms = min(
            int(config["add.partitions.to.txn.retry.backoff.max.ms"]), brokers.request_timeout_ms
        )
        self._lines: dict[str, deque[_Question]] = {}
        """Questions by transactional id, while one of them is under way."""
        self._places = FairShares(MAX_WAITING)
        self._to_send: dict[int, deque[_Round]] = {}
        """Rounds by coordinator, while a request to it is under way."""
        self._links: dict[int, LeaderLink] = {}
        self._retries: dict[_Round, WheelTimer] = {}
        self._is_closed = False
        self._failures = ports.registry.meter(METRIC_PREFIX + "VerificationFailureRate")
        self._times_ms = ports.registry.histogram(METRIC_PREFIX + "VerificationTimeMs")

    def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        support: Support,
        done: OnVerified,
        principal: str = "",
    ) -> None:
        """Ask the coordinator of `transactional_id`.

        Args:
            principal: whose question it is: of those that wait one may have as many as it leaves to
                others.
            done: called once, at once or later, with an error or NONE for each of `partitions`:
                INVALID_PRODUCER_EPOCH (fenced), INVALID_TXN_STATE or TRANSACTION_ABORTABLE (not in
                the transaction), CONCURRENT_TRANSACTIONS, NETWORK_EXCEPTION, COORDINATOR_… and
                other errors of a coordinator.
        """
        if self._is_closed or not self._places.take(principal):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if not self._is_closed:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            done(dict.fromkeys(partitions, error))
            return
        question = _Question(producer, partitions, support, done, principal)
        line = self._lines.get(transactional_id)
        if line is not None:
            line.append(question)
            return
        self._lines[transactional_id] = deque()
        self._ask(_Round(transactional_id, [question], self._ports.clock.monotonic_ms()))

    async def close(self) -> None:
        """Answer COORDINATOR_NOT_AVAILABLE to all questions, later ones included."""
        self._is_closed = True
        retries, self._retries = self._retries, {}
        for asked, timer in retries.items():
            timer.cancel()
            self._ask(asked)
        for link in list(self._links.values()):
            await link.close()

    def _ask(self, asked: _Round) -> None:
        """Bring a round to its present coordinator."""
        self._retries.pop(asked, None)
        broker_id = None if self._is_closed else self._coordinator.leader_of(asked.transactional_id)
        if broker_id is None:
            self._answered_all(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif broker_id == self._ports.broker_id:
            self._coordinator.add_partitions(
                asked.transactional_id,
                asked.producer,
                asked.partitions,
                verify_only=not asked.adds,
                done=lambda errors: self._answered(asked, errors),
            )
        elif broker_id in self._to_send:
            self._to_send[broker_id].append(asked)
        else:
            self._to_send[broker_id] = deque([asked])
            self._ports.start(self._send_all(broker_id), f"verify transactions at {broker_id}")

    def _answered_all(self, asked: _Round, error: ErrorCode) -> None:
        self._answered(asked, dict.fromkeys(asked.partitions, error))

    def _answered(self, asked: _Round, errors: Errors) -> None:
        waited_ms = self._ports.clock.monotonic_ms() - asked.begun_ms
        if (
            asked.adds
            and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            and waited_ms < self._retry_limit_ms
            and not self._is_closed
        ):
            # The transaction before is being completed: that ends soon, and the client's own retry
            # would cost more.
            self._retries[asked] = self._ports.timers.call_later(
                self._retry_backoff_ms, self._ask, asked
            )
            return
        self._times_ms.observe(waited_ms)
        for question in asked.questions:
            answer = {
                partition: _as_asked(
                    errors.get(partition, ErrorCode.NETWORK_EXCEPTION), question.support
                )
                for partition in question.partitions
            }
            failure_count = sum(error is not ErrorCode.NONE for error in answer.values())
            if failure_count:
                self._failures.mark(failure_count)
            self._places.give_back(question.principal)
            question.done(answer)
        if self._lines[asked.transactional_id]:
            # From the loop: immediate answers must not pile up on the stack.
            asyncio.get_running_loop().call_soon(self._next_round, asked.transactional_id)
        else:
            del self._lines[asked.transactional_id]

    def _next_round(self, transactional_id: str) -> None:
        """Ask the questions that have come since, as far as they can be asked together."""
        line = self._lines[transactional_id]
        while line and self._is_settled(line[0]):
            question = line.popleft()
            self._places.give_back(question.principal)
            question.done(dict.fromkeys(question.partitions, ErrorCode.NONE))
        if not line:
            del self._lines[transactional_id]
            return
        first = line.popleft()
        questions = [first]
        while (
            line
            and line[0].producer == first.producer
            and line[0].support.adds_partitions == first.support.adds_partitions
        ):
            questions.append(line.popleft())
        self._ask(_Round(transactional_id, questions, self._ports.clock.monotonic_ms()))

    def _is_settled(self, question: _Question) -> bool:
        """Whether the logs hold the transaction by now."""
        return all(
            found is not None and found.holds_transaction(*question.producer)
            for found in (self._manager.get(*partition) for partition in question.partitions)
        )

    async def _send_all(self, broker_id: int) -> None:
        """Send rounds to one coordinator until there are no more."""
        queue = self._to_send[broker_id]
        try:
            while queue:
                count = min(len(queue), MAX_TRANSACTIONS_PER_REQUEST)
                rounds = [queue.popleft() for _ in range(count)]
                answer = await self._send(broker_id, rounds)
                for asked in rounds:
                    if isinstance(answer, ErrorCode):
                        self._answered_all(asked, answer)
                    else:
                        self._answered(asked, answer.get(asked.transactional_id, {}))
        finally:
            del self._to_send[broker_id]

    async def _send(self, broker_id: int, rounds: list[_Round]) -> ErrorCode | dict[str, Errors]:
        """One request; an error, or the answers by transactional id."""
        address = self._brokers.address(broker_id)
        if address is None or self._is_closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        link = self._links.get(broker_id)
        if link is None:
            client_id = f"moldau-broker-{self._ports.broker_id}-transaction-verifier"
            link = self._links[broker_id] = self._brokers.link(client_id)

        async def request(connection: Connection) -> p24.AddPartitionsToTxnRequest:
            version = connection.best_version(
                ApiKey.ADD_PARTITIONS_TO_TXN, p24.AddPartitionsToTxnRequest
            )
            if version < FIRST_BATCHED_VERSION:
                raise UnsupportedByPeer(f"{address} serves AddPartitionsToTxn up to {version}")
            return p24.AddPartitionsToTxnRequest(
                transactions=[_transaction(each) for each in rounds]
            )

        try:
            response = await link.send(
                address, request, timeout_ms=self._brokers.request_timeout_ms
            )
        except LocalProtocolError as error:
            logger.warning("%s cannot verify transactions: %s", address, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        except LINK_ERRORS as error:
            logger.info(
                "%s did not answer for %d transactions: %s",
                address,
                len(rounds),
                words_of(error),
            )
            return ErrorCode.NETWORK_EXCEPTION
        return _answers(response)


def _as_asked(error: ErrorCode, support: Support) -> ErrorCode:
    """A coordinator's error as producers of that version know it.

    OPERATION_NOT_ATTEMPTED is no refusal: the coordinator does not know another partition of the
    round (another request's, maybe), as while its topic is created or deleted. The same question
    may be answered soon; producers would give up for good on the error itself.
    """
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.OPERATION_NOT_ATTEMPTED:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.TRANSACTION_ABORTABLE and support is Support.OLD_ERRORS:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _transaction(asked: _Round) -> p24.AddPartitionsToTxnTransaction:
    return p24.AddPartitionsToTxnTransaction(
        transactional_id=asked.transactional_id,
        producer_id=asked.producer.producer_id,
        producer_epoch=asked.producer.producer_epoch,
        verify_only=not asked.adds,
        topics=[
            p24.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
            for topic, indexes in by_topic(asked.partitions).items()
        ],
    )


def _answers(response: p24.AddPartitionsToTxnResponse) -> ErrorCode | dict[str, Errors]:
    error = ErrorCode.of(response.error_code)
    if error is not ErrorCode.NONE:
        logger.error("verification of transactions was refused: %s", error.name)
        # A producer can do nothing about the permissions of this broker.
        if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return ErrorCode.INVALID_TXN_STATE
        return error
    return {
        result.transactional_id: {
            TopicPartition(topic.name, partition.partition_index): ErrorCode.of(
                partition.partition_error_code
            )
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


_TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_error(error: ErrorCode, support: Support) -> tuple[ErrorCode, str | None]:
    """The error that a producer gets when its transaction could not be verified.

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
    batches: RecordBatches
    slot: PartitionProduceResponse
    guard: VerificationGuard


@dataclass(slots=True, eq=False)
class TransactionalProduce:
    """Collects (`append`), then asks once for all of them (`verify`)."""

    _verifier: TransactionVerifier
    _operation: ProduceOperation
    _transactional_id: str
    _producer: Producer
    _support: Support
    _held: list[_Held] = field(default_factory=list)

    def append(
        self, partition: Partition, batches: RecordBatches, slot: PartitionProduceResponse
    ) -> None:
        """Append a batch now if the log holds the beginning of its transaction, or hold it back."""
        operation, support = self._operation, self._support
        if not (support.adds_partitions or self._verifier.is_enabled):
            operation.append(partition, batches, slot, NOT_REQUIRED)
            return
        guard = partition.begin_verification(
            *self._producer,
            batches.headers[0][1].base_sequence,
            supports_epoch_bump=support.adds_partitions,
        )
        if isinstance(guard, ErrorCode):
            operation.fail(slot, guard, None)
        elif guard is None:
            operation.append(partition, batches, slot)
        else:
            operation.hold()
            self._held.append(_Held(partition, batches, slot, guard))

    def verify(self) -> None:
        """All batches were appended or held back: ask about the held ones."""
        if self._held:
            self._verifier.verify(
                self._transactional_id,
                self._producer,
                [each.partition.topic_partition for each in self._held],
                self._support,
                self._verified,
                self._operation.context.principal,
            )

    def _verified(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        for partition, batches, slot, guard in self._held:
            error = errors[partition.topic_partition]
            partition.guards.end_waiting(guard, error)
            if error is ErrorCode.NONE:
                self._operation.append(partition, batches, slot, guard)
            else:
                self._operation.fail(slot, *produce_error(error, self._support))
            self._operation.held_is_decided()
        self._operation.manager.complete_soon()
