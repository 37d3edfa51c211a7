"""The tokens with which a node logs in to other nodes, from its configuration (KIP-768, KIP-1139).

Owns the meaning of the keys. Must not ask for a token. Invariant: settings that cannot work are a
`ConfigError` when the node starts, which names the listener and shows no secret.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from moldau.config import NodeConfig
from moldau.config.backoff import Backoff
from moldau.config.definition import ConfigError, Password
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.tokens import (
    DEFAULT_HTTP_TIMEOUT_MS,
    CachedTokens,
    RefreshRules,
    TokenEndpoint,
)
from moldau.runtime.clock import Clock
from moldau.server.authentication.bearer_tokens import MECHANISM, check_allowed, endpoint_context
from moldau.server.authentication.listener_security import jaas_key

URL_KEY: Final = "sasl.oauthbearer.token.endpoint.url"
_ID_KEY: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET_KEY: Final = "sasl.oauthbearer.client.credentials.client.secret"


def peer_tokens(
    config: NodeConfig, listener_name: str, options: Mapping[str, str], clock: Clock
) -> CachedTokens:
    """Gives the tokens for a listener of other nodes. Blocks: reads files.

    Args:
        options: of OAuthBearerLoginModule; empty without one.

    Raises:
        ConfigError: the settings cannot work.
    """

    def value(key: str) -> Any:
        return config.listener_value(listener_name, key, MECHANISM)

    place = f"listener {listener_name}"
    url: str | None = value(URL_KEY)
    if url is None:
        reason = f"{place}: this node needs it, for tokens to log in to other nodes with"
        raise ConfigError(URL_KEY, None, reason)
    check_allowed(config, URL_KEY, url)
    client_id = value(_ID_KEY) or options.get("clientId")
    secret: Password | None = value(_SECRET_KEY)
    timeouts_ms = value("sasl.login.connect.timeout.ms"), value("sasl.login.read.timeout.ms")
    first_ms = value("sasl.login.retry.backoff.ms")
    most_ms = value("sasl.login.retry.backoff.max.ms")
    context = endpoint_context(url, options, jaas_key(listener_name, MECHANISM), place)
    try:
        endpoint = TokenEndpoint(
            url,
            client_id,
            secret.value if secret is not None else options.get("clientSecret"),
            value("sasl.oauthbearer.scope") or options.get("scope"),
            timeout_ms=max((each for each in timeouts_ms if each), default=DEFAULT_HTTP_TIMEOUT_MS),
            context=context,
            try_count=1,  # connections are tried again and again
        )
    except SecuritySettingError as error:
        raise ConfigError(URL_KEY, None, f"{place}: {error}") from None
    rules = RefreshRules(
        value("sasl.login.refresh.window.factor"),
        value("sasl.login.refresh.window.jitter"),
        value("sasl.login.refresh.min.period.seconds"),
        value("sasl.login.refresh.buffer.seconds"),
    )
    pauses = Backoff(max(first_ms, 1), max(most_ms, 1))
    return CachedTokens(endpoint, clock, random.Random(), rules, pauses)
