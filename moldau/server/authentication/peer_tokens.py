"""The tokens with which a node logs in to other nodes, from its configuration.

Owns what may be asked and read, and for whom. Must not ask for a token. Invariant: settings that
cannot work are a `ConfigError` when the node starts, which names the listener and shows no secret.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

from moldau.config import NodeConfig
from moldau.config.backoff import Backoff
from moldau.config.definition import ConfigError, Password
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.token_sources import (
    FILE_KEYS,
    URL_KEY,
    refresh_rules,
    token_source,
)
from moldau.runtime.authentication.tokens import CachedTokens
from moldau.runtime.authentication.unsecured_tokens import PREFIX, has_unsecured
from moldau.runtime.clock import Clock
from moldau.server.authentication.bearer_tokens import (
    ALLOWED_FILES_KEY,
    MECHANISM,
    check_allowed,
    endpoint_context,
)
from moldau.server.authentication.listener_security import jaas_key

_LOG = logging.getLogger(__name__)


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
        if key == "sasl.oauthbearer.header.urlencode":
            return False  # a key of Apache Kafka's clients alone
        found = config.listener_value(listener_name, key, MECHANISM)
        return found.value if isinstance(found, Password) else found

    place = f"listener {listener_name}"
    url: str | None = value(URL_KEY)
    if url is not None:
        check_allowed(config, URL_KEY, url)
    elif has_unsecured(options):
        _LOG.warning("this node logs in to %s with unsecured tokens, as %s… says", place, PREFIX)
    else:
        reason = f"{place}: this node needs it, for tokens to log in to other nodes with"
        raise ConfigError(URL_KEY, None, reason)
    for key in FILE_KEYS:
        path: str | None = value(key)
        if path is not None and path not in config[ALLOWED_FILES_KEY]:
            raise ConfigError(key, path, f"is not allowed: {ALLOWED_FILES_KEY} must have it")
    try:
        source = token_source(
            value,
            options,
            clock,
            context=lambda: endpoint_context(
                url or "", options, jaas_key(listener_name, MECHANISM), place
            ),
            try_count=1,  # connections are tried again and again
        )
    except SecuritySettingError as error:
        raise ConfigError(place, None, str(error)) from None
    first_ms = value("sasl.login.retry.backoff.ms")
    most_ms = value("sasl.login.retry.backoff.max.ms")
    pauses = Backoff(max(first_ms, 1), max(most_ms, 1))
    return CachedTokens(source, clock, random.Random(), refresh_rules(value), pauses)
