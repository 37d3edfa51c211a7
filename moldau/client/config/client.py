"""Settings that every client has, those of the admin client, and addresses.

Owns the common keys, those of TLS and SASL among them, with the ranges and defaults of Kafka's Java
clients. Contexts and credentials are made from them in `client.cluster.credentials`. Invariants: an
existing configuration is usable as it is; what cannot be used is one clear error that names the
key; secrets are never shown.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, TypedDict, Unpack

from moldau.client.config import keys
from moldau.client.config.settings import Settings
from moldau.client.errors import ConfigurationError

if TYPE_CHECKING:
    from moldau.sasl.oauthbearer.tokens import OAuthBearerToken

DEFAULT_PORT: Final = 9092

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TokenProvider: TypeAlias = (
    "Callable[[], OAuthBearerToken | str | Awaitable[OAuthBearerToken] | Awaitable[str]]"
)
"""Returns a token each time one is needed: a plain or an async function, run on the event loop."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class ClientSettings(TypedDict, total=False):
    """Keyword settings of every client; times in milliseconds unless named otherwise."""

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
    sasl_kerberos_keytab: str | None
    sasl_kerberos_min_time_before_relogin: int
    sasl_kerberos_principal: str | None
    sasl_kerberos_service_name: str | None
    sasl_kerberos_ticket_renew_jitter: float
    sasl_kerberos_ticket_renew_window_factor: float
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_refresh_buffer_seconds: int
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_claim_aud: str | None
    sasl_oauthbearer_assertion_claim_exp_seconds: int
    sasl_oauthbearer_assertion_claim_iss: str | None
    sasl_oauthbearer_assertion_claim_jti_include: bool
    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    sasl_oauthbearer_assertion_claim_sub: str | None
    sasl_oauthbearer_assertion_file: str | None
    sasl_oauthbearer_assertion_private_key_file: str | None
    sasl_oauthbearer_assertion_private_key_passphrase: str | None
    sasl_oauthbearer_assertion_template_file: str | None
    sasl_oauthbearer_jwt_retriever_class: str
    sasl_oauthbearer_token_provider: TokenProvider | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool
    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    connections_max_idle_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    metadata_max_age_ms: int
    metadata_recovery_strategy: Literal["rebootstrap", "none"]
    metadata_recovery_rebootstrap_trigger_ms: int


