"""The requests of a producer to its coordinators, and how their answers are read.

Owns the messages and which versions of them a transaction version allows (KIP-890). Decides
nothing. Invariant: a request says who the producer was when it was made; an answer is read against
the request it belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from moldau.client.producer.core.transaction_errors import RequestKind
from moldau.client.producer.core.transaction_states import Problem, ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p24_add_partitions_to_txn as adding
from moldau.protocol.messages import p28_txn_offset_commit as committing
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.schema import Message
from moldau.protocol.types import TopicPartition

TRANSACTION_VERSION_2: Final = 2
"""The level of the feature `transaction.version` from which on brokers add partitions by
themselves, and every transaction has an epoch of its own (KIP-890)."""

NO_TIMEOUT_MS: Final = 2**31 - 1
"""What a producer with two-phase commit says: its transactions wait for their outcome."""

MAX_PARTITIONS_PER_REQUEST: Final = 5_000
"""More partitions than this are added in several requests."""

FIRST_WITH_EPOCH_BUMP: Final = 3
"""InitProducerId, from Apache Kafka 2.5 on (KIP-360)."""
FIRST_WITH_TWO_PHASE: Final = 6
FIRST_WITH_GROUP_METADATA: Final = 3
"""TxnOffsetCommit, from Apache Kafka 2.5 on (KIP-447)."""
FIRST_END_IN_VERSION_2: Final = 5
FIRST_COMMIT_OFFSETS_IN_VERSION_2: Final = 5

LAST_INIT_BEFORE_TWO_PHASE: Final = 5
LAST_ADD_PARTITIONS_OF_CLIENTS: Final = 3
LAST_PRODUCE_IN_VERSION_1: Final = 11


class Destination(Enum):
    """Whom to ask."""

    ANY_BROKER = "any broker"
    TRANSACTION_COORDINATOR = "transaction coordinator"
    GROUP_COORDINATOR = "group coordinator"


class GroupMember(NamedTuple):
    """Whose offsets are committed: what the consumer's `group_metadata()` says (KIP-447).

    Attributes:
        generation_id: or the member epoch (KIP-848); -1 for somebody who is no member.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    @property
    def is_member(self) -> bool:
        """Whether there is more than the group's name, which brokers before 2.5 cannot check."""
        return self.generation_id >= 0 or self.member_id != "" or self.group_instance_id is not None


class Position(NamedTuple):
    """What is committed for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True, eq=False)
class OffsetsCommit:
    """Offsets that are to become part of the transaction.

    Attributes:
        offsets: those that no coordinator has taken yet.
        problem: why they will not be taken.
    """

    member: GroupMember
    offsets: dict[TopicPartition, Position]
    problem: Problem | None = None
    is_done: bool = field(default=False)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request that is to be sent.

    Attributes:
        key: the transactional id or the group whose coordinator is asked; empty for any broker.
        lowest_version, highest_version: those that can say it.
        partitions: what it is about, of those that name some.
        commit: of COMMIT_OFFSETS.
        is_commit: of END.
    """

    kind: RequestKind
    destination: Destination
    key: str
    request: Message
    producer: ProducerIdAndEpoch
    lowest_version: int
    highest_version: int
    partitions: tuple[TopicPartition, ...] = ()
    commit: OffsetsCommit | None = None
    is_commit: bool = False


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        topics[topic].append(index)
    return topics


def initialize(
    transactional_id: str | None,
    timeout_ms: int,
    producer: ProducerIdAndEpoch,
    *,
    two_phase: bool,
    keep_prepared: bool,
) -> Ask:
    """InitProducerId; `producer` is who it is so far, if its epoch is to be bumped (KIP-360)."""
    is_new = two_phase or keep_prepared
    lowest = FIRST_WITH_EPOCH_BUMP if producer.is_known else InitProducerIdRequest.MIN_VERSION
    return Ask(
        RequestKind.INITIALIZE,
        Destination.ANY_BROKER if transactional_id is None else Destination.TRANSACTION_COORDINATOR,
        transactional_id or "",
        InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=NO_TIMEOUT_MS if two_phase else timeout_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            enable2_pc=two_phase,
            keep_prepared_txn=keep_prepared,
        ),
        producer,
        FIRST_WITH_TWO_PHASE if is_new else lowest,
        InitProducerIdRequest.MAX_VERSION if is_new else LAST_INIT_BEFORE_TWO_PHASE,
    )


