"""Configuration as DescribeConfigs tells it: value, source, synonyms (KIP-226, KIP-569).

Owns: the order of sources and synonyms.
Must not: build protocol messages.
Invariant: a sensitive value is always None here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from moldau.config.definition import ConfigKey, ConfigSource, ConfigType
from moldau.config.dynamic_config import effective_broker_config
from moldau.config.group_config import GROUP_KEYS
from moldau.config.node_config import NodeConfig
from moldau.config.table import BROKER_KEYS, TOPIC_KEYS
from moldau.config.topic_config import effective_topic_config
from moldau.config.values import format_value


class ConfigSynonym(NamedTuple):
    """One place that could have provided the value."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """One key with its effective value; `synonyms` is ordered, the one in effect first."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str


def describe_broker_config(
    static: NodeConfig,
    dynamic_cluster: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    names: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """Describes this broker's configuration.

    Args:
        static, dynamic_cluster, dynamic_broker: the three levels.
        names: the keys asked for; None for all that are not internal. Unknown ones are left out.
    """
    effective = effective_broker_config(static, dynamic_cluster, dynamic_broker)
    levels = _Levels(static, dynamic_cluster, dynamic_broker)
    return [
        _described(key, effective[name], levels.synonyms(key), read_only=not key.dynamic)
        for name, key in BROKER_KEYS.items()
        if _wanted(key, names, static.explicit)
    ]


def describe_cluster_default_config(dynamic_cluster: Mapping[str, str]) -> list[DescribedConfig]:
    """Describes the cluster-wide dynamic defaults: only what has been set."""
    described = []
    for name, text in sorted(dynamic_cluster.items()):
        key = BROKER_KEYS.get(name)
        if key is not None:
            value = None if key.sensitive else text
            synonym = ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            described.append(_entry(key, value, (synonym,), read_only=False))
    return described


def describe_topic_config(
    static: NodeConfig,
    dynamic_cluster: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    topic_overrides: Mapping[str, str],
    names: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """Describes a topic's configuration as this broker applies it; arguments as above."""
    node_values = effective_broker_config(static, dynamic_cluster, dynamic_broker)
    effective = effective_topic_config(node_values, topic_overrides)
    levels = _Levels(static, dynamic_cluster, dynamic_broker)
    described: list[DescribedConfig] = []
    for name, key in TOPIC_KEYS.items():
        if not _wanted(key, names, topic_overrides):
            continue
        synonyms: list[ConfigSynonym] = []
        if name in topic_overrides:
            text = format_value(key, effective[name])
            synonyms.append(ConfigSynonym(name, text, ConfigSource.DYNAMIC_TOPIC_CONFIG))
        for synonym in key.synonyms:
            synonyms.extend(levels.of(BROKER_KEYS[synonym]))
        described.append(_described(key, effective[name], synonyms, read_only=False))
    return described


def describe_group_config(
    static: NodeConfig,
    dynamic_cluster: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    group_overrides: Mapping[str, str],
    names: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """Describes a group's configuration; arguments as above. What was written by another version
    and cannot be used here is shown as it is.
    """
    node_values = effective_broker_config(static, dynamic_cluster, dynamic_broker)
    levels = _Levels(static, dynamic_cluster, dynamic_broker)
    described: list[DescribedConfig] = []
    for name, key in GROUP_KEYS.items():
        if not _wanted(key, names, group_overrides):
            continue
        synonyms: list[ConfigSynonym] = []
        if name in group_overrides:
            synonyms.append(ConfigSynonym(name, group_overrides[name], ConfigSource.GROUP_CONFIG))
        for synonym in key.synonyms:
            synonyms.extend(levels.of(BROKER_KEYS[synonym]))
        text = group_overrides.get(name)
        if text is None:
            inherited = node_values[key.synonyms[0]] if key.synonyms else key.default_value
            text = format_value(key, inherited)
        described.append(_entry(key, text, tuple(synonyms), read_only=False))
    return described


class _Levels:
    """The levels a broker key can be set on, strongest first."""

    __slots__ = ("broker", "cluster", "static")

    def __init__(
        self, static: NodeConfig, cluster: Mapping[str, str], broker: Mapping[str, str]
    ) -> None:
        self.static = static
        self.cluster = cluster
        self.broker = broker

    def of(self, key: ConfigKey) -> list[ConfigSynonym]:
        """Every value given for exactly this key."""
        found = [
            ConfigSynonym(key.name, None if key.sensitive else texts[key.name], source)
            for texts, source in (
                (self.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static.explicit, ConfigSource.STATIC_BROKER_CONFIG),
            )
            if key.name in texts
        ]
        default = key.default_value
        if default is not None:
            text = None if key.sensitive else format_value(key, default)
            found.append(ConfigSynonym(key.name, text, ConfigSource.DEFAULT_CONFIG))
        return found

    def synonyms(self, key: ConfigKey) -> list[ConfigSynonym]:
        """The key's own values, then those of the keys that answer for it."""
        found = self.of(key)
        for synonym in key.synonyms:
            found.extend(self.of(BROKER_KEYS[synonym]))
        return found


def _described(
    key: ConfigKey, value: Any, synonyms: Collection[ConfigSynonym], *, read_only: bool
) -> DescribedConfig:
    text = None if key.sensitive else format_value(key, value)
    return _entry(key, text, tuple(synonyms), read_only=read_only)


def _entry(
    key: ConfigKey, text: str | None, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool
) -> DescribedConfig:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return DescribedConfig(
        key.name, text, source, read_only, key.sensitive, synonyms, key.type, key.documentation
    )


def _wanted(key: ConfigKey, names: Collection[str] | None, explicit: Mapping[str, str]) -> bool:
    if names is not None:
        return key.name in names
    return not key.internal or key.name in explicit
