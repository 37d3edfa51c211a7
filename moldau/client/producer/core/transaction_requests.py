"""The requests of a producer to its coordinators, how their answers are read, what errors mean.

Owns the messages, the versions of them that a transaction version allows (KIP-890), and the one
table of verdicts (KIP-1050). Decides nothing and knows no states. Invariants: a request has the
producer id and epoch of the time when it was made; an answer is read against its request; every
error code has a verdict for every request, also those of later releases of Kafka (they count as
UNKNOWN_SERVER_ERROR).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from moldau.client.producer.core.transaction_states import Problem, ProducerIdAndEpoch
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p24_add_partitions_to_txn as adding
from moldau.protocol.messages import p28_txn_offset_commit as committing
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.schema import AnyRequest
from moldau.protocol.types import TopicPartition, by_topic

_E = ErrorCode

TRANSACTION_VERSION_2: Final = 2
"""The level of the feature `transaction.version` from which on brokers add partitions by
themselves, and every transaction has its own epoch (KIP-890)."""

NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a producer with two-phase commit: its transactions wait for their outcome."""

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


# -- verdicts ------------------------------------------------------------------------------------


class Verdict(Enum):
    """What follows from an error."""

    RETRY = "retry"
    """The same request again, after a pause."""
    LOOK_UP = "look up"
    """The same request again, after the coordinator has been found again."""
    RESTART = "restart"
    """Initialization failed and may be tried again by the application, when it was permitted."""
    ABORT = "abort"
    """The transaction can only be aborted; the producer goes on with the next one."""
    ABORT_AND_BUMP = "abort and bump"
    """The same, and sequence numbers cannot go on under this producer epoch (KIP-360)."""
    FENCED = "fenced"
    """Another producer has the transactional id now, or may have had it. Fatal."""
    FATAL = "fatal"
    """This producer cannot go on; the next one of its id aborts its open transaction."""

    @property
    def is_passing(self) -> bool:
        return self in (Verdict.RETRY, Verdict.LOOK_UP)

    @property
    def is_fatal(self) -> bool:
        return self in (Verdict.FENCED, Verdict.FATAL)


class RequestKind(Enum):
    """Which request an error answers."""

    INITIALIZE = "get a producer id"
    ADD_PARTITIONS = "add partitions to the transaction"
    ADD_OFFSETS = "add the group's offsets to the transaction"
    COMMIT_OFFSETS = "commit offsets in the transaction"
    END = "end the transaction"
    PRODUCE = "produce"


_ABORTABLE: Final = frozenset(
    {
        _E.TRANSACTION_ABORTABLE,
        # Something in it is wrong or not permitted; the next transaction may be without it.
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.GROUP_AUTHORIZATION_FAILED,
        _E.INVALID_TOPIC_EXCEPTION,
        _E.INVALID_GROUP_ID,
        _E.GROUP_ID_NOT_FOUND,
        _E.OFFSET_METADATA_TOO_LARGE,
        _E.INVALID_COMMIT_OFFSET_SIZE,
        _E.OPERATION_NOT_ATTEMPTED,
        _E.MESSAGE_TOO_LARGE,
        _E.RECORD_LIST_TOO_LARGE,
        _E.INVALID_TIMESTAMP,
        _E.INVALID_RECORD,
        # The consumer whose offsets they are has lost its partitions (KIP-447).
        _E.ILLEGAL_GENERATION,
        _E.UNKNOWN_MEMBER_ID,
        _E.FENCED_INSTANCE_ID,
        _E.FENCED_MEMBER_EPOCH,
        _E.STALE_MEMBER_EPOCH,
        _E.REBALANCE_IN_PROGRESS,
    }
)

_DEFAULT_VERDICTS: Final[Mapping[ErrorCode, Verdict]] = MappingProxyType(
    {
        **{code: Verdict.RETRY if code.retriable else Verdict.FATAL for code in ErrorCode},
        **dict.fromkeys(_ABORTABLE, Verdict.ABORT),
        _E.NOT_COORDINATOR: Verdict.LOOK_UP,
        _E.COORDINATOR_NOT_AVAILABLE: Verdict.LOOK_UP,
        _E.UNKNOWN_PRODUCER_ID: Verdict.ABORT_AND_BUMP,
        # Another producer has the id, under another producer id since the epochs of this one were
        # used up; or the id was forgotten, perhaps after another producer had it.
        _E.INVALID_PRODUCER_ID_MAPPING: Verdict.FENCED,
        _E.PRODUCER_FENCED: Verdict.FENCED,
        _E.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    }
)

_FATAL_TO_PRODUCE: Final = frozenset(
    {
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.UNSUPPORTED_VERSION,
    }
)

