"""The client's exceptions, and the one table from Kafka's codes to them.

Owns the class hierarchy and the advice in each error's text. Must not be imported by anything that
runs in a node. Invariant: every error of a broker becomes a `KafkaError` with its code, whose text
says what a user can do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition


class KafkaError(Exception):
    """An error of the cluster, or on the way to it.

    Attributes:
        code: Kafka's error code, UNKNOWN_SERVER_ERROR without a broker's answer.
        retriable: whether the same call may succeed later without a change of anything else.
        final: set where a retry would not help although the code is retriable.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls, *, code: ErrorCode | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    def __init__(self, message: str, *, code: ErrorCode | None = None, final: bool = False) -> None:
        super().__init__(message)
        self.final = final
        if code is not None:
            self.code = code

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.code.retriable and not self.final


# -- found before anything is sent --------------------------------------------------------------


class ConfigurationError(KafkaError, ValueError, code=ErrorCode.INVALID_CONFIG):
    """A client setting that is unknown or cannot have that value."""


class ClientClosed(KafkaError):
    """The client has been closed and serves no further calls; make a new one."""


class WrongEventLoop(KafkaError, RuntimeError):
    """A client was used from another event loop, or another thread, than the one it belongs to."""


class ConcurrentUse(KafkaError, RuntimeError):
    """Two tasks called what only one may call at a time, such as two polls of one consumer."""


class SerializationError(KafkaError, ValueError):
    """A key, value or header that cannot be made into bytes, or bytes that cannot be read back."""


class InvalidState(KafkaError, RuntimeError):
    """A call out of turn: the client is in a state in which it makes no sense."""


class InvalidSubscription(InvalidState):
    """The call does not fit how the consumer gets its partitions (subscribe, pattern, assign)."""


class InvalidTransactionState(InvalidState, code=ErrorCode.INVALID_TXN_STATE):
    """A transactional call out of turn: nothing begun, begun already, or not transactional."""


class BufferFull(KafkaError):
    """No room for a record in `buffer.memory` right now, or not within `max.block.ms`."""

    @property
    def retriable(self) -> bool:
        """Acknowledgements free memory."""
        return not self.final


# -- the way to the brokers ---------------------------------------------------------------------


class NoBrokerAvailable(KafkaError, code=ErrorCode.NETWORK_EXCEPTION):
    """None of the bootstrap servers, or no broker that is needed, can be reached."""


class TlsFailed(KafkaError):
    """No TLS connection came about: a certificate is not trusted or names another host, or one
    side speaks TLS and the other does not. It is not retried.
    """


class RequestTimeout(KafkaError, TimeoutError, code=ErrorCode.REQUEST_TIMED_OUT):
    """The cluster did not answer, or not with success, within the time given."""


class DeliveryTimeout(RequestTimeout):
    """A record was not acknowledged within `delivery.timeout.ms`; it may have been written."""


# -- what brokers answer ------------------------------------------------------------------------


class BrokerError(KafkaError):
    """A broker answered with an error that has no class of its own here."""


