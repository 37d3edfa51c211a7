"""Group configuration: what a group may override (ConfigResource GROUP; KIP-848, KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.config.definition import ConfigError, Values
from moldau.config.table import GROUP_KEYS, LIMITED_GROUP_KEYS, nearest_key
from moldau.config.values import accept_value


def effective_group_config(node_values: Values, overrides: Mapping[str, str]) -> Values:
    """A group's typed configuration: its overrides on top of the broker's defaults.

    Raises ConfigError: an unknown key or a bad value.
    """
    values = {
        name: node_values[key.synonyms[0]] if key.synonyms else key.default_value
        for name, key in GROUP_KEYS.items()
    }
    for name, text in overrides.items():
        key = GROUP_KEYS.get(name)
        if key is None:
            hint = nearest_key(name, GROUP_KEYS)
            raise ConfigError(name, None, f"is not a group configuration{hint}")
        values[name] = accept_value(key, text)
    return values


def validate_group_config(overrides: Mapping[str, str], node_values: Values) -> None:
    """Checks what a group overrides, as a whole; an error becomes INVALID_CONFIG.

    Args:
        node_values: typed broker values, among them the limits `group.*.min.…` and `max.…`.

    Raises:
        ConfigError: an unknown key, a bad value, one outside the broker's limits, or a session
            that is over before the next heartbeat.
    """
    values = effective_group_config(node_values, overrides)
    for kind, suffix in LIMITED_GROUP_KEYS:
        name = f"{kind}.{suffix}"
        if name not in overrides:
            continue
        lowest = node_values[f"group.{kind}.min.{suffix}"]
        highest = node_values[f"group.{kind}.max.{suffix}"]
        rule = None
        if values[name] < lowest:
            rule = f"greater than or equal to group.{kind}.min.{suffix}={lowest}"
        elif values[name] > highest:
            rule = f"less than or equal to group.{kind}.max.{suffix}={highest}"
        if rule is not None:
            raise ConfigError(name, overrides[name], f"must be {rule}")
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
