"""TxnOffsetCommit v0-v5: a group's offsets as part of a transaction (KIP-98, KIP-447).

Behaviour: topics and partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION, each by itself;
the rest is stored, pending, when the transaction's coordinator confirms that the group's partition
is in the transaction; from v5 on it is added by that (KIP-890). A transaction that is not there is
INVALID_TXN_STATE up to v3, TRANSACTION_ABORTABLE from v4; a fenced producer is
INVALID_PRODUCER_EPOCH; a coordinator that could not be asked is COORDINATOR_LOAD_IN_PROGRESS, which
producers of every version try again (before v2 that is COORDINATOR_NOT_AVAILABLE).
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.group.core.offset_requests import PreparedCommit
from moldau.broker.coordinator.transaction.verification import Support
from moldau.broker.replica.partition import Partition
from moldau.broker.replica.transactions import (
    NO_SEQUENCE,
    VerificationGuard,
    begin_verification,
    end_verification,
    holds_transaction,
)
from moldau.metadata.steps import Steps
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau.protocol.types import TopicPartition
from moldau.server.authorizer import Operation, ResourceType
from moldau.server.request import RequestContext
from moldau.storage.append import BatchProducer

FIRST_WITH_LOAD_ERROR: Final = 2
FIRST_WITH_ABORTABLE_ERROR: Final = 4
FIRST_THAT_ADDS_PARTITIONS: Final = 5

_AS_COORDINATOR: Final = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""What partitions and verification say, in a coordinator's words."""


def offset_commit_support(api_version: int) -> Support:
    if api_version >= FIRST_THAT_ADDS_PARTITIONS:
        return Support.ADDS_PARTITIONS
    if api_version >= FIRST_WITH_ABORTABLE_ERROR:
        return Support.ABORTABLE_ERROR
    return Support.OLD_ERRORS


def handle(
    services: BrokerServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> Iterator[None]:
    commit = _Commit(services, context, request)
    if not context.authorized(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        yield from commit.prepare()
        commit.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not context.authorized(Operation.READ, ResourceType.GROUP, request.group_id):
        yield from commit.prepare()
        commit.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        yield from commit.set_aside_unknown()
        yield from commit.prepare()
        commit.begin()
        context.hold_if_waiting()


class _Commit:
    """One request until it is answered.

    States: new → prepared → verifying (not always) → with the group coordinator → answered.
    """

    __slots__ = ("_context", "_prepared", "_request", "_services", "_support", "_unknown")

    _prepared: PreparedCommit[TxnOffsetCommitResponse]

    def __init__(
        self, services: BrokerServices, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._support = offset_commit_support(context.api_version)
        self._unknown: dict[str, TxnOffsetCommitResponseTopic] = {}

    def set_aside_unknown(self) -> Iterator[None]:
        """Keep the topics and partitions that exist and may be read; a step for each."""
        topics = []
        for topic in self._request.topics:
            known = yield from self._known(topic)
            if known:
                topics.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=known))
        self._request.topics = topics

    def prepare(self) -> Iterator[None]:
        """Make ready what is stored and answered; a step for each partition."""
        coordinator = self._services.group_coordinator
        self._prepared = yield from coordinator.prepare_transactional(self._request)

    def begin(self) -> None:
        request = self._request
        if not request.topics:
            self._answer(TxnOffsetCommitResponse())
            return
        if not request.group_id:
            self.refuse(ErrorCode.INVALID_GROUP_ID)
            return
        index = self._services.group_coordinator.partition_of(request.group_id)
        if index is None:
            self.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        partition = self._services.replica_manager.get(CONSUMER_OFFSETS.topic, index)
        if partition is None:
            self.refuse(ErrorCode.NOT_COORDINATOR)
            return
        self._verify(partition)

    def _known(
        self, topic: TxnOffsetCommitRequestTopic
    ) -> Steps[list[TxnOffsetCommitRequestPartition]]:
        """The topic's partitions that exist and may be read; the others are remembered."""
        known = self._services.metadata.image.topics.topics_by_name.get(topic.name)
        is_allowed = self._context.authorized_topic(Operation.READ, topic.name)
        found = []
        for asked in topic.partitions:
            index = asked.partition_index
            error = ErrorCode.NONE
            if not is_allowed:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif known is None or index not in known.partitions:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if error is ErrorCode.NONE:
                found.append(asked)
            else:
                unknown = self._unknown.get(topic.name)
                if unknown is None:
                    unknown = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
                    self._unknown[topic.name] = unknown
                unknown.partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=error)
                )
            yield
        return found

    def _verify(self, partition: Partition) -> None:
        verifier = self._services.transaction_verifier
        request, support = self._request, self._support
        if not (support.adds_partitions or verifier.is_enabled):
            self._commit()
            return
        producer = BatchProducer(request.producer_id, request.producer_epoch, NO_SEQUENCE)
        guard = begin_verification(partition, producer, supports_epoch_bump=support.adds_partitions)
        if isinstance(guard, ErrorCode):
            self.refuse(guard)
        elif guard is None:
            self._commit()
        else:
            verifier.verify(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                [partition.topic_partition],
                support,
                partial(self._verified, partition, guard),
            )

    def _verified(
        self,
        partition: Partition,
        guard: VerificationGuard,
        errors: Mapping[TopicPartition, ErrorCode],
    ) -> None:
        error = errors[partition.topic_partition]
        end_verification(partition, guard, error)
        if error is not ErrorCode.NONE:
            self.refuse(error)
        elif guard.is_current or holds_transaction(
            partition, guard.producer_id, guard.producer_epoch
        ):
            # The group coordinator appends within this call: no marker can come between.
            self._commit()
        else:
            self.refuse(ErrorCode.INVALID_TXN_STATE)

    def _commit(self) -> None:
        self._services.group_coordinator.txn_offset_commit(
            self._request, self._prepared, self._answer, self._context.api_version
        )

    def refuse(self, error: ErrorCode) -> None:
        """Nothing is stored; everything that could have been is told why."""
        error = _AS_COORDINATOR.get(error, error)
        self._answer(self._prepared.refused(error))

    def _answer(self, response: TxnOffsetCommitResponse) -> None:
        topics = {topic.name: topic for topic in response.topics}
        for name, unknown in self._unknown.items():
            topic = topics.get(name)
            if topic is None:
                response.topics.append(unknown)
            else:
                topic.partitions.extend(unknown.partitions)
        if self._context.api_version < FIRST_WITH_LOAD_ERROR:
            for topic in response.topics:
                for each in topic.partitions:
                    if each.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                        each.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._context.respond(response)
