"""What the state machines of one coordinator partition share, and the errors of their requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.broker.coordinator.group.core.settings import ConsumerGroupSettings
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of every group of consumers, of the classic protocol and of KIP-848."""


class ClientInfo(NamedTuple):
    """The sender of a request to a group.

    Attributes:
        client_host: as Kafka keeps it: a slash and the address.
        authorize_topic: whether the sender may describe a topic; None: all topics.
    """

    client_id: str
    client_host: str
    authorize_topic: Callable[[str], bool] | None = None


MEMBER_TIMERS: Final = ("session", "rebalance", "join", "sync")
"""Every kind of timer that a member of a consumer group may have."""


class ConsumerTimer(NamedTuple):
    """The key of a timer of a consumer group."""

    kind: str
    group_id: str
    member_id: str = ""


class Refusal(Exception):
    """A request cannot be carried out; nothing has been changed."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


@dataclass(slots=True)
class GroupContext:
    """The values that classic and consumer groups work with.

    Attributes:
        groups: every group of the partition, of either kind, by id.
        metadata: the newest image of the cluster.
        random_id: a new member id, a random UUID in its usual notation.
        classic_max_group_size: `group.max.size`.
        count: counts one event for the metrics, by name (`consumer-rebalance`).
    """

    groups: dict[str, Any]
    consumer_settings: ConsumerGroupSettings
    metadata: Callable[[], MetadataImage]
    random_id: Callable[[], str]
    classic_max_group_size: int
    count: Callable[[str], None]


_WRITE_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What clients are told of a failed write; other errors as they are."""


def group_write_error(error: ErrorCode) -> ErrorCode:
    """The error for everything but offsets: only the broker itself writes too large a record."""
    return _WRITE_ERRORS.get(error, error)


def offset_write_error(error: ErrorCode) -> ErrorCode:
    """The error for offset commits."""
    if _WRITE_ERRORS.get(error) is ErrorCode.UNKNOWN_SERVER_ERROR:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return group_write_error(error)


def offset_read_error(error: ErrorCode) -> ErrorCode:
    """The error for offset fetches: a coordinator that cannot commit may be a former one, so the
    client should look for another.
    """
    if error is ErrorCode.REQUEST_TIMED_OUT:
        return ErrorCode.NOT_COORDINATOR
    return group_write_error(error)
