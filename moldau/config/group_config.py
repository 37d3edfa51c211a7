"""Group configuration: what a single group may override (ConfigResource GROUP; KIP-848, KIP-932).

Owns: the declaration of group keys, which are those of Apache Kafka 4.3, and the rules between
them and the broker's limits. Must not: apply them. Invariant: a key that is not in the table is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from moldau.config.definition import ConfigKey
from moldau.config.errors import ConfigError
from moldau.config.keys.words import BOOLEAN, IGNORED, INT, MEDIUM, SERVED, STRING, TOPIC
from moldau.config.table import nearest_name
from moldau.config.validators import OneOf, Range
from moldau.config.values import accept_value

_NO_SHARE = "share groups are not served"
_NO_STREAMS = "streams groups are not served"


class _OffsetReset:
    """`earliest`, `latest`, or `by_duration:` and an ISO 8601 duration."""

    __slots__ = ()

    def accepts(self, value: Any) -> bool:
        """Whether the value is one of them."""
        return value in ("earliest", "latest") or str(value).startswith("by_duration:P")

    def describe(self) -> str:
        """In words."""
        return "earliest, latest, or by_duration:PnDTnHnMnS"


# fmt: off
_KEYS = (
    ConfigKey(
        "consumer.assignment.interval.ms", INT, 1000, Range(0), MEDIUM, TOPIC, SERVED,
        "The shortest time between two assignments of the group.",
        synonyms=("group.consumer.assignment.interval.ms",),
    ),
    ConfigKey(
        "consumer.heartbeat.interval.ms", INT, 5000, Range(1), MEDIUM, TOPIC, SERVED,
        "How often members of the group report.",
        synonyms=("group.consumer.heartbeat.interval.ms",),
    ),
    ConfigKey(
        "consumer.session.timeout.ms", INT, 45_000, Range(1), MEDIUM, TOPIC, SERVED,
        "A member of the group silent for this long is removed.",
        synonyms=("group.consumer.session.timeout.ms",),
    ),
    ConfigKey(
        "share.assignment.interval.ms", INT, 1000, Range(0), MEDIUM, TOPIC, IGNORED,
        "The shortest time between two assignments of the share group.",
        synonyms=("group.share.assignment.interval.ms",), note=_NO_SHARE,
    ),
    ConfigKey(
        "share.auto.offset.reset", STRING, "latest", _OffsetReset(), MEDIUM, TOPIC, IGNORED,
        "Where the share group begins to read a partition.", note=_NO_SHARE,
    ),
    ConfigKey(
        "share.delivery.count.limit", INT, 5, Range(2), MEDIUM, TOPIC, IGNORED,
        "Deliveries of a record before it is given up.",
        synonyms=("group.share.delivery.count.limit",), note=_NO_SHARE,
    ),
    ConfigKey(
        "share.heartbeat.interval.ms", INT, 5000, Range(1), MEDIUM, TOPIC, IGNORED,
        "How often members of the share group report.",
        synonyms=("group.share.heartbeat.interval.ms",), note=_NO_SHARE,
    ),
    ConfigKey(
        "share.isolation.level", STRING, "read_uncommitted",
        OneOf("read_committed", "read_uncommitted", any_case=True), MEDIUM, TOPIC, IGNORED,
        "Whether records of open and aborted transactions are delivered.", note=_NO_SHARE,
    ),
    ConfigKey(
        "share.partition.max.record.locks", INT, 2000, Range(100), MEDIUM, TOPIC, IGNORED,
        "Records of a share partition that may be locked at a time.",
        synonyms=("group.share.partition.max.record.locks",), note=_NO_SHARE,
    ),
    ConfigKey(
        "share.record.lock.duration.ms", INT, 30_000, Range(1000), MEDIUM, TOPIC, IGNORED,
        "How long a delivered record stays locked for its consumer.",
        synonyms=("group.share.record.lock.duration.ms",), note=_NO_SHARE,
    ),
    ConfigKey(
        "share.renew.acknowledge.enable", BOOLEAN, True, None, MEDIUM, TOPIC, IGNORED,
        "Whether consumers of the share group may renew their locks.", note=_NO_SHARE,
    ),
    ConfigKey(
        "share.session.timeout.ms", INT, 45_000, Range(1), MEDIUM, TOPIC, IGNORED,
        "A member of the share group silent for this long is removed.",
        synonyms=("group.share.session.timeout.ms",), note=_NO_SHARE,
    ),
    ConfigKey(
        "streams.assignment.interval.ms", INT, 1000, Range(0), MEDIUM, TOPIC, IGNORED,
        "The shortest time between two assignments of the streams group.",
        synonyms=("group.streams.assignment.interval.ms",), note=_NO_STREAMS,
    ),
    ConfigKey(
        "streams.heartbeat.interval.ms", INT, 5000, Range(1), MEDIUM, TOPIC, IGNORED,
        "How often members of the streams group report.",
        synonyms=("group.streams.heartbeat.interval.ms",), note=_NO_STREAMS,
    ),
    ConfigKey(
        "streams.initial.rebalance.delay.ms", INT, 3000, Range(0), MEDIUM, TOPIC, IGNORED,
        "How long an empty streams group waits for more members.",
        synonyms=("group.streams.initial.rebalance.delay.ms",), note=_NO_STREAMS,
    ),
    ConfigKey(
        "streams.num.standby.replicas", INT, 0, Range(0), MEDIUM, TOPIC, IGNORED,
        "Standby replicas of each task of the streams group.",
        synonyms=("group.streams.num.standby.replicas",), note=_NO_STREAMS,
    ),
    ConfigKey(
        "streams.session.timeout.ms", INT, 45_000, Range(1), MEDIUM, TOPIC, IGNORED,
        "A member of the streams group silent for this long is removed.",
        synonyms=("group.streams.session.timeout.ms",), note=_NO_STREAMS,
    ),
)
# fmt: on

GROUP_KEYS: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in _KEYS})
"""What a group may override; the synonym of a key is the broker key behind it."""

_BETWEEN: Final = (
    ("consumer", "assignment.interval.ms"),
    ("consumer", "heartbeat.interval.ms"),
    ("consumer", "session.timeout.ms"),
    ("share", "assignment.interval.ms"),
    ("share", "delivery.count.limit"),
    ("share", "heartbeat.interval.ms"),
    ("share", "partition.max.record.locks"),
    ("share", "record.lock.duration.ms"),
    ("share", "session.timeout.ms"),
    ("streams", "assignment.interval.ms"),
    ("streams", "heartbeat.interval.ms"),
    ("streams", "session.timeout.ms"),
)


def effective_group_config(
    node_values: Mapping[str, Any], overrides: Mapping[str, str]
) -> dict[str, Any]:
    """A group's typed configuration: its overrides on top of the broker's defaults.

    Raises:
        ConfigError: an unknown key or a bad value.
    """
    values = {
        name: node_values[key.synonyms[0]] if key.synonyms else key.default_value
        for name, key in GROUP_KEYS.items()
    }
    for name, text in overrides.items():
        key = GROUP_KEYS.get(name)
        if key is None:
            near = nearest_name(name, GROUP_KEYS)
            hint = f"; did you mean {near}?" if near is not None else ""
            raise ConfigError(name, None, f"is not a group configuration{hint}")
        values[name] = accept_value(key, text)
    return values


def validate_group_config(overrides: Mapping[str, str], node_values: Mapping[str, Any]) -> None:
    """Checks what a group overrides, as a whole; the caller answers INVALID_CONFIG.

    Args:
        node_values: typed broker values, among them the limits `group.*.min.…` and `max.…`.

    Raises:
        ConfigError: an unknown key, a bad value, one outside the broker's limits, or a session
            that is over before the next heartbeat.
    """
    values = effective_group_config(node_values, overrides)
    for kind, suffix in _BETWEEN:
        name = f"{kind}.{suffix}"
        if name not in overrides:
            continue
        lowest = node_values[f"group.{kind}.min.{suffix}"]
        highest = node_values[f"group.{kind}.max.{suffix}"]
        if values[name] < lowest:
            raise ConfigError(
                name,
                overrides[name],
                f"must be greater than or equal to group.{kind}.min.{suffix}={lowest}",
            )
        if values[name] > highest:
            raise ConfigError(
                name,
                overrides[name],
                f"must be less than or equal to group.{kind}.max.{suffix}={highest}",
            )
    standby, limit = "streams.num.standby.replicas", "group.streams.max.standby.replicas"
    if values[standby] > node_values[limit]:
        raise ConfigError(standby, overrides.get(standby), f"must be less than or equal to {limit}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[session] <= values[heartbeat] and (
            session in overrides or heartbeat in overrides
        ):
            raise ConfigError(
                session,
                str(values[session]),
                f"must be greater than {heartbeat}={values[heartbeat]}",
            )
