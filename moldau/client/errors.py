"""The exceptions a user of the client meets, and the one table from Kafka's codes to them.

Owns the class hierarchy. Must not be imported by anything that runs in a node. Invariant: every
error a broker can answer becomes a `KafkaError` that carries its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.protocol.errors import ErrorCode


class KafkaError(Exception):
    """Something the cluster or the way to it did not allow.

    Attributes:
        code: Kafka's error code, UNKNOWN_SERVER_ERROR when no broker said anything.
        retriable: whether the same call may succeed later without anybody changing anything.
        final: set where the caller knows better than the code: a retry would not help.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, *, code: ErrorCode | None = None, final: bool = False) -> None:
        super().__init__(message)
        self.final = final
        if code is not None:
            self.code = code

    @property
    def retriable(self) -> bool:
        """Whether trying again makes sense."""
        return self.code.retriable and not self.final


class ConfigurationError(KafkaError, ValueError):
    """A client setting that is unknown or cannot have that value."""

    code = ErrorCode.INVALID_CONFIG


class NoBrokerAvailable(KafkaError):
    """None of the bootstrap servers, or no broker that is needed, can be reached."""

    code = ErrorCode.NETWORK_EXCEPTION


class RequestTimeout(KafkaError, TimeoutError):
    """The cluster did not answer, or not with success, within the time given."""

    code = ErrorCode.REQUEST_TIMED_OUT


class ClientClosed(KafkaError):
    """The client has been closed and serves no further calls."""


class UnsupportedByBroker(KafkaError):
    """The broker does not serve this API, or no version of it that can express the call."""

    code = ErrorCode.UNSUPPORTED_VERSION


class BrokerError(KafkaError):
    """A broker answered with an error that has no class of its own here."""


class AuthorizationFailed(BrokerError):
    """The principal may not do this."""


class TopicAlreadyExists(BrokerError):
    """A topic of that name is there already."""


class UnknownTopicOrPartition(BrokerError):
    """There is no such topic or partition, or not yet at the broker that was asked."""


class InvalidTopic(BrokerError):
    """The name cannot name a topic."""


class InvalidRequest(BrokerError):
    """The cluster understood the request and found it wrong."""


class OffsetOutOfRange(BrokerError):
    """The offset lies before the log's start or behind its end."""


CLASS_BY_CODE: Final[Mapping[ErrorCode, type[BrokerError]]] = MappingProxyType(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationFailed,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationFailed,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationFailed,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationFailed,
        ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExists,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
        ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicOrPartition,
        ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
        ErrorCode.INVALID_REQUEST: InvalidRequest,
        ErrorCode.INVALID_CONFIG: InvalidRequest,
        ErrorCode.INVALID_PARTITIONS: InvalidRequest,
        ErrorCode.INVALID_REPLICATION_FACTOR: InvalidRequest,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT: InvalidRequest,
        ErrorCode.POLICY_VIOLATION: InvalidRequest,
        ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    }
)


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
    return kind(f"{what}: {code.name}: {message or code.message}", code=code, final=final)
