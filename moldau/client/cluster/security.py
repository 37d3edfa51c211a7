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
    from moldau.runtime.authentication.sasl import SaslCredentials, Send


class Security(NamedTuple):
    """How one client's connections are secured: without TLS no context, without SASL no
    credentials.
    """

    context: ssl.SSLContext | None = None
    credentials: SaslCredentials | None = None

    async def authenticate(self, send: Send, peer: str) -> int:
        from moldau.runtime.authentication.sasl import authenticate

        assert self.credentials is not None
        return await authenticate(send, self.credentials, peer)


def security_of(config: ClientConfig, clock: Clock, source: random.Random) -> Security:
    """The TLS context and the credentials that the settings describe. Raises: ConfigurationError
    when settings contradict each other, one is missing, or a file cannot be used.
    """
    protocol = config.security_protocol
    if protocol == "PLAINTEXT":
        return Security()
    from moldau.client.cluster.credentials import sasl_credentials, tls_context

    try:
        context = tls_context(config) if protocol.endswith("SSL") else None
        credentials = sasl_credentials(config, clock, source) if "SASL" in protocol else None
    except SecuritySettingError as error:
        raise ConfigurationError(str(error)) from None
    return Security(context, credentials)