class AuthenticationFailed(BrokerError, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    """The broker refuses this client's credentials, or its SASL mechanism; nothing is retried."""


class UnsupportedByBroker(BrokerError, code=ErrorCode.UNSUPPORTED_VERSION):
    """The broker does not serve this API, or no version of it that can express the call."""


class AuthorizationFailed(BrokerError):
    """The principal may not do this."""


class TopicAuthorizationFailed(AuthorizationFailed, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The principal may not do this with the topic."""


class GroupAuthorizationFailed(AuthorizationFailed, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The principal may not do this with the group."""


class ClusterAuthorizationFailed(AuthorizationFailed, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The principal may not do this with the cluster."""


class TransactionalIdAuthorizationFailed(
    AuthorizationFailed, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
):
    """The principal may not do this with the transactional id."""


class TopicAlreadyExists(BrokerError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of that name exists already."""


class UnknownTopicOrPartition(BrokerError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """There is no such topic or partition, or not yet at the broker that was asked."""


class InvalidTopic(BrokerError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The name cannot name a topic."""


class InvalidRequest(BrokerError, code=ErrorCode.INVALID_REQUEST):
    """The cluster understood the request and found it wrong."""


# -- producing ----------------------------------------------------------------------------------


class RecordTooLarge(BrokerError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A record over `max.request.size` or `buffer.memory`, or over what the topic allows."""


class InvalidRecord(BrokerError, code=ErrorCode.INVALID_RECORD):
    """The broker's checks refuse a record, such as one without key in a compacted topic."""


class OutOfOrderSequence(BrokerError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """The broker misses a batch before this one: records were lost, or its memory of them was."""


class ProducerFenced(BrokerError, code=ErrorCode.PRODUCER_FENCED):
    """A newer producer has this transactional id, the transaction's time was over, or the cluster
    has forgotten the id; only a new producer helps.
    """


class TransactionAborted(KafkaError):
    """The record's transaction was aborted before the record was sent or acknowledged."""


class TransactionAbortable(BrokerError, code=ErrorCode.TRANSACTION_ABORTABLE):
    """The transaction cannot be committed any more: abort it, then do its work again (KIP-890)."""


# -- consuming ----------------------------------------------------------------------------------


class OffsetOutOfRange(BrokerError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is before the log's start or after its end."""


class NoOffsetForPartition(KafkaError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """Nothing is committed for a partition, and `auto.offset.reset` is none.

    Attributes:
        partitions: those without a position.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(
            f"no committed offset for {names}, and auto.offset.reset is none: seek, commit an "
            "offset, or set auto.offset.reset to earliest, latest or by_duration:PT…"
        )


class LogTruncated(KafkaError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """Records that were consumed are no longer in the log: an unclean election cut them off
    (KIP-320), and `auto.offset.reset` is none.

    Attributes:
        topic_partition, position: where the consumer stood.
        divergent_offset: up to where the log is what was read; None when the leader cannot say.
    """

    def __init__(
        self, topic_partition: TopicPartition, position: int, divergent_offset: int | None
    ) -> None:
        known = "it cannot say to where" if divergent_offset is None else f"to {divergent_offset}"
        super().__init__(
            f"{topic_partition}: the leader's log was cut below the position {position} ({known}), "
            "and auto.offset.reset is none: seek to where reading shall go on"
        )
        self.topic_partition: TopicPartition = topic_partition
        self.position: int = position
        self.divergent_offset: int | None = divergent_offset


class CommitFailed(KafkaError, code=ErrorCode.ILLEGAL_GENERATION):
    """Offsets were not committed since the group has gone on without this member."""


class RebalanceInProgress(BrokerError, code=ErrorCode.REBALANCE_IN_PROGRESS):
    """The group rebalances: poll, so that it can end, then do this again."""


class IllegalGeneration(BrokerError, code=ErrorCode.ILLEGAL_GENERATION):
    """The group is in a later generation than this member."""


class UnknownMember(BrokerError, code=ErrorCode.UNKNOWN_MEMBER_ID):
    """The group does not know this member (any more)."""


class FencedMemberEpoch(BrokerError, code=ErrorCode.FENCED_MEMBER_EPOCH):
    """The group has fenced this member's epoch; it joins again with nothing assigned (KIP-848)."""


class StaleMemberEpoch(BrokerError, code=ErrorCode.STALE_MEMBER_EPOCH):
    """The member's epoch is behind the group's until its next heartbeat (KIP-848)."""


class FencedInstanceId(BrokerError, code=ErrorCode.FENCED_INSTANCE_ID):
    """Another member with the same `group.instance.id` has taken this one's place."""


class UnreleasedInstanceId(BrokerError, code=ErrorCode.UNRELEASED_INSTANCE_ID):
    """Another member still holds this `group.instance.id` (KIP-848)."""


class InvalidGroupId(BrokerError, code=ErrorCode.INVALID_GROUP_ID):
    """The call needs a group, and there is none, or its id is not allowed."""


class InconsistentGroupProtocol(BrokerError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The group's members have no assignor, or no protocol, in common with this one."""


class GroupFull(BrokerError, code=ErrorCode.GROUP_MAX_SIZE_REACHED):
    """The group has as many members as the broker allows."""


class UnsupportedAssignor(BrokerError, code=ErrorCode.UNSUPPORTED_ASSIGNOR):
    """The group does not know the assignor asked for."""


class InvalidRegularExpression(BrokerError, code=ErrorCode.INVALID_REGULAR_EXPRESSION):
    """The broker cannot read the subscription's pattern (RE2 syntax)."""


class GroupNotEmpty(BrokerError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group still has members."""


class GroupNotFound(BrokerError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no such group."""


_OF_BROKERS: Final = (*BrokerError.__subclasses__(), *AuthorizationFailed.__subclasses__())

CLASS_BY_CODE: Final[Mapping[ErrorCode, type[BrokerError]]] = MappingProxyType(
    {
        **{kind.code: kind for kind in _OF_BROKERS if "code" in vars(kind)},
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: AuthorizationFailed,
        ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicOrPartition,
        ErrorCode.INVALID_CONFIG: InvalidRequest,
        ErrorCode.INVALID_PARTITIONS: InvalidRequest,
        ErrorCode.INVALID_REPLICATION_FACTOR: InvalidRequest,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT: InvalidRequest,
        ErrorCode.POLICY_VIOLATION: InvalidRequest,
        ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
        ErrorCode.INVALID_TIMESTAMP: InvalidRecord,
        ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProducerFenced,
    }
)

ADVICE: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for an ACL on the topic for this principal",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask for an ACL on the group for this principal",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
            "ask for an ACL on the transactional id for this principal"
        ),
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
            "log in by SASL, but not with a token, or with a certificate"
        ),
        ErrorCode.MESSAGE_TOO_LARGE: "send less per record, or raise the topic's max.message.bytes",
        ErrorCode.RECORD_LIST_TOO_LARGE: "lower batch.size, or raise the topic's segment.bytes",
        ErrorCode.INVALID_PRODUCER_EPOCH: "close this producer and make a new one",
        ErrorCode.PRODUCER_FENCED: "close this producer; the newer one goes on",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
            "another producer has the transactional id, or it was unused for "
            "transactional.id.expiration.ms and is forgotten: close this producer and, if no other "
            "one has the id, make a new one"
        ),
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
            "lower transaction.timeout.ms, or raise the brokers' transaction.max.timeout.ms"
        ),
        ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction and do its work again",
        ErrorCode.INVALID_REQUIRED_ACKS: "acks is all, 1 or 0",
        ErrorCode.INVALID_TIMESTAMP: (
            "the topic's message.timestamp.before.max.ms and .after.max.ms say what is allowed"
        ),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "choose another compression.type",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's records are in too old a format",
        ErrorCode.OFFSET_METADATA_TOO_LARGE: (
            "shorten the commit's metadata, or raise the brokers' offset.metadata.max.bytes"
        ),
        ErrorCode.INVALID_SESSION_TIMEOUT: (
            "session.timeout.ms must lie between the brokers' group.min.session.timeout.ms and "
            "group.max.session.timeout.ms"
        ),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
            "give all members of the group an assignor in common (partition.assignment.strategy)"
        ),
        ErrorCode.FENCED_INSTANCE_ID: "give every running member a group.instance.id of its own",
        ErrorCode.UNRELEASED_INSTANCE_ID: (
            "wait until the other member's session is over, or use another group.instance.id"
        ),
        ErrorCode.GROUP_MAX_SIZE_REACHED: (
            "run fewer members, or raise the brokers' group.max.size"
        ),
        ErrorCode.NON_EMPTY_GROUP: "stop its members first",
        ErrorCode.UNSUPPORTED_ASSIGNOR: (
            "group.remote.assignor must be one of the brokers' group.consumer.assignors"
        ),
        ErrorCode.SECURITY_DISABLED: "the brokers run without an authorizer",
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: (
            "the brokers have no delegation.token.secret.key"
        ),
        ErrorCode.TOPIC_DELETION_DISABLED: "the brokers run with delete.topic.enable=false",
    }
)
"""What a user can do about an answer, where the code's own words do not say it."""


def error_for(
    error_code: int, message: str | None, what: str, *, final: bool = False
) -> BrokerError:
    """The exception for a code that is not NONE.

    Args:
        error_code: as on the wire; a code this release does not know is kept as unknown.
        message: the broker's own words, if it sent any.
        what: what was being done, to begin the text with.
    """
    code = ErrorCode.of(error_code)
    if code != error_code:
        message = f"error code {error_code}, which this release does not know: {message or ''}"
    kind = CLASS_BY_CODE.get(code, BrokerError)
    text = f"{what}: {code.name}: {message or code.message}"
    advice = ADVICE.get(code)
    return kind(f"{text} ({advice})" if advice else text, code=code, final=final)


def raise_for(error_code: int, message: str | None, what: str) -> None:
    """Raise the exception of an error code; nothing for NONE."""
    if error_code != ErrorCode.NONE:
        raise error_for(error_code, message, what)
