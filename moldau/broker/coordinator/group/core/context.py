"""What the state machines of one coordinator partition share.

Owns: the values that classic and consumer groups both work with: the table of groups, settings,
the way to the newest metadata, and who a request comes from. Must not: decide anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.broker.coordinator.group.core.consumer_settings import ConsumerGroupSettings
from moldau.metadata.image import MetadataImage
from moldau.protocol.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of every group of consumers, of the classic protocol and of KIP-848."""


class ClientInfo(NamedTuple):
    """Who sent a request to a group.

    Attributes:
        client_host: as Kafka keeps it: a slash and the address.
        authorize_topic: whether the sender may describe a topic; None: every one.
    """

    client_id: str
    client_host: str
    authorize_topic: Callable[[str], bool] | None = None


MEMBER_TIMERS: Final = ("session", "rebalance", "join", "sync")
"""Every kind of timer that a member of a consumer group may have."""


class ConsumerTimer(NamedTuple):
    """The key of a timer of a consumer group: what it is about, and of which member."""

    kind: str
    group_id: str
    member_id: str = ""


class Refusal(Exception):
    """A request cannot be carried out; nothing has been changed."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


def _not_counted(_name: str) -> None:
    return


@dataclass(slots=True)
class GroupContext:
    """What is shared.

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
    classic_max_group_size: int = 2**31 - 1
    count: Callable[[str], None] = _not_counted
