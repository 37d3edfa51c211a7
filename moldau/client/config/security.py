"""Settings of TLS and SASL, which all clients share.

Owns the keys `security.protocol`, `ssl.*` and `sasl.*`; contexts and credentials are made from them
in `client.cluster.security`. Invariant: secrets are keys that are never shown.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeAlias, TypedDict

from moldau.client.config import keys
from moldau.client.config.settings import Settings
from moldau.runtime.authentication.tokens import OAuthBearerToken

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TokenProvider: TypeAlias = Callable[
    [], OAuthBearerToken | str | Awaitable[OAuthBearerToken] | Awaitable[str]
]
"""Gives a token each time one is needed: a plain or an async function, run on the event loop."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class SecuritySettings(TypedDict, total=False):
    """Keyword settings of TLS and SASL; times in the unit of their names."""

    security_protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    ssl_cipher_suites: Sequence[str] | str
    ssl_enabled_protocols: Sequence[str] | str
    ssl_endpoint_identification_algorithm: str | None
    ssl_key_password: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_type: str | None
    ssl_truststore_certificates: str | None
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_type: str | None
    sasl_mechanism: str
    sasl_jaas_config: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_refresh_buffer_seconds: int
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    sasl_oauthbearer_token_provider: TokenProvider | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool


class SecurityConfig(Settings):
    """How connections are secured (KIP-651 for PEM, KIP-768 and KIP-1139 for OAUTHBEARER).

    Two keys are ours: `ssl.context`, a ready `ssl.SSLContext` in place of all other `ssl.*`, and
    `sasl.oauthbearer.token.provider`. `sasl.username` and `sasl.password` stand for what Java
    users write into `sasl.jaas.config`, which is understood too. The type of a keystore is read
    off the file where it is not set.
    """

    security_protocol: SecurityProtocol = keys.choice("PLAINTEXT", *PROTOCOLS, any_case=True)
    ssl_context: ssl.SSLContext | None = keys.thing(
        lambda given: isinstance(given, ssl.SSLContext), "an ssl.SSLContext"
    )
    ssl_cipher_suites: tuple[str, ...] = keys.texts(())
    ssl_enabled_protocols: tuple[str, ...] = keys.texts(("TLSv1.2", "TLSv1.3"))
    ssl_endpoint_identification_algorithm: str | None = keys.text("https")
    ssl_key_password: str | None = keys.secret()
    ssl_keystore_certificate_chain: str | None = keys.secret()
    ssl_keystore_key: str | None = keys.secret()
    ssl_keystore_location: str | None = keys.text(None)
    ssl_keystore_password: str | None = keys.secret()
    ssl_keystore_type: str | None = keys.choice(None, "PEM", "PKCS12", "JKS", any_case=True)
    ssl_truststore_certificates: str | None = keys.secret()
    ssl_truststore_location: str | None = keys.text(None)
    ssl_truststore_password: str | None = keys.secret()
    ssl_truststore_type: str | None = keys.choice(None, "PEM", "PKCS12", "JKS", any_case=True)
    sasl_mechanism: str = keys.text("GSSAPI", empty=False)
    sasl_jaas_config: str | None = keys.secret()
    sasl_username: str | None = keys.text(None)
    sasl_password: str | None = keys.secret()
    sasl_login_connect_timeout_ms: int | None = keys.milliseconds(None)
    sasl_login_read_timeout_ms: int | None = keys.milliseconds(None)
    sasl_login_refresh_buffer_seconds: int = keys.integer(300, 0, 3600)
    sasl_login_refresh_min_period_seconds: int = keys.integer(60, 0, 900)
    sasl_login_refresh_window_factor: float = keys.real(0.8, 0.5, 1.0)
    sasl_login_refresh_window_jitter: float = keys.real(0.05, 0.0, 0.25)
    sasl_login_retry_backoff_ms: int = keys.long_milliseconds(100)
    sasl_login_retry_backoff_max_ms: int = keys.long_milliseconds(10_000)
    sasl_oauthbearer_token_provider: TokenProvider | None = keys.thing(
        callable, "a function without arguments that gives a token"
    )
    sasl_oauthbearer_token_endpoint_url: str | None = keys.text(None)
    sasl_oauthbearer_client_credentials_client_id: str | None = keys.text(None)
    sasl_oauthbearer_client_credentials_client_secret: str | None = keys.secret()
    sasl_oauthbearer_scope: str | None = keys.text(None)
    sasl_oauthbearer_header_urlencode: bool = keys.boolean(False)
