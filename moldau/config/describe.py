"""Configuration as a DescribeConfigs response has it (KIP-226, KIP-569); secrets are None."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import dropwhile
from typing import NamedTuple

from moldau.config.definition import ConfigKey, ConfigSource, ConfigType, Importance, Scope, Status
from moldau.config.dynamic_config import effective_broker_config
from moldau.config.node_config import NodeConfig
from moldau.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, find_broker_key
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
    described = [
        _described(
            key,
            effective[name],
            levels.of([key, *(BROKER_KEYS[each] for each in key.synonyms)]),
            read_only=not key.dynamic,
        )
        for name, key in BROKER_KEYS.items()
        if _wanted(key, names, static.explicit)
    ]
    given = {*dynamic_broker, *dynamic_cluster, *static.explicit}
    return described + [
        _unlisted(name, levels)
        for name in sorted(given.difference(BROKER_KEYS))
        if names is None or name in names
    ]


def describe_cluster_default_config(
    dynamic_cluster: Mapping[str, str], names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """Describes the cluster-wide dynamic defaults: only what has been set; arguments as above."""
    described = []
    for name, text in sorted(dynamic_cluster.items()):
        if names is not None and name not in names:
            continue
        key = BROKER_KEYS.get(name) or _unknown_key(name)
        value = None if key.sensitive else text
        synonym = ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        described.append(_entry(key, value, (synonym,), read_only=not key.dynamic))
    return described


def describe_topic_config(
    static: NodeConfig,
    dynamic_cluster: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    topic_overrides: Mapping[str, str],
    names: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """Describes a topic's configuration as this broker applies it; arguments as above. Keys that
    another version wrote and this one does not know are in it without their values.
    """
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
        synonyms.extend(levels.of([BROKER_KEYS[synonym] for synonym in key.synonyms]))
        described.append(_described(key, effective[name], synonyms, read_only=False))
    for name in sorted(topic_overrides.keys() - TOPIC_KEYS.keys()):
        if names is None or name in names:
            synonym = ConfigSynonym(name, None, ConfigSource.DYNAMIC_TOPIC_CONFIG)
            described.append(_entry(_unknown_key(name), None, (synonym,), read_only=False))
    return described


def describe_group_config(
    static: NodeConfig,
    dynamic_cluster: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    group_overrides: Mapping[str, str],
    names: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """Describes a group's configuration; arguments as above. A value that another version wrote and
    this one cannot use is shown as it is.
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
        # A key without a broker's key behind it has its own default.
        synonyms.extend(levels.of([BROKER_KEYS[synonym] for synonym in key.synonyms] or [key]))
        text = group_overrides.get(name)
        if text is None:
            inherited = node_values[key.synonyms[0]] if key.synonyms else key.default_value
            text = format_value(key, inherited)
        described.append(_entry(key, text, tuple(synonyms), read_only=False))
    return described


class _Levels(NamedTuple):
    """The levels a broker key can be set on, the strongest last."""

    static: NodeConfig
    cluster: Mapping[str, str]
    broker: Mapping[str, str]

    def of(self, keys: Sequence[ConfigKey]) -> list[ConfigSynonym]:
        """Every value given for these keys, level by level, beginning with the first one of the
        first key; nothing where only the other keys have values, as in Apache Kafka.
        """
        found: list[ConfigSynonym] = []
        for texts, source in (
            (self.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static.explicit, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            found += [
                ConfigSynonym(key.name, None if key.sensitive else texts[key.name], source)
                for key in keys
                if key.name in texts
            ]
        found += [
            ConfigSynonym(
                key.name,
                None if key.sensitive else format_value(key, key.default_value),
                ConfigSource.DEFAULT_CONFIG,
            )
            for key in keys
            if key.default_value is not None
        ]
        return list(dropwhile(lambda synonym: synonym.name != keys[0].name, found)) if keys else []


def _described(
    key: ConfigKey, value: object, synonyms: Collection[ConfigSynonym], *, read_only: bool
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


def _unlisted(name: str, levels: _Levels) -> DescribedConfig:
    """A key that is in no table: a key for one listener, or an unknown one."""
    base = find_broker_key(name)
    if base is None:
        key = _unknown_key(name)
        synonyms = levels.of([key])
    else:
        key = base._replace(name=name, default=None, documentation="")
        synonyms = levels.of([key, base])
    return _entry(key, synonyms[0].value, tuple(synonyms), read_only=True)


def _unknown_key(name: str) -> ConfigKey:
    """A key that is not declared: its value may be a secret, so it is never shown."""
    return ConfigKey(
        name,
        ConfigType.UNKNOWN,
        None,
        None,
        Importance.LOW,
        Scope.STATIC,
        documentation="",
        status=Status.IGNORED,
    )


def _wanted(key: ConfigKey, names: Collection[str] | None, explicit: Mapping[str, str]) -> bool:
    if key.internal and key.name not in explicit:
        return False
    return names is None or key.name in names
