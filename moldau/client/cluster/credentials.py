"""From a client's settings to a TLS context and a SASL login.

Owns which keys of a client they are made of. Must not do the handshakes. Imported only by a client
that has settings of TLS or SASL.
"""

from __future__ import annotations

import random
import ssl
from functools import partial
from typing import Any

from moldau.client.config.client import ClientConfig
from moldau.client.errors import ConfigurationError
from moldau.config.mechanisms import MECHANISMS, NAMES
from moldau.runtime.authentication.tls import TlsSettings, client_context, store_of
from moldau.runtime.clock import Clock
from moldau.sasl.login import SaslLogin
from moldau.sasl.mechanism import MechanismConfig, login, login_module_of


def tls_context(config: ClientConfig) -> ssl.SSLContext:
    """Raises: ConfigurationError, SecuritySettingError"""
    if config.ssl_context is not None:
        return config.ssl_context
    algorithm = config.ssl_endpoint_identification_algorithm or ""
    if algorithm.lower() not in ("https", ""):
        raise ConfigurationError(
            f"ssl.endpoint.identification.algorithm={algorithm}: https, or nothing to switch it off"
        )
    value = partial(_value, config)
    return client_context(
        TlsSettings(
            trust=store_of("ssl.truststore", value),
            own=store_of("ssl.keystore", value),
            key_password=config.ssl_key_password,
            checks_hostname=bool(algorithm),
            enabled_protocols=config.ssl_enabled_protocols,
            cipher_suites=config.ssl_cipher_suites,
        )
    )


def sasl_login(config: ClientConfig, clock: Clock, source: random.Random) -> SaslLogin:
    """Raises: ConfigurationError, SecuritySettingError"""
    mechanism = config.sasl_mechanism
    if mechanism not in MECHANISMS:
        raise ConfigurationError(
            f"sasl.mechanism={mechanism} is not served; set it to one of: {NAMES}"
        )
    return login(
        MechanismConfig(
            mechanism,
            partial(_value, config),
            login_module_of(config.sasl_jaas_config, mechanism),
            clock,
            dice=source,
            context=partial(tls_context, config),
            is_named="sasl_mechanism" in config.given,
        )
    )


def _value(config: ClientConfig, key: str) -> Any:
    return getattr(config, key.replace(".", "_"), None)
