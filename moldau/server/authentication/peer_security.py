"""What a node shows other nodes, from its configuration: the client's side of a listener.

Owns the meaning of the keys. Must not open connections. Invariant: settings that cannot work are a
`ConfigError` when the node starts, which names the listener and shows no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError, Values
from moldau.config.listeners import SecurityProtocol
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.store_contexts import StoreContexts
from moldau.runtime.authentication.tls import check_handshake, client_context
from moldau.runtime.clock import Clock
from moldau.runtime.connector import PeerSecurity
from moldau.sasl.login import SaslLogin
from moldau.sasl.mechanism import login
from moldau.server.authentication.listener_security import ListenerSecurity, mechanism_config
from moldau.server.authentication.tls_settings import (
    IDENTIFICATION,
    NO_VALUES,
    peer_tls_settings,
)


def peer_security(
    config: NodeConfig,
    listener_name: str,
    mechanism_key: str,
    dynamic: Mapping[str, Any] = NO_VALUES,
    clock: Clock | None = None,
) -> PeerSecurity | None:
    """How this node speaks to a listener of other nodes; None for PLAINTEXT. Blocks: reads stores.

    Args:
        mechanism_key: `sasl.mechanism.inter.broker.protocol`, or that of controllers.
        dynamic: typed values of stores by `listener.name.LISTENER.KEY`.

    Raises:
        ConfigError: the settings cannot work.
    """
    protocol = config.listener_security_protocols[listener_name]
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    contexts = _contexts(config, listener_name, dynamic) if protocol.has_tls else None
    own = None
    if protocol.has_sasl:
        own = _login(config, listener_name, config[mechanism_key], clock)
    return PeerSecurity(listener_name, contexts, own)


def change_login(config: NodeConfig, peers: PeerSecurity, values: Values) -> None:
    """Renew what this node logs in with as the keys without a prefix say now."""
    name = peers.listener_name
    if peers.login is not None:
        mechanism = peers.login.mechanism
        peers.login.change(lambda key: config.listener_value(name, key, mechanism, values))


def check_own_certificate(own: ListenerSecurity | None, peers: PeerSecurity | None) -> None:
    """Refuse a node that would not connect to one like itself, as Apache Kafka's brokers do.

    Args:
        own: its listener.
        peers: its way to the same listener of other nodes.

    Raises:
        ConfigError: it would refuse its own certificate.
    """
    if own is None or peers is None or own.contexts is None or peers.contexts is None:
        return
    try:
        check_handshake(own.contexts.last, peers.contexts.last)
    except SecuritySettingError as error:
        raise ConfigError(f"listener {peers.listener_name}", None, str(error)) from None


def _contexts(config: NodeConfig, name: str, dynamic: Mapping[str, Any]) -> StoreContexts:
    algorithm: str = config.listener_value(name, IDENTIFICATION) or ""
    if algorithm.lower() not in ("https", ""):
        raise ConfigError(
            IDENTIFICATION, algorithm, f"listener {name}: https, or nothing to switch it off"
        )
    settings = peer_tls_settings(config, name, dynamic)
    try:
        return StoreContexts(
            partial(client_context, settings),
            (settings.own, settings.trust),
            f"this node as a client of listener {name}",
        )
    except SecuritySettingError as error:
        raise ConfigError(f"listener {name}", None, str(error)) from None


def _login(config: NodeConfig, name: str, mechanism: str, clock: Clock | None) -> SaslLogin:
    settings = mechanism_config(config, name, mechanism, clock)
    try:
        return login(settings)
    except SecuritySettingError as error:
        raise ConfigError(settings.jaas_key, None, str(error)) from None
