"""What a node may ask an identity provider for, or read in its place, and by which TLS."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

from moldau.config.definition import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.tls import (
    StoreContext,
    TlsSettings,
    client_context,
    store_of,
)
from moldau.sasl.mechanism import MechanismConfig

PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
"""Where Kafka has the classes that configurations name."""
ALLOWED_URLS_KEY: Final = "moldau.sasl.oauthbearer.allowed.urls"
ALLOWED_FILES_KEY: Final = "moldau.sasl.oauthbearer.allowed.files"


def file_of(url: str) -> str | None:
    """The path of a `file:` URL; None for others."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme.lower() == "file" else None


def check_allowed(config: MechanismConfig, key: str, url: str) -> None:
    """Refuse a URL, or the file that it names, which `moldau.sasl.oauthbearer.allowed.…` do not
    have. Raises: ConfigError.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme.lower() in ("http", "https", "file") and parts.username is None
    except ValueError:
        is_good = False
    if not is_good:
        # Not shown: it may have a password in it.
        raise ConfigError(key, None, "is no https:, http: or file: URL without a password")
    path = file_of(url)
    for allowed_key, found in ((ALLOWED_URLS_KEY, url), (ALLOWED_FILES_KEY, path)):
        if found is not None and found not in config.value(allowed_key):
            raise ConfigError(key, url, f"is not allowed: {allowed_key} must have it")


def endpoint_context(config: MechanismConfig, url: str) -> StoreContext | None:
    """TLS towards an identity provider, by the options of OAuthBearerLoginModule; None for http.
    Blocks: reads files. Raises: ConfigError.
    """
    if urlsplit(url).scheme.lower() != "https":
        return None
    trust = store_of("ssl.truststore", config.options.get)
    try:
        return client_context(TlsSettings(trust=trust))
    except SecuritySettingError as error:
        raise ConfigError(config.jaas_key, None, f"{config.place}: {error}") from None
