"""Finding keys: by name, by the nearest name, behind a listener prefix, among the removed ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from moldau.config.definition import ConfigKey
from moldau.config.keys import GROUP_AREA, NODE_AREAS, SERVED_KEYS, TOPIC_AREA
from moldau.config.rows import key_of_row, read_rows
from moldau.text import did_you_mean

_REMOVED: Final = "removed"

LISTENER_PREFIX: Final = "listener.name."
PLUGIN_PREFIXES: Final = ("rsm.config.", "rlmm.config.")


def _read_unserved_keys() -> tuple[dict[str, list[ConfigKey]], dict[str, dict[str, str]]]:
    """The keys that are not served, and what to do instead of the removed ones, both by area."""
    keys: dict[str, list[ConfigKey]] = {}
    removed: dict[str, dict[str, str]] = {}
    for row in read_rows("unserved_keys.tsv"):
        if row["status"] == _REMOVED:
            removed.setdefault(row["area"], {})[row["key"]] = row["reason"]
        else:
            keys.setdefault(row["area"], []).append(key_of_row(row))
    return keys, removed


_UNSERVED, _REMOVED_KEYS = _read_unserved_keys()


def keys_of_area(area: str) -> list[ConfigKey]:
    """Every key of an area, served or not, by name."""
    return sorted([*SERVED_KEYS.get(area, ()), *_UNSERVED.get(area, ())])


def _by_name(areas: Iterable[str]) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for area in areas for key in keys_of_area(area)})


BROKER_KEYS: Final = _by_name(NODE_AREAS)
TOPIC_KEYS: Final = _by_name((TOPIC_AREA,))
GROUP_KEYS: Final = _by_name((GROUP_AREA,))
"""What a group may override; the synonym of a key is the broker key behind it."""

LIMITED_GROUP_KEYS: Final = tuple(
    sorted(
        (found[1], found[2])
        for found in (re.fullmatch(r"group\.([a-z]+)\.min\.(.+)", name) for name in BROKER_KEYS)
        if found
    )
)
"""What a broker limits of each kind of group, by `group.KIND.min.SUFFIX` and `.max.SUFFIX`."""

REMOVED_KEYS: Final[Mapping[str, str]] = MappingProxyType(_REMOVED_KEYS["node"])
"""What to do instead of a node's key that Kafka has removed."""
REMOVED_TOPIC_KEYS: Final[Mapping[str, str]] = MappingProxyType(_REMOVED_KEYS[TOPIC_AREA])


def removed_answer(name: str) -> str | None:
    """What to do instead of a key that Kafka has removed, None for any other name."""
    if name.startswith("zookeeper.ssl."):
        name = "zookeeper.connect"
    return REMOVED_KEYS.get(name)


def find_broker_key(name: str) -> ConfigKey | None:
    """The declaration behind a broker key, also behind `listener.name.LISTENER.KEY`."""
    key = BROKER_KEYS.get(name)
    if key is None and name.startswith(LISTENER_PREFIX):
        key = BROKER_KEYS.get(listener_key_suffix(name))
    return key


ONLY_PER_MECHANISM_KEYS: Final = frozenset(
    {"sasl.jaas.config", "sasl.server.callback.handler.class"}
)
"""What has an effect behind `listener.name.LISTENER.MECHANISM.` alone."""

PER_MECHANISM_KEYS: Final = ONLY_PER_MECHANISM_KEYS | {
    "connections.max.reauth.ms",
    *(
        key.name
        for key in SERVED_KEYS["sasl"]
        if key.name.startswith(("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer."))
    ),
}
"""What `listener.name.LISTENER.MECHANISM.` may stand before."""

PER_LISTENER_KEYS: Final = frozenset(
    {
        "connections.max.reauth.ms",
        *(key.name for area in ("sasl", "tls") for key in SERVED_KEYS[area]),
    }
) - {"sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol"}
"""The served keys that have an effect behind `listener.name.LISTENER.`."""


def listener_key_suffix(name: str) -> str:
    """`ssl.client.auth` of `listener.name.outside.ssl.client.auth`.

    For SASL settings a mechanism may stand between: `listener.name.outside.plain.sasl.jaas.config`.
    """
    suffix = name[len(LISTENER_PREFIX) :].partition(".")[2]
    mechanism_suffix = suffix.partition(".")[2]
    is_of_mechanism = mechanism_suffix.startswith("sasl.") or mechanism_suffix in PER_MECHANISM_KEYS
    return mechanism_suffix if is_of_mechanism else suffix


def nearest_key(name: str, known: Mapping[str, ConfigKey]) -> str:
    """As `did_you_mean`, but very much alike: many keys have long parts in common."""
    return did_you_mean(name, known, likeness=0.8)
