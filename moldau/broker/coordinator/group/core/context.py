"""What the parts of the group coordinator share: the settings of `group.*` and `offsets.*` keys
(times in milliseconds), the sender of a request, refusals, and the errors of failed writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.broker.coordinator.core.result import Answerable, CancelTimer, Reply, write_error
from moldau.config.node_config import CONSUMER_GROUP_ASSIGNORS
from moldau.config.settings import KeyedSettings, of_key
from moldau.metadata.image import ConfigResourceType, ConfigsImage
from moldau.protocol.errors import ErrorCode
from moldau.text import short_message

MS_PER_MINUTE: Final = 60_000
NEW_MEMBER_TIMEOUT_MS: Final = 5 * MS_PER_MINUTE
"""A member that joins for the first time may wait this long for the rebalance to end."""


@dataclass(frozen=True, slots=True)
class GroupSettings(KeyedSettings):
    """Settings of classic groups and offsets."""

    min_session_timeout_ms: int = of_key("group.min.session.timeout.ms")
    max_session_timeout_ms: int = of_key("group.max.session.timeout.ms")
    max_group_size: int = of_key("group.max.size")
    initial_rebalance_delay_ms: int = of_key("group.initial.rebalance.delay.ms")
    max_metadata_bytes: int = of_key("offset.metadata.max.bytes")
    offsets_retention_ms: int = of_key("offsets.retention.minutes", made=MS_PER_MINUTE.__mul__)
    offsets_check_interval_ms: int = of_key("offsets.retention.check.interval.ms")


class LimitedTime(NamedTuple):
    """A time of the broker's, in milliseconds, and the limits of what groups have instead."""

    time_ms: int
    lowest_ms: int
    highest_ms: int

    def of(self, text: str | None) -> int:
        """The number in `text`, held within the limits; the broker's time without one."""
        if text is None:
            return self.time_ms
        try:
            value = int(text)
        except ValueError:
            return self.time_ms
        return max(self.lowest_ms, min(self.highest_ms, value))


def _allows(*policies: str) -> Any:
    return of_key("group.consumer.migration.policy", made=lambda one: one.lower() in policies)


class GroupTimes(NamedTuple):
    """The times of one group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings(KeyedSettings):
    """Settings of consumer groups (`group.consumer.*`), and what single groups override.

    What a group overrides is held within the broker's limits when it is used, whatever was legal
    when it was set (Kafka 4.3 does the same).
    """

    broker_id: int = -1
    session_timeout: LimitedTime = of_key(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
        made=LimitedTime,
    )
    heartbeat_interval: LimitedTime = of_key(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        made=LimitedTime,
    )
    assignment_interval: LimitedTime = of_key(
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        made=LimitedTime,
    )
    max_group_size: int = of_key("group.consumer.max.size")
    assignors: tuple[str, ...] = of_key(
        "group.consumer.assignors",
        made=lambda names: tuple(CONSUMER_GROUP_ASSIGNORS[name] for name in names),
    )
    upgrade_enabled: bool = _allows("bidirectional", "upgrade")
    downgrade_enabled: bool = _allows("bidirectional", "downgrade")
    regex_refresh_interval_ms: int = of_key("group.consumer.regex.refresh.interval.ms")

    def of_group(self, configs: ConfigsImage, group_id: str) -> GroupTimes:
        """The times of a group: its own, else the cluster's, else the node's."""
        own = configs.get(ConfigResourceType.GROUP, group_id)
        key = "group.consumer.assignment.interval.ms"
        of_all = configs.get(ConfigResourceType.BROKER, "").get(key)
        of_broker = configs.get(ConfigResourceType.BROKER, str(self.broker_id)).get(key, of_all)
        return GroupTimes(
            self.session_timeout.of(own.get("consumer.session.timeout.ms")),
            self.heartbeat_interval.of(own.get("consumer.heartbeat.interval.ms")),
            self.assignment_interval.of(own.get("consumer.assignment.interval.ms") or of_broker),
        )


GROUP_BYTES: Final = 2_000
MEMBER_BYTES: Final = 1_500
PENDING_MEMBER_BYTES: Final = 500
NAME_BYTES: Final = 80
PARTITION_BYTES: Final = 100
"""What a group, a member, one that has only an id, a name that a member subscribes to and an
assigned partition take in memory, about, beside their texts.
"""

PROTOCOL_BYTES: Final = 150


def protocols_bytes(protocols: Sequence[tuple[str, bytes]]) -> int:
    """What names and metadata of a member's protocols take in memory, about."""
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of every group of consumers, of the classic protocol and of KIP-848."""


class ClientInfo(NamedTuple):
    """The sender of a request to a group.

    Attributes:
        client_host: as Kafka keeps it: a slash and the address.
        principal: whose memory the group takes.
        authorize_topic: whether the sender may describe a topic; None: all topics.
    """

    client_id: str
    client_host: str
    authorize_topic: Callable[[str], bool] | None = None
    principal: str = ""


MEMBER_TIMERS: Final = ("session", "rebalance", "join", "sync")
"""Every kind of timer that a member of a consumer group may have."""


class ConsumerTimer(NamedTuple):
    """The key of a timer of a consumer group."""

    kind: str
    group_id: str
    member_id: str = ""


def ended_timers(group_id: str, member_ids: Iterable[str]) -> list[CancelTimer]:
    """All those of members that are gone, or whose place is taken."""
    keys = (ConsumerTimer(kind, group_id, each) for each in member_ids for kind in MEMBER_TIMERS)
    return [CancelTimer(key) for key in keys]


class Refusal(Exception):
    """A request cannot be carried out; nothing has been changed."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        self.error_code = error_code
        self.message = short_message(message)


_FINAL_ERRORS: Final = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.NON_EMPTY_GROUP,
    }
)
"""What a group's state is the reason for, and a client acts upon: it ends, gives up its partitions
or its transaction, or reports that a group is gone.
"""


def refused(
    to: Answerable,
    error: ErrorCode,
    answer: Callable[[ErrorCode], object],
    told_error: Callable[[ErrorCode], ErrorCode] = write_error,
) -> Reply:
    """The answer with an error, which a coordinator gives only as the proven leader if it is final:
    a former one that has not heard yet that it was replaced would refuse what its successor knows
    of and it does not.
    """
    if error not in _FINAL_ERRORS:
        return Reply(to, answer(error))
    return Reply(to, answer(error), lambda error: answer(told_error(error)))


def offset_write_error(error: ErrorCode) -> ErrorCode:
    if error is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return write_error(error)


def offset_read_error(error: ErrorCode) -> ErrorCode:
    """The error for offset fetches: a coordinator that cannot commit may be a former one, so the
    client should look for another.
    """
    return ErrorCode.NOT_COORDINATOR if error is ErrorCode.REQUEST_TIMED_OUT else write_error(error)
