"""What a changed key or trust store of a listener must fulfil before it is used (KIP-226, KIP-978).

How a node learns of a change is in `node.listener_changes`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from moldau.config import Endpoint, NodeConfig
from moldau.config.definition import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.listener_tls import ListenerContexts, listener_context
from moldau.runtime.authentication.tls import StoreContext, check_handshake, client_context
from moldau.server.authentication.certificates import first_certificate
from moldau.server.authentication.tls_settings import peer_tls_settings, tls_settings_of
from moldau.x509 import alternative_names, subject_name


def check_change(
    config: NodeConfig, endpoint: Endpoint, contexts: ListenerContexts, dynamic: Mapping[str, Any]
) -> None:
    """Try a listener's next settings. Blocks: reads key stores.

    Args:
        contexts: the listener's, as it is now.
        dynamic: typed values by `listener.name.LISTENER.KEY`.

    Raises:
        ConfigError: a store cannot be used, or must not be (`check_made`).
    """
    settings = tls_settings_of(config, endpoint, dynamic)
    if settings == contexts.settings:
        return
    try:
        check_made(config, endpoint, contexts, dynamic, listener_context(settings))
    except SecuritySettingError as error:
        raise ConfigError(f"listener {endpoint.listener_name}", None, str(error)) from None


def check_made(
    config: NodeConfig,
    endpoint: Endpoint,
    contexts: ListenerContexts,
    dynamic: Mapping[str, Any],
    made: StoreContext,
) -> None:
    """Try what a listener's next settings have made. Arguments as for `check_change`. Blocks.

    Raises:
        SecuritySettingError: the certificate has another subject, or lacks a name that the present
            one has, which ssl.allow.dn.changes and ssl.allow.san.changes forbid; or the
            inter-broker listener's certificate is not trusted by its own trust store.
    """
    name = endpoint.listener_name
    if name == config.inter_broker_listener_name:
        peers = peer_tls_settings(config, name, dynamic)
        if peers.trust.is_given:
            check_handshake(made, client_context(peers))
    before, after = first_certificate(contexts.last.chain), first_certificate(made.chain)
    if not config.listener_value(name, "ssl.allow.dn.changes"):
        old, new = subject_name(before), subject_name(after)
        if old != new:
            reason = f"the certificate's subject is {new!r}, and was {old!r}"
            raise SecuritySettingError(f"{reason} (ssl.allow.dn.changes=false)")
    if not config.listener_value(name, "ssl.allow.san.changes"):
        missing = alternative_names(before) - alternative_names(after)
        if missing:
            reason = f"the certificate lacks {len(missing)} alternative names that it had"
            raise SecuritySettingError(f"{reason} (ssl.allow.san.changes=false)")


def check_between_brokers(
    config: NodeConfig, context: ssl.SSLContext, dynamic: Mapping[str, Any]
) -> None:
    """Try whether brokers with these settings accept one another. Blocks: reads key stores.

    Args:
        context: of the inter-broker listener.
        dynamic: as in `check_change`.

    Raises:
        ConfigError: a store of connections to other brokers cannot be used, or does not trust the
            listener's certificate.
    """
    name = config.inter_broker_listener_name
    try:
        check_handshake(context, client_context(peer_tls_settings(config, name, dynamic)))
    except SecuritySettingError as error:
        raise ConfigError(f"listener {name}", None, str(error)) from None