class ClientConfig(Settings):
    """What every client needs; times in milliseconds unless named otherwise.

    Connections are secured as in KIP-651 for PEM, KIP-768, KIP-1139 and KIP-1258 for OAUTHBEARER.
    Two keys are ours: `ssl.context`, a ready `ssl.SSLContext` in place of all other `ssl.*`, and
    `sasl.oauthbearer.token.provider`. As with librdkafka, `sasl.username` and `sasl.password`, and
    `sasl.kerberos.principal` and `sasl.kerberos.keytab`, replace Java's `sasl.jaas.config`, which
    is understood too. The type of a keystore is read off the file where
    it is not set.

    Args:
        bootstrap_servers: `HOST:PORT,…` or a list of these.
        settings: the keys of Kafka's clients, with underscores instead of dots.

    Raises:
        ConfigurationError: an unknown name, with the nearest known one, or a bad value.
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
    sasl_kerberos_keytab: str | None = keys.text(None)
    sasl_kerberos_min_time_before_relogin: int = keys.long_milliseconds(60_000)
    sasl_kerberos_principal: str | None = keys.text(None)
    sasl_kerberos_service_name: str | None = keys.text(None)
    sasl_kerberos_ticket_renew_jitter: float = keys.real(0.05, 0.0, 1.0)
    sasl_kerberos_ticket_renew_window_factor: float = keys.real(0.8, 0.0, 1.0)
    sasl_login_connect_timeout_ms: int | None = keys.milliseconds(None)
    sasl_login_read_timeout_ms: int | None = keys.milliseconds(None)
    sasl_login_refresh_buffer_seconds: int = keys.integer(300, 0, 3600)
    sasl_login_refresh_min_period_seconds: int = keys.integer(60, 0, 900)
    sasl_login_refresh_window_factor: float = keys.real(0.8, 0.5, 1.0)
    sasl_login_refresh_window_jitter: float = keys.real(0.05, 0.0, 0.25)
    sasl_login_retry_backoff_ms: int = keys.long_milliseconds(100)
    sasl_login_retry_backoff_max_ms: int = keys.long_milliseconds(10_000)
    sasl_oauthbearer_assertion_algorithm: str = keys.choice(
        "RS256", "ES256", "RS256", any_case=True
    )
    sasl_oauthbearer_assertion_claim_aud: str | None = keys.text(None)
    sasl_oauthbearer_assertion_claim_exp_seconds: int = keys.integer(300, 0, 86_400)
    sasl_oauthbearer_assertion_claim_iss: str | None = keys.text(None)
    sasl_oauthbearer_assertion_claim_jti_include: bool = keys.boolean(False)
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = keys.integer(60, 0, 3_600)
    sasl_oauthbearer_assertion_claim_sub: str | None = keys.text(None)
    sasl_oauthbearer_assertion_file: str | None = keys.text(None)
    sasl_oauthbearer_assertion_private_key_file: str | None = keys.text(None)
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = keys.secret()
    sasl_oauthbearer_assertion_template_file: str | None = keys.text(None)
    sasl_oauthbearer_jwt_retriever_class: str = keys.text(
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"
    )
    sasl_oauthbearer_token_provider: TokenProvider | None = keys.thing(
        callable, "a function without arguments that gives a token"
    )
    sasl_oauthbearer_token_endpoint_url: str | None = keys.text(None)
    sasl_oauthbearer_client_credentials_client_id: str | None = keys.text(None)
    sasl_oauthbearer_client_credentials_client_secret: str | None = keys.secret()
    sasl_oauthbearer_scope: str | None = keys.text(None)
    sasl_oauthbearer_header_urlencode: bool = keys.boolean(False)
    bootstrap_servers: tuple[str, ...] = keys.texts(())
    client_id: str = keys.text("moldau")
    request_timeout_ms: int = keys.milliseconds(30_000)
    default_api_timeout_ms: int = keys.milliseconds(60_000)
    retry_backoff_ms: int = keys.long_milliseconds(100)
    retry_backoff_max_ms: int = keys.long_milliseconds(1_000)
    reconnect_backoff_ms: int = keys.long_milliseconds(50)
    reconnect_backoff_max_ms: int = keys.long_milliseconds(1_000)
    socket_connection_setup_timeout_ms: int = keys.long_milliseconds(10_000)
    socket_connection_setup_timeout_max_ms: int = keys.long_milliseconds(30_000)
    connections_max_idle_ms: int = keys.long_milliseconds(540_000, lowest=-(2**63))
    # Not Kafka's 128 and 32 or 64 KB: what the system chooses by itself is faster.
    send_buffer_bytes: int = keys.byte_count(-1, lowest=-1)
    receive_buffer_bytes: int = keys.byte_count(-1, lowest=-1)
    metadata_max_age_ms: int = keys.long_milliseconds(300_000)
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = keys.choice(
        "rebootstrap", "rebootstrap", "none", any_case=True
    )
    metadata_recovery_rebootstrap_trigger_ms: int = keys.long_milliseconds(300_000)

    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[ClientSettings]
    ) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    @property
    def addresses(self) -> Sequence[str]:
        """The nodes to ask first."""
        return self.bootstrap_servers

    @property
    def asks_controllers(self) -> bool:
        """Whether the addresses are those of controllers."""
        return False

    def _check(self) -> None:
        if not self.addresses:
            raise ConfigurationError("bootstrap.servers: at least one HOST:PORT is needed")
        for server in self.addresses:
            parse_address(server)
        # As in Java: the longest pause is at least the first one.
        self._settle(
            reconnect_backoff_max_ms=max(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms),
            retry_backoff_max_ms=max(self.retry_backoff_ms, self.retry_backoff_max_ms),
        )
        if "default_api_timeout_ms" not in self.given:
            # As in Java: a whole call has at least the time of one request.
            longer_ms = max(self.request_timeout_ms, self.default_api_timeout_ms)
            self._settle(default_api_timeout_ms=longer_ms)


class AdminSettings(ClientSettings, total=False):
    """Keyword settings of the admin client; times in milliseconds."""

    bootstrap_controllers: str | Sequence[str]
    retries: int


class AdminConfig(ClientConfig):
    """What the admin client needs: the addresses of brokers (`bootstrap_servers`) or of the
    cluster's controllers (`bootstrap_controllers`, KIP-919).
    """

    KIND: ClassVar[str] = "admin client"

    bootstrap_controllers: tuple[str, ...] = keys.texts(())
    connections_max_idle_ms: int = keys.long_milliseconds(300_000, lowest=-(2**63))
    retries: int = keys.integer(keys.MAX_INT, 0)

    def __init__(
        self, bootstrap_servers: str | Sequence[str] = (), **settings: Unpack[AdminSettings]
    ) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    @property
    def addresses(self) -> Sequence[str]:
        """The nodes to ask first: brokers, or controllers."""
        return self.bootstrap_servers or self.bootstrap_controllers

    @property
    def asks_controllers(self) -> bool:
        """Whether the addresses are those of controllers."""
        return bool(self.bootstrap_controllers)

    def _check(self) -> None:
        if self.bootstrap_servers and self.bootstrap_controllers:
            raise ConfigurationError(
                "bootstrap.servers and bootstrap.controllers exclude each other"
            )
        super()._check()


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `HOST` (port 9092) or `[IPV6]:PORT`. Raises:
    ConfigurationError when it is none of these.
    """
    problem = ConfigurationError(
        f"bootstrap.servers: {address!r} is not HOST:PORT with a port from 1 to 65535"
    )
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise problem
        port_text = rest[1:]
    else:
        host, _, port_text = address.partition(":")
    if not port_text and not address.endswith(":"):
        port_text = str(DEFAULT_PORT)
    if not host or not port_text.isascii() or not port_text.isdigit():
        raise problem
    port = int(port_text)
    if not 1 <= port <= 65_535:
        raise problem
    try:
        host.encode("idna")
    except UnicodeError:
        raise problem from None
    return host, port
