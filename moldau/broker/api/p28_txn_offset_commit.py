"""TxnOffsetCommit v0-v5: a group's offsets as part of a transaction (KIP-98, KIP-447).

Behaviour: topics and partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION, each by itself;
the rest is stored, pending, when the transaction's coordinator confirms that the group's partition
is in the transaction; from v5 on it is added by that (KIP-890). A transaction that is not there is
INVALID_TXN_STATE up to v3, TRANSACTION_ABORTABLE from v4; one that ends before the confirmation is
here is INVALID_TXN_STATE, and a group that may have had another coordinator by then is
NOT_COORDINATOR; a fenced producer is INVALID_PRODUCER_EPOCH; a coordinator that could not be asked
is COORDINATOR_LOAD_IN_PROGRESS, which producers of every version try again (before v2 that is
COORDINATOR_NOT_AVAILABLE).
Known gaps: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from moldau.broker.api.p08_offset_commit import find_topic
from moldau.broker.api.services import BrokerServices
from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.group.core.offset_requests import (
    PreparedCommit,
    prepare_transactional,
)
from moldau.broker.coordinator.transaction.verification import Support
from moldau.broker.replica.partition import Partition
from moldau.broker.replica.verification_guards import NO_SEQUENCE, VerificationGuard
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p28_txn_offset_commit as p28
from moldau.protocol.types import TopicPartition
from moldau.server.request import RequestContext

FIRST_WITH_LOAD_ERROR: Final = 2

_AS_COORDINATOR: Final = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""What partitions and verification say, in a coordinator's words."""


def handle(
    services: BrokerServices, context: RequestContext, request: p28.TxnOffsetCommitRequest
) -> Iterator[None]:
    support = Support.of(context.api_version, abortable_since=4, adds_since=5)
    commit = _Commit(services, context, request, support)
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


@dataclass(slots=True, eq=False)
class _Commit:
    """One request until it is answered.

    States: new → prepared → verifying (not always) → with the group coordinator → answered.
    """

    _services: BrokerServices
    _context: RequestContext
    _request: p28.TxnOffsetCommitRequest
    _support: Support
    _unknown: dict[str, p28.TxnOffsetCommitResponseTopic] = field(default_factory=dict)
    _prepared: PreparedCommit[p28.TxnOffsetCommitResponse] = field(init=False)

    def set_aside_unknown(self) -> Iterator[None]:
        """Set aside what does not exist or may not be read; a step for each partition."""
        topics = []
        for topic in self._request.topics:
            image = self._services.metadata.image.topics
            error, known = find_topic(self._context, image, topic.name)
            found = []
            for asked in topic.partitions:
                index, told = asked.partition_index, error
                if known is not None and index not in known.partitions:
                    told = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if told is ErrorCode.NONE:
                    found.append(asked)
                else:
                    unknown = self._unknown.get(topic.name)
                    if unknown is None:
                        unknown = p28.TxnOffsetCommitResponseTopic(name=topic.name)
                        self._unknown[topic.name] = unknown
                    unknown.partitions.append(
                        p28.TxnOffsetCommitResponsePartition(partition_index=index, error_code=told)
                    )
                yield
            if found:
                topics.append(p28.TxnOffsetCommitRequestTopic(name=topic.name, partitions=found))
        self._request.topics = topics

    def prepare(self) -> Iterator[None]:
        """Make ready what is stored and answered; a step for each partition."""
        limits = self._services.coordinators.groups.commit_limits(self._request.group_id)
        now_ms = self._services.clock.now_ms()
        self._prepared = yield from prepare_transactional(
            self._request, limits, now_ms, self._context.principal
        )

    def begin(self) -> None:
        request = self._request
        if not request.topics:
            self.respond(p28.TxnOffsetCommitResponse())
            return
        if not request.group_id:
            self.refuse(ErrorCode.INVALID_GROUP_ID)
            return
        index = self._services.coordinators.groups.partition_of(request.group_id)
        if index is None:
            self.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        partition = self._services.replica_manager.get(CONSUMER_OFFSETS.topic, index)
        if partition is None:
            self.refuse(ErrorCode.NOT_COORDINATOR)
            return
        self._verify(partition)

    def _verify(self, partition: Partition) -> None:
        verifier = self._services.coordinators.verifier
        request, support = self._request, self._support
        if not (support.adds_partitions or verifier.is_enabled):
            self._commit()
            return
        guard = partition.begin_verification(
            request.producer_id,
            request.producer_epoch,
            NO_SEQUENCE,
            supports_epoch_bump=support.adds_partitions,
        )
        if isinstance(guard, ErrorCode):
            self.refuse(guard)
        elif guard is None:
            self._commit()
        else:
            verifier.verify(
                request.transactional_id,
                Producer(request.producer_id, request.producer_epoch),
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
        partition.guards.end_waiting(guard, error)
        if error is ErrorCode.NONE:
            error = partition.refusal_after_verification(guard)
        if error is ErrorCode.NONE:
            # The group coordinator appends within this call: no marker can come between.
            self._commit()
        else:
            self.refuse(error)

    def _commit(self) -> None:
        request, prepared, version = self._request, self._prepared, self._context.api_version
        self._services.coordinators.groups.ask(
            request.group_id,
            self,
            lambda state, _now_ms: state.offset_requests.commit(request, prepared, version, self),
            prepared.refused,
        )

    def refuse(self, error: ErrorCode) -> None:
        """Nothing is stored; everything that could have been is answered with the reason."""
        error = _AS_COORDINATOR.get(error, error)
        self.respond(self._prepared.refused(error))

    def respond(self, response: p28.TxnOffsetCommitResponse) -> None:
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
