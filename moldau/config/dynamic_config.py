"""Dynamic broker configuration: which keys may change at which level, and the values that result
(KIP-226).

`node.settings` applies them to a running broker. Precedence: this broker's dynamic value, the
cluster's dynamic default, the static configuration, the table's default.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from moldau.config.definition import HIDDEN, ConfigError, Scope, Status, Values
from moldau.config.table import (
    BROKER_KEYS,
    LISTENER_PREFIX,
    PER_LISTENER_KEYS,
    TOPIC_KEYS,
    find_broker_key,
    nearest_key,
    removed_answer,
)
from moldau.config.values import accept_value, shown

CHANGED_PER_LISTENER: Final = frozenset(
    name for name in PER_LISTENER_KEYS if name.startswith(("ssl.key", "ssl.truststore."))
)
"""Keys that a broker changes at run time for one listener, and only behind its prefix (KIP-226)."""

STORE_LOCATIONS: Final = frozenset({"ssl.keystore.location", "ssl.truststore.location"})

LISTENER_KEYS_OF_ALL_BROKERS: Final = frozenset(
    {"max.connection.creation.rate", "max.connections", "num.network.threads"}
)
"""What may stand behind `listener.name.LISTENER.` in the cluster's default."""
_OF_LISTENER: Final = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)

TICKET_RENEWAL_KEYS: Final = frozenset(
    {
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
    }
)
"""Keys that a broker changes at run time for its own Kerberos logins, for all listeners at once."""

NOT_AT_RUN_TIME: Final = frozenset(
    {
        "config.providers",
        "listeners",
        "listener.security.protocol.map",
        "sasl.mechanism.inter.broker.protocol",
    }
    | {
        name
        for name in PER_LISTENER_KEYS - CHANGED_PER_LISTENER - TICKET_RENEWAL_KEYS
        if BROKER_KEYS[name].dynamic
    }
)
"""Keys that Kafka changes at run time, and that this node reads only when it starts so far. Those
of SASL change no open listener in Kafka either: they are for listeners that it opens later.
"""

MAX_WARNINGS: Final = 20


def validate_dynamic_broker_config(
    name: str, text: str, *, cluster_default: bool = False
) -> str | None:
    """Checks one dynamic change; an error becomes INVALID_CONFIG or INVALID_REQUEST.

    Args:
        cluster_default: whether it is to become the default of all brokers (resource name "").

    Returns:
        A warning when the key is accepted without effect, else None. Unknown keys are accepted
        without effect: as in Apache Kafka they may belong to another release or to a plug-in.

    Raises:
        ConfigError: static key, wrong level, or a bad value.
    """
    key = find_broker_key(name)
    of_listener = _OF_LISTENER.fullmatch(name)
    if cluster_default and of_listener and of_listener[1] not in LISTENER_KEYS_OF_ALL_BROKERS:
        hidden = HIDDEN if key is None else shown(key, text)
        raise ConfigError(name, hidden, "can only be set per broker, not as cluster default")
    if key is None:
        return f"{name} has no effect: it is not a broker configuration"
    if not key.dynamic or key.name in NOT_AT_RUN_TIME:
        raise ConfigError(name, shown(key, text), "cannot be changed while the broker runs")
    if key.name in TICKET_RENEWAL_KEYS and name != key.name:
        reason = f"cannot be changed while the broker runs but for all listeners, as {key.name}"
        raise ConfigError(name, shown(key, text), reason)
    if key.name in CHANGED_PER_LISTENER and not name.startswith(LISTENER_PREFIX):
        reason = f"can only be changed for one listener, as {LISTENER_PREFIX}LISTENER.{name}"
        raise ConfigError(name, shown(key, text), reason)
    if cluster_default and key.scope is Scope.BROKER:
        raise ConfigError(
            name, shown(key, text), "can only be set per broker, not as cluster default"
        )
    value = accept_value(key._replace(name=name), text)
    if key.name in STORE_LOCATIONS and "\0" in text:
        raise ConfigError(name, text, "must be a path, and no path has a NUL character")
    _check_between_keys(name, value)
    if key.status is Status.IGNORED and value != key.default:
        return f"{name} has no effect: {key.note}"
    return None


def effective_broker_config(
    static: Values, dynamic_cluster: Mapping[str, str], dynamic_broker: Mapping[str, str]
) -> dict[str, Any]:
    """Typed values of every broker key after the dynamic ones are applied.

    Stored values that this version cannot use are left out, and so are unknown keys.
    """
    values = {name: static[name] for name in BROKER_KEYS}
    for dynamic, is_default in ((dynamic_cluster, True), (dynamic_broker, False)):
        for name, text in dynamic.items():
            key = BROKER_KEYS.get(name)
            if key is not None:
                with contextlib.suppress(ConfigError):
                    validate_dynamic_broker_config(name, text, cluster_default=is_default)
                    values[name] = accept_value(key, text)
    return values


def dynamic_listener_values(dynamic_broker: Mapping[str, str]) -> dict[str, Any]:
    """Typed values of the keys that hold for one listener, by `listener.name.LISTENER.KEY`; those
    that this version cannot use are left out.
    """
    values: dict[str, Any] = {}
    for name, text in dynamic_broker.items():
        if changes_listener(name):
            key = find_broker_key(name)
            assert key is not None, "it is one of them"
            with contextlib.suppress(ConfigError):
                values[name] = accept_value(key._replace(name=name), text)
    return values


def changes_listener(name: str) -> bool:
    """Whether it is a key by which a broker changes one listener at run time."""
    key = find_broker_key(name) if name.startswith(LISTENER_PREFIX) else None
    return key is not None and key.name in CHANGED_PER_LISTENER


def dynamic_config_warnings(
    dynamic_cluster: Mapping[str, str], dynamic_broker: Mapping[str, str]
) -> Iterator[str]:
    """One line for each of the first MAX_WARNINGS stored values that have no effect on this broker,
    and why.
    """
    warnings = _dynamic_config_warnings(dynamic_cluster, dynamic_broker)
    yield from islice(warnings, MAX_WARNINGS)
    if next(warnings, None) is not None:
        yield f"and others: only the first {MAX_WARNINGS} values without effect are told"


def _dynamic_config_warnings(
    dynamic_cluster: Mapping[str, str], dynamic_broker: Mapping[str, str]
) -> Iterator[str]:
    for dynamic, is_default in ((dynamic_cluster, True), (dynamic_broker, False)):
        for name, text in dynamic.items():
            try:
                warning = validate_dynamic_broker_config(name, text, cluster_default=is_default)
            except ConfigError as error:
                warning = f"{error}; it has no effect"
            if warning is not None:
                yield warning if find_broker_key(name) else warning + _hint(name)


def _hint(name: str) -> str:
    removed = removed_answer(name)
    if removed is not None:
        return f"; it was removed from Kafka: {removed}"
    return nearest_key(name, BROKER_KEYS)


def _check_between_keys(name: str, value: object) -> None:
    if name == "log.retention.ms" and isinstance(value, int) and value != -1 and value < 1:
        raise ConfigError(name, str(value), "must be at least 1, or -1 for no limit")
    for key in TOPIC_KEYS.values():
        # The limits of a topic's key hold for its default too. Of the broker keys behind it, only
        # the first has the same unit.
        validator = key.validator if key.synonyms[:1] == (name,) else None
        if validator is not None and value is not None and not validator.accepts(value):
            raise ConfigError(name, str(value), f"must be {validator.limits}")
