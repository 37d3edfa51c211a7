"""How a client's connections are secured; what the settings mean is in `credentials`.

Invariant: settings that cannot work are a `ConfigurationError` when the client is made, not a
failed connection later.
"""

from __future__ import annotations

import random
import ssl
from typing import TYPE_CHECKING, NamedTuple

from moldau.client.config.client import ClientConfig
from moldau.client.errors import ConfigurationError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.clock import Clock

if TYPE_CHECKING:
    from moldau.sasl.login import SaslLogin


class Security(NamedTuple):
    """How one client's connections are secured: without TLS no context, without SASL no login."""

    context: ssl.SSLContext | None = None
    login: SaslLogin | None = None


def security_of(config: ClientConfig, clock: Clock, source: random.Random) -> Security:
    """The TLS context and the login that the settings describe. Raises: ConfigurationError when
    settings contradict each other, one is missing, or a file cannot be used.
    """
    protocol = config.security_protocol
    if protocol == "PLAINTEXT":
        return Security()
    from moldau.client.cluster.credentials import sasl_login, tls_context

    try:
        context = tls_context(config) if protocol.endswith("SSL") else None
        login = sasl_login(config, clock, source) if "SASL" in protocol else None
    except SecuritySettingError as error:
        raise ConfigurationError(str(error)) from None
    return Security(context, login)
