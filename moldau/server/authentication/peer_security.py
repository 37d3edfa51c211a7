"""What a node shows other nodes, from its configuration: the client's side of a listener.

Owns the meaning of the keys. Must not open connections. Invariant: settings that cannot work are a
`ConfigError` when the node starts, which names the listener and shows no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError, Values
from moldau.config.listeners import SecurityProtocol
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.jaas import JaasEntry
from moldau.runtime.authentication.sasl import PlainExchange, SaslCredentials
from moldau.runtime.authentication.store_contexts import StoreContexts
from moldau.runtime.authentication.tls import check_handshake, client_context
from moldau.runtime.clock import Clock, SystemClock
from moldau.runtime.connector import PeerSecurity
from moldau.server.authentication.listener_security import (
    ListenerSecurity,
    jaas_entry,
    jaas_key,
)
from moldau.server.authentication.tls_settings import (
    IDENTIFICATION,
    NO_VALUES,
    peer_tls_settings,
)

if TYPE_CHECKING:
    from moldau.runtime.authentication.kerberos import KerberosLogin, RenewalRules


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
    credentials = None
    if protocol.has_sasl:
        mechanism = config[mechanism_key]
        credentials = _credentials(config, listener_name, mechanism, clock or SystemClock())
    return PeerSecurity(listener_name, contexts, credentials)


def change_ticket_renewal(config: NodeConfig, peers: PeerSecurity, values: Values) -> None:
    """Renew this node's Kerberos tickets as the keys without a prefix say now."""
    login = None if peers.credentials is None else peers.credentials.kerberos
    if login is not None:
        login.change_rules(_renewal_rules(config, peers.listener_name, values))


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


def _credentials(config: NodeConfig, name: str, mechanism: str, clock: Clock) -> SaslCredentials:
    entry = jaas_entry(config, name, mechanism)
    options = {} if entry is None else entry.options
    if mechanism == "OAUTHBEARER":
        from moldau.server.authentication.peer_tokens import peer_tokens

        return SaslCredentials(mechanism, token_source=peer_tokens(config, name, options, clock))
    if mechanism == "GSSAPI":
        return SaslCredentials(mechanism, kerberos=_kerberos_login(config, name, entry, clock))
    username, password = options.get("username", ""), options.get("password", "")
    if not (username and password):
        raise ConfigError(
            jaas_key(name, mechanism),
            None,
            "needs username and password, with which this node logs in to the others",
        )
    if mechanism == "PLAIN":
        try:
            PlainExchange(username, password)
        except SecuritySettingError as error:
            raise ConfigError(jaas_key(name, mechanism), None, str(error)) from None
    return SaslCredentials(mechanism, username, password)


def _kerberos_login(
    config: NodeConfig, name: str, entry: JaasEntry | None, clock: Clock
) -> KerberosLogin:
    from moldau.runtime.authentication.kerberos import EXAMPLE, login_of

    key = jaas_key(name, "GSSAPI")
    if entry is None:
        raise ConfigError(key, None, f"is needed, for this node to log in to the others: {EXAMPLE}")
    service_name = config.listener_value(name, "sasl.kerberos.service.name", "GSSAPI")
    try:
        return login_of(entry.options, service_name, clock, _renewal_rules(config, name, config))
    except SecuritySettingError as error:
        raise ConfigError(key, None, str(error)) from None


def _renewal_rules(config: NodeConfig, name: str, values: Values) -> RenewalRules:
    from moldau.runtime.authentication.kerberos import RenewalRules

    def value(key: str) -> Any:
        return config.listener_value(name, key, "GSSAPI", values)

    return RenewalRules(
        value("sasl.kerberos.ticket.renew.window.factor"),
        value("sasl.kerberos.ticket.renew.jitter"),
        float(value("sasl.kerberos.min.time.before.relogin")),
    )