def add_partitions(
    transactional_id: str, producer: ProducerIdAndEpoch, wanted: Iterable[TopicPartition]
) -> Ask:
    """AddPartitionsToTxn for some of `wanted`; of transaction version 1 only."""
    partitions = tuple(wanted)[:MAX_PARTITIONS_PER_REQUEST]
    return Ask(
        RequestKind.ADD_PARTITIONS,
        Destination.TRANSACTION_COORDINATOR,
        transactional_id,
        adding.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                adding.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in _by_topic(partitions).items()
            ],
        ),
        producer,
        adding.AddPartitionsToTxnRequest.MIN_VERSION,
        LAST_ADD_PARTITIONS_OF_CLIENTS,
        partitions=partitions,
    )


def add_offsets(transactional_id: str, producer: ProducerIdAndEpoch, commit: OffsetsCommit) -> Ask:
    """AddOffsetsToTxn; of transaction version 1 only."""
    return Ask(
        RequestKind.ADD_OFFSETS,
        Destination.TRANSACTION_COORDINATOR,
        transactional_id,
        AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=commit.member.group_id,
        ),
        producer,
        AddOffsetsToTxnRequest.MIN_VERSION,
        AddOffsetsToTxnRequest.MAX_VERSION,
        commit=commit,
    )


def commit_offsets(
    transactional_id: str, producer: ProducerIdAndEpoch, commit: OffsetsCommit, version: int
) -> Ask:
    """TxnOffsetCommit for what is left of `commit`; `version` is the transaction version."""
    member = commit.member
    kind = committing.TxnOffsetCommitRequest
    adds_group = version >= TRANSACTION_VERSION_2
    if adds_group:
        lowest = FIRST_COMMIT_OFFSETS_IN_VERSION_2
    else:
        lowest = FIRST_WITH_GROUP_METADATA if member.is_member else kind.MIN_VERSION
    return Ask(
        RequestKind.COMMIT_OFFSETS,
        Destination.GROUP_COORDINATOR,
        member.group_id,
        kind(
            transactional_id=transactional_id,
            group_id=member.group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=[
                committing.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        _offset(index, commit.offsets[TopicPartition(topic, index)])
                        for index in indexes
                    ],
                )
                for topic, indexes in _by_topic(commit.offsets).items()
            ],
        ),
        producer,
        lowest,
        kind.MAX_VERSION if adds_group else FIRST_COMMIT_OFFSETS_IN_VERSION_2 - 1,
        partitions=tuple(commit.offsets),
        commit=commit,
    )


def _offset(index: int, position: Position) -> committing.TxnOffsetCommitRequestPartition:
    return committing.TxnOffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=position.offset,
        committed_leader_epoch=position.leader_epoch,
        committed_metadata=position.metadata,
    )


def end(transactional_id: str, producer: ProducerIdAndEpoch, version: int, is_commit: bool) -> Ask:
    """EndTxn; `version` is the transaction version. Its v5 says who goes on (KIP-890)."""
    has_bump = version >= TRANSACTION_VERSION_2
    return Ask(
        RequestKind.END,
        Destination.TRANSACTION_COORDINATOR,
        transactional_id,
        EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=is_commit,
        ),
        producer,
        FIRST_END_IN_VERSION_2 if has_bump else EndTxnRequest.MIN_VERSION,
        EndTxnRequest.MAX_VERSION if has_bump else FIRST_END_IN_VERSION_2 - 1,
        is_commit=is_commit,
    )


def added_partitions(
    ask: Ask, response: adding.AddPartitionsToTxnResponse
) -> Mapping[TopicPartition, ErrorCode]:
    """The answer for each partition asked for; one that was left out is UNKNOWN_SERVER_ERROR."""
    answered = {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    }
    return {each: answered.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in ask.partitions}


def committed_offsets(
    ask: Ask, response: committing.TxnOffsetCommitResponse
) -> Mapping[TopicPartition, ErrorCode]:
    """The answer for each partition asked for; one that was left out is UNKNOWN_SERVER_ERROR."""
    answered = {
        TopicPartition(topic.name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in response.topics
        for each in topic.partitions
    }
    return {each: answered.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in ask.partitions}
