"""The limits and times of classic groups and committed offsets.

Owns: reading them from a node's configuration. Must not: decide anything. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MS_PER_MINUTE: Final = 60_000
NEW_MEMBER_TIMEOUT_MS: Final = 5 * MS_PER_MINUTE
"""A member that joins for the first time may wait this long for the rebalance to end."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What an operator decides about classic groups and offsets (`group.*`, `offset*.*`)."""

    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_group_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3000
    max_metadata_bytes: int = 4096
    offsets_retention_ms: int = 10_080 * MS_PER_MINUTE
    offsets_check_interval_ms: int = 600_000

    @staticmethod
    def from_config(node_config: Mapping[str, Any]) -> GroupSettings:
        """The settings of a node."""
        return GroupSettings(
            min_session_timeout_ms=node_config["group.min.session.timeout.ms"],
            max_session_timeout_ms=node_config["group.max.session.timeout.ms"],
            max_group_size=node_config["group.max.size"],
            initial_rebalance_delay_ms=node_config["group.initial.rebalance.delay.ms"],
            max_metadata_bytes=node_config["offset.metadata.max.bytes"],
            offsets_retention_ms=node_config["offsets.retention.minutes"] * MS_PER_MINUTE,
            offsets_check_interval_ms=node_config["offsets.retention.check.interval.ms"],
        )
