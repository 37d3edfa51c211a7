"""From a client's settings to a TLS context and SASL credentials.

Owns what the keys mean and that they fit together. Must not do the handshakes. Imported only by a
client that has settings of TLS or SASL.
"""

from __future__ import annotations

import random
import ssl
from typing import TYPE_CHECKING, Any, Final

from moldau.client.config.client import ClientConfig
from moldau.client.errors import ConfigurationError
from moldau.runtime.authentication.jaas import JaasEntry, parse_jaas
from moldau.runtime.authentication.sasl import MECHANISMS, PlainExchange, SaslCredentials
from moldau.runtime.authentication.tls import Store, TlsSettings, client_context
from moldau.runtime.authentication.token_sources import URL_KEY, refresh_rules, token_source
from moldau.runtime.authentication.tokens import CachedTokens, from_function
from moldau.runtime.authentication.unsecured_tokens import has_unsecured
from moldau.runtime.clock import Clock

if TYPE_CHECKING:
    from moldau.runtime.authentication.kerberos import KerberosLogin

_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
    "GSSAPI": "Krb5LoginModule",
}


def tls_context(config: ClientConfig) -> ssl.SSLContext:
    """Raises: ConfigurationError, SecuritySettingError"""
    if config.ssl_context is not None:
        return config.ssl_context
    algorithm = config.ssl_endpoint_identification_algorithm or ""
    if algorithm.lower() not in ("https", ""):
        raise ConfigurationError(
            f"ssl.endpoint.identification.algorithm={algorithm}: https, or nothing to switch it off"
        )
    return client_context(
        TlsSettings(
            trust=Store(
                "ssl.truststore",
                config.ssl_truststore_location,
                config.ssl_truststore_type,
                config.ssl_truststore_password,
                config.ssl_truststore_certificates,
            ),
            own=Store(
                "ssl.keystore",
                config.ssl_keystore_location,
                config.ssl_keystore_type,
                config.ssl_keystore_password,
                config.ssl_keystore_certificate_chain,
                config.ssl_keystore_key,
            ),
            key_password=config.ssl_key_password,
            checks_hostname=bool(algorithm),
            enabled_protocols=config.ssl_enabled_protocols,
            cipher_suites=config.ssl_cipher_suites,
        )
    )


def sasl_credentials(config: ClientConfig, clock: Clock, source: random.Random) -> SaslCredentials:
    """Raises: ConfigurationError, SecuritySettingError"""
    mechanism = config.sasl_mechanism
    if mechanism not in MECHANISMS:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism} is not served; set it to one of: {', '.join(MECHANISMS)}"
        )
    entry = None
    if config.sasl_jaas_config is not None:
        entry = parse_jaas(config.sasl_jaas_config)
        if entry.module != _MODULES[mechanism]:
            raise ConfigurationError(
                f"sasl.jaas.config names {entry.module}; sasl.mechanism={mechanism} needs "
                f"{_MODULES[mechanism]}"
            )
    if mechanism == "OAUTHBEARER":
        return SaslCredentials(mechanism, token_source=_tokens(config, entry, clock, source))
    if mechanism == "GSSAPI":
        return SaslCredentials(mechanism, kerberos=_kerberos_login(config, entry, clock))
    if entry is not None and (config.sasl_username is not None or config.sasl_password is not None):
        raise ConfigurationError(
            "sasl.jaas.config excludes sasl.username and sasl.password: give one or the other"
        )
    options = {} if entry is None else entry.options
    username = config.sasl_username if entry is None else options.get("username")
    password = config.sasl_password if entry is None else options.get("password")
    if not username or not password:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism} needs sasl.username and sasl.password, or a "
            "sasl.jaas.config with username and password"
        )
    if mechanism == "PLAIN":
        PlainExchange(username, password)
        return SaslCredentials(mechanism, username, password)
    has_token = options.get("tokenauth", "").lower() == "true"
    extensions = {"tokenauth": "true"} if has_token else {}
    return SaslCredentials(mechanism, username, password, scram_extensions=extensions)


def _tokens(
    config: ClientConfig, entry: JaasEntry | None, clock: Clock, source: random.Random
) -> CachedTokens:
    def value(key: str) -> Any:
        return getattr(config, key.replace(".", "_"))

    rules = refresh_rules(value)
    provider, url = config.sasl_oauthbearer_token_provider, value(URL_KEY)
    if provider is not None and url is not None:
        raise ConfigurationError(
            "sasl.oauthbearer.token.provider and sasl.oauthbearer.token.endpoint.url exclude each "
            "other"
        )
    if provider is not None:
        return CachedTokens(from_function(provider), clock, source, rules)
    options = {} if entry is None else entry.options
    if url is None and not has_unsecured(options):
        raise ConfigurationError(
            "sasl.mechanism=OAUTHBEARER needs sasl_oauthbearer_token_provider (a function) or "
            "sasl.oauthbearer.token.endpoint.url"
        )
    tokens = token_source(value, options, clock, context=lambda: tls_context(config))
    return CachedTokens(tokens, clock, source, rules)


def _kerberos_login(config: ClientConfig, entry: JaasEntry | None, clock: Clock) -> KerberosLogin:
    """With a keytab, or a ticket cache: that of kinit where nothing is said."""
    has_password = config.sasl_username is not None or config.sasl_password is not None
    options = {} if entry is None else dict(entry.options)
    if has_password or not (config.sasl_kerberos_service_name or options.get("serviceName")):
        default = "" if "sasl_mechanism" in config.given else ", Kafka's default,"
        problem = (
            "takes no sasl.username and sasl.password"
            if has_password
            else "needs sasl.kerberos.service.name: kafka, as a rule"
        )
        raise ConfigurationError(
            f"sasl.mechanism=GSSAPI{default} {problem}; for users with passwords set it to the "
            "mechanism of the listener, SCRAM-SHA-512 or PLAIN as a rule"
        )
    principal, keytab = config.sasl_kerberos_principal, config.sasl_kerberos_keytab
    if principal is not None or keytab is not None:
        if entry is not None:
            raise ConfigurationError(
                "sasl.jaas.config excludes sasl.kerberos.principal and sasl.kerberos.keytab: give "
                "one or the other"
            )
        if keytab is not None and principal is None:
            raise ConfigurationError("sasl.kerberos.keytab needs sasl.kerberos.principal")
        options = {"principal": principal or ""}
        if keytab is not None:
            options |= {"useKeyTab": "true", "keyTab": keytab}
    from moldau.runtime.authentication.kerberos import RenewalRules, login_of

    rules = RenewalRules(
        config.sasl_kerberos_ticket_renew_window_factor,
        config.sasl_kerberos_ticket_renew_jitter,
        float(config.sasl_kerberos_min_time_before_relogin),
    )
    return login_of(options, config.sasl_kerberos_service_name, clock, rules)
