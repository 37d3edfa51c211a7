"""Topic configuration: overrides, the node's defaults behind them, and what is not allowed.

A default comes through synonyms: `retention.ms` ← `log.retention.ms` ← minutes ← hours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from moldau.config.definition import ConfigError, ConfigKey, Values
from moldau.config.table import BROKER_KEYS, REMOVED_TOPIC_KEYS, TOPIC_KEYS, nearest_key
from moldau.config.values import accept_value, shown

_log = logging.getLogger(__name__)

UNIT_MS: Final[Mapping[str, int]] = {
    "log.retention.minutes": 60 * 1000,
    "log.retention.hours": 60 * 60 * 1000,
    "log.roll.hours": 60 * 60 * 1000,
    "log.roll.jitter.hours": 60 * 60 * 1000,
}
"""How many milliseconds one of a coarser synonym stands for."""

USE_RETENTION: Final = -2
"""The value of `local.retention.*` that means "as the total retention"."""


def topic_config_defaults(node_values: Values) -> dict[str, Any]:
    """What a topic without overrides gets, by topic key.

    Args:
        node_values: typed broker values, a `NodeConfig` or the result of `effective_broker_config`.
    """
    return {name: _inherited(key, node_values) for name, key in TOPIC_KEYS.items()}


def effective_topic_config(
    node_values: Values, topic_overrides: Mapping[str, str]
) -> dict[str, Any]:
    """A topic's typed configuration: its overrides on top of the node's defaults.

    The controller checks overrides before it writes them to the metadata log. An override that
    another version wrote and this one cannot use is logged and left out, since a partition that
    serves with a default is better than one that does not serve.
    """
    values = topic_config_defaults(node_values)
    for name, text in topic_overrides.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            _log.warning("topic configuration %s is not known here and has no effect", name)
            continue
        try:
            values[name] = accept_value(key, text)
        except ConfigError as error:
            _log.warning("topic configuration has no effect: %s", error)
    return values


def validate_topic_config(overrides: Mapping[str, str], node_values: Values | None = None) -> None:
    """Checks the overrides that a client asks for; an error becomes INVALID_CONFIG.

    Args:
        overrides: texts by topic key.
        node_values: typed broker values for the rules between keys; Kafka's defaults when None.

    Raises:
        ConfigError: an unknown or removed key, a bad value, a refused one, or a contradiction.
    """
    if node_values is None:
        node_values = {name: key.default_value for name, key in BROKER_KEYS.items()}
    values = topic_config_defaults(node_values)
    for name, text in overrides.items():
        values[name] = accept_value(topic_key(name), text)
    if values["max.compaction.lag.ms"] < values["min.compaction.lag.ms"]:
        _contradiction(overrides, "min.compaction.lag.ms", "max.compaction.lag.ms")
    for suffix in ("ms", "bytes"):
        local, total = values[f"local.retention.{suffix}"], values[f"retention.{suffix}"]
        if local == USE_RETENTION or total == -1:
            continue
        if local == -1 or local > total:
            _contradiction(overrides, f"local.retention.{suffix}", f"retention.{suffix}")


def topic_key(name: str) -> ConfigKey:
    """The declaration of a topic key.

    Raises ConfigError: there is none; it names the replacement, or a key that looks like it.
    """
    key = TOPIC_KEYS.get(name)
    if key is not None:
        return key
    if name in REMOVED_TOPIC_KEYS:
        raise ConfigError(name, None, f"was removed from Kafka: {REMOVED_TOPIC_KEYS[name]}")
    hint = nearest_key(name, TOPIC_KEYS)
    raise ConfigError(name, None, f"is not a topic configuration{hint}")


def _inherited(key: ConfigKey, node_values: Values) -> Any:
    for synonym in key.synonyms:
        value = node_values[synonym]
        if value is not None:
            return in_milliseconds(synonym, value)
    return key.default


def in_milliseconds(synonym: str, value: Any) -> Any:
    """A broker key's value in the unit of the topic key it stands for; negative means no limit."""
    unit = UNIT_MS.get(synonym)
    if unit is None:
        return value
    return value * unit if value >= 0 else -1


def _contradiction(overrides: Mapping[str, str], lower: str, upper: str) -> None:
    name = lower if lower in overrides else upper
    rule = f"must not exceed {upper}" if name == lower else f"must not be below {lower}"
    raise ConfigError(name, shown(TOPIC_KEYS[name], overrides.get(name)), rule)
