"""Limits and times of groups and offsets, from a node's configuration; times are milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.config.node_config import CONSUMER_GROUP_ASSIGNORS
from moldau.metadata.image import ConfigResourceType, ConfigsImage

MS_PER_MINUTE: Final = 60_000
NEW_MEMBER_TIMEOUT_MS: Final = 5 * MS_PER_MINUTE
"""A member that joins for the first time may wait this long for the rebalance to end."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of classic groups and offsets (`group.*`, `offset*.*`)."""

    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_group_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3000
    max_metadata_bytes: int = 4096
    offsets_retention_ms: int = 10_080 * MS_PER_MINUTE
    offsets_check_interval_ms: int = 600_000

    @staticmethod
    def from_config(node_config: Mapping[str, Any]) -> GroupSettings:
        """From a node's configuration."""
        return GroupSettings(
            min_session_timeout_ms=node_config["group.min.session.timeout.ms"],
            max_session_timeout_ms=node_config["group.max.session.timeout.ms"],
            max_group_size=node_config["group.max.size"],
            initial_rebalance_delay_ms=node_config["group.initial.rebalance.delay.ms"],
            max_metadata_bytes=node_config["offset.metadata.max.bytes"],
            offsets_retention_ms=node_config["offsets.retention.minutes"] * MS_PER_MINUTE,
            offsets_check_interval_ms=node_config["offsets.retention.check.interval.ms"],
        )


SESSION_TIMEOUT_KEY: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_KEY: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_KEY: Final = "consumer.assignment.interval.ms"
_BROKER_ASSIGNMENT_INTERVAL_KEY: Final = "group.consumer.assignment.interval.ms"


class Limits(NamedTuple):
    """The lowest and the highest value."""

    lowest: int
    highest: int

    def clamp(self, text: str | None, otherwise: int) -> int:
        """The number in `text`, held within the limits; `otherwise` without one."""
        if text is None:
            return otherwise
        try:
            value = int(text)
        except ValueError:
            return otherwise
        return max(self.lowest, min(self.highest, value))


_SESSION_TIMEOUT_LIMITS: Final = Limits(45_000, 60_000)
_HEARTBEAT_INTERVAL_LIMITS: Final = Limits(5000, 15_000)
_ASSIGNMENT_INTERVAL_LIMITS: Final = Limits(0, 15_000)


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """The times of one group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Settings of consumer groups (`group.consumer.*`), and what single groups override.

    What a group overrides is held within the broker's limits when it is used, whatever was legal
    when it was set (Kafka 4.3 does the same).
    """

    broker_id: int = -1
    session_timeout_ms: int = 45_000
    session_timeout_limits: Limits = _SESSION_TIMEOUT_LIMITS
    heartbeat_interval_ms: int = 5000
    heartbeat_interval_limits: Limits = _HEARTBEAT_INTERVAL_LIMITS
    assignment_interval_ms: int = 1000
    assignment_interval_limits: Limits = _ASSIGNMENT_INTERVAL_LIMITS
    max_group_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    upgrade_enabled: bool = True
    downgrade_enabled: bool = True
    regex_refresh_interval_ms: int = 600_000

    @staticmethod
    def from_config(node_config: Mapping[str, Any], broker_id: int = -1) -> ConsumerGroupSettings:
        """From a node's configuration."""
        policy = node_config["group.consumer.migration.policy"].lower()
        return ConsumerGroupSettings(
            broker_id=broker_id,
            session_timeout_ms=node_config["group.consumer.session.timeout.ms"],
            session_timeout_limits=Limits(
                node_config["group.consumer.min.session.timeout.ms"],
                node_config["group.consumer.max.session.timeout.ms"],
            ),
            heartbeat_interval_ms=node_config["group.consumer.heartbeat.interval.ms"],
            heartbeat_interval_limits=Limits(
                node_config["group.consumer.min.heartbeat.interval.ms"],
                node_config["group.consumer.max.heartbeat.interval.ms"],
            ),
            assignment_interval_ms=node_config["group.consumer.assignment.interval.ms"],
            assignment_interval_limits=Limits(
                node_config["group.consumer.min.assignment.interval.ms"],
                node_config["group.consumer.max.assignment.interval.ms"],
            ),
            max_group_size=node_config["group.consumer.max.size"],
            assignors=tuple(
                CONSUMER_GROUP_ASSIGNORS[name] for name in node_config["group.consumer.assignors"]
            ),
            upgrade_enabled=policy in ("bidirectional", "upgrade"),
            downgrade_enabled=policy in ("bidirectional", "downgrade"),
            regex_refresh_interval_ms=node_config["group.consumer.regex.refresh.interval.ms"],
        )

    def of_group(self, configs: ConfigsImage, group_id: str) -> GroupTimes:
        """The times of a group: its own, else the cluster's, else the node's."""
        own = configs.get(ConfigResourceType.GROUP, group_id)
        return GroupTimes(
            self.session_timeout_limits.clamp(
                own.get(SESSION_TIMEOUT_KEY), self.session_timeout_ms
            ),
            self.heartbeat_interval_limits.clamp(
                own.get(HEARTBEAT_INTERVAL_KEY), self.heartbeat_interval_ms
            ),
            self.assignment_interval_limits.clamp(
                own.get(ASSIGNMENT_INTERVAL_KEY) or self._dynamic(configs),
                self.assignment_interval_ms,
            ),
        )

    def _dynamic(self, configs: ConfigsImage) -> str | None:
        """The assignment interval that was set for this broker, or for all of them."""
        own = configs.get(ConfigResourceType.BROKER, str(self.broker_id))
        if _BROKER_ASSIGNMENT_INTERVAL_KEY in own:
            return own[_BROKER_ASSIGNMENT_INTERVAL_KEY]
        defaults = configs.get(ConfigResourceType.BROKER, "")
        return defaults.get(_BROKER_ASSIGNMENT_INTERVAL_KEY)
