"""A listener's TLS settings out of the keys that it reads: Kafka's `ssl.*`, or the like."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from moldau.config import Endpoint, NodeConfig
from moldau.config.definition import Password
from moldau.config.table import LISTENER_PREFIX
from moldau.runtime.authentication.listener_tls import ListenerTlsSettings
from moldau.runtime.authentication.store_directories import DIRECTORIES_KEY, StoreDirectories
from moldau.runtime.authentication.tls import Store, TlsSettings, store_of

_LOCATIONS: Final = ("ssl.keystore.location", "ssl.truststore.location")
IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
NO_VALUES: Final[Mapping[str, Any]] = {}


def tls_settings_of(
    config: NodeConfig, endpoint: Endpoint, dynamic: Mapping[str, Any]
) -> ListenerTlsSettings:
    """The settings of one of the node's listeners.

    Args:
        dynamic: typed values by `listener.name.LISTENER.KEY` that go before the configuration's.
    """
    name = endpoint.listener_name
    own_key = f"{LISTENER_PREFIX}{name.lower()}.ssl.client.auth"
    client_auth: str = config.listener_value(name, "ssl.client.auth")
    if endpoint.security_protocol.has_sasl and own_key not in config.explicit:
        # As in Kafka (KIP-684): only the listener's own key counts beside SASL.
        client_auth = "none"
    return _settings(config, name, dynamic, client_auth)


def peer_tls_settings(
    config: NodeConfig, listener_name: str, dynamic: Mapping[str, Any]
) -> TlsSettings:
    """The settings of connections to that listener of other nodes: its stores serve both sides.

    Args:
        dynamic: as in `tls_settings_of`.
    """
    own = _settings(config, listener_name, dynamic, "none")
    return replace(own, checks_hostname=bool(config.listener_value(listener_name, IDENTIFICATION)))


def _settings(
    config: NodeConfig, name: str, dynamic: Mapping[str, Any], client_auth: str
) -> ListenerTlsSettings:
    prefix = f"{LISTENER_PREFIX}{name.lower()}."

    def value(key: str) -> Any:
        own = prefix + key
        return dynamic[own] if own in dynamic else config.listener_value(name, key)

    def is_set(key: str) -> bool:
        return prefix + key in dynamic or config.is_set_for_listener(name, key)

    def directories(key: str) -> StoreDirectories | None:
        return store_directories(config) if prefix + key in dynamic else None

    return listener_tls_settings(value, is_set, client_auth=client_auth, directories=directories)


def store_directories(config: NodeConfig) -> StoreDirectories:
    """Where stores may lie that are set while the node runs: `moldau.ssl.store.directories`, else
    the directories of the stores that the node's own configuration names.
    """
    allowed: tuple[str, ...] = config[DIRECTORIES_KEY]
    if not allowed:
        files = [text for name, text in config.explicit.items() if name.endswith(_LOCATIONS)]
        own = (f(each.strip()) for each in files for f in (os.path.abspath, os.path.realpath))
        allowed = tuple(dict.fromkeys(map(os.path.dirname, own)))
    return StoreDirectories(allowed, (*config.log_directories, config.metadata_log_directory))


def listener_tls_settings(
    value: Callable[[str], Any],
    is_set: Callable[[str], bool],
    *,
    client_auth: str,
    prefix: str = "",
    directories: Callable[[str], StoreDirectories | None] = lambda _: None,
) -> ListenerTlsSettings:
    """The settings of one listener.

    Args:
        value, is_set: a key's typed value for this listener, and whether the configuration has it.
        client_auth: `ssl.client.auth` as it holds here.
        prefix: what stands before `ssl.` in the keys.
        directories: where the file of a location may be, by its key.
    """

    def text(key: str) -> str | None:
        if key.endswith(".type"):
            # Kafka's default is JKS, of which there is none here: the file shows what it is.
            return value(key).upper() if is_set(key) else None
        given: Password | str | None = value(key)
        return given.value if isinstance(given, Password) else given

    def store(name: str) -> Store:
        return store_of(prefix + name, text, directories(f"{prefix}{name}.location"))

    return ListenerTlsSettings(
        own=store("ssl.keystore"),
        trust=store("ssl.truststore"),
        key_password=text(prefix + "ssl.key.password"),
        client_auth=client_auth,
        protocol=value(prefix + "ssl.protocol"),
        enabled_protocols=value(prefix + "ssl.enabled.protocols"),
        cipher_suites=value(prefix + "ssl.cipher.suites"),
    )