_VERDICTS: Final[Mapping[RequestKind, Mapping[ErrorCode, Verdict]]] = MappingProxyType(
    {
        RequestKind.INITIALIZE: MappingProxyType(
            {
                **_DEFAULT_VERDICTS,
                _E.CLUSTER_AUTHORIZATION_FAILED: Verdict.RESTART,
                _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.RESTART,
                _E.UNSUPPORTED_VERSION: Verdict.RESTART,
                _E.SASL_AUTHENTICATION_FAILED: Verdict.RESTART,
                _E.UNSUPPORTED_SASL_MECHANISM: Verdict.RESTART,
                # There is no transaction yet that could be aborted.
                **dict.fromkeys(_ABORTABLE, Verdict.FATAL),
                _E.TRANSACTION_ABORTABLE: Verdict.RETRY,
                _E.UNKNOWN_PRODUCER_ID: Verdict.FENCED,
            }
        ),
        RequestKind.ADD_PARTITIONS: _DEFAULT_VERDICTS,
        RequestKind.ADD_OFFSETS: _DEFAULT_VERDICTS,
        RequestKind.COMMIT_OFFSETS: _DEFAULT_VERDICTS,
        RequestKind.END: _DEFAULT_VERDICTS,
        # A batch that failed for good, after all its retries: the transaction is incomplete without
        # it. A leader's INVALID_PRODUCER_EPOCH need not mean that there is another producer: the
        # end of the transaction will show it.
        RequestKind.PRODUCE: MappingProxyType(
            {
                **dict.fromkeys(ErrorCode, Verdict.ABORT),
                **dict.fromkeys(_FATAL_TO_PRODUCE, Verdict.FATAL),
                _E.INVALID_PRODUCER_ID_MAPPING: Verdict.FENCED,
                _E.PRODUCER_FENCED: Verdict.FENCED,
                _E.INVALID_PRODUCER_EPOCH: Verdict.ABORT_AND_BUMP,
                _E.UNKNOWN_PRODUCER_ID: Verdict.ABORT_AND_BUMP,
                _E.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.ABORT_AND_BUMP,
            }
        ),
    }
)


def verdict_of(kind: RequestKind, code: ErrorCode) -> Verdict:
    """What `code`, which is not NONE, means in an answer to a request of that kind."""
    return _VERDICTS[kind][code]


# -- requests ------------------------------------------------------------------------------------


class Destination(Enum):
    """Which broker a request is for."""

    ANY_BROKER = "any broker"
    TRANSACTION_COORDINATOR = "transaction coordinator"
    GROUP_COORDINATOR = "group coordinator"


@dataclass(slots=True, eq=False)
class OffsetsCommit:
    """Offsets that are to become part of the transaction.

    Attributes:
        offsets: those that no coordinator has accepted yet.
        problem: why they will not be accepted.
    """

    member: ConsumerGroupMetadata
    offsets: dict[TopicPartition, OffsetAndMetadata]
    problem: Problem | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request that is to be sent.

    Attributes:
        key: the transactional id or the group of the coordinator; empty for any broker.
        lowest_version, highest_version: those that can express it.
        partitions: of requests that name some.
        commit: of ADD_OFFSETS and COMMIT_OFFSETS.
    """

    kind: RequestKind
    destination: Destination
    key: str
    request: AnyRequest
    lowest_version: int
    highest_version: int
    partitions: tuple[TopicPartition, ...] = ()
    commit: OffsetsCommit | None = None


def initialize(
    transactional_id: str | None,
    timeout_ms: int,
    producer: ProducerIdAndEpoch,
    *,
    two_phase: bool,
    keep_prepared: bool,
) -> Ask:
    """InitProducerId; `producer` is the pair so far, if its epoch is to be raised (KIP-360)."""
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
                for topic, indexes in by_topic(partitions).items()
            ],
        ),
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
        lowest = FIRST_WITH_GROUP_METADATA if _is_member(member) else kind.MIN_VERSION
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
                for topic, indexes in by_topic(commit.offsets).items()
            ],
        ),
        lowest,
        kind.MAX_VERSION if adds_group else FIRST_COMMIT_OFFSETS_IN_VERSION_2 - 1,
        partitions=tuple(commit.offsets),
        commit=commit,
    )


def _is_member(group: ConsumerGroupMetadata) -> bool:
    """Whether there is more than the group's name, which brokers before 2.5 cannot check."""
    return group.generation_id >= 0 or group.member_id != "" or group.group_instance_id is not None


def _offset(index: int, committed: OffsetAndMetadata) -> committing.TxnOffsetCommitRequestPartition:
    return committing.TxnOffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=-1 if committed.leader_epoch is None else committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def end(transactional_id: str, producer: ProducerIdAndEpoch, version: int, is_commit: bool) -> Ask:
    """EndTxn; `version` is the transaction version. v5 answers with the next epoch (KIP-890)."""
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
        FIRST_END_IN_VERSION_2 if has_bump else EndTxnRequest.MIN_VERSION,
        EndTxnRequest.MAX_VERSION if has_bump else FIRST_END_IN_VERSION_2 - 1,
    )


def partition_codes(ask: Ask, response: Any) -> Mapping[TopicPartition, ErrorCode]:
    """The answer for each partition asked for; one that was left out is UNKNOWN_SERVER_ERROR."""
    if ask.kind is RequestKind.ADD_PARTITIONS:
        answered = {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
    else:
        answered = {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    return {each: ErrorCode.of(answered.get(each, missing)) for each in ask.partitions}
