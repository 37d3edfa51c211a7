"""How one listener checks the tokens of OAUTHBEARER, from the node's configuration.

Owns the meaning of the `sasl.oauthbearer.*` keys, and the check of signatures. Must not fetch keys
by itself. Invariants: a token is accepted only with a signature of a known public key, except where
the configuration asks for unsecured tokens in so many words; settings that cannot work are a
`ConfigError` when the node starts.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from moldau.config import NodeConfig
from moldau.config.definition import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.jwks import (
    EndpointSettings,
    KeyEndpoint,
    KeyFile,
    KeySource,
    file_of,
)
from moldau.runtime.authentication.tls import Store, TlsSettings, client_context
from moldau.runtime.clock import Clock
from moldau.server.authentication.core.claims import (
    ClaimRules,
    TokenRefused,
    TokenUser,
    UnsecuredRules,
    check_claims,
    check_unsecured,
    json_object,
    sections_of,
)

MECHANISM: Final = "OAUTHBEARER"
HANDLER_KEY: Final = "sasl.server.callback.handler.class"
URL_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"
ALLOWED_URLS_KEY: Final = "moldau.sasl.oauthbearer.allowed.urls"
ALLOWED_FILES_KEY: Final = "moldau.sasl.oauthbearer.allowed.files"

_TIMES_KEYS: Final = (
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
)

MAX_TOKEN_LENGTH: Final = 64 * 1024
MAX_HEADER_BYTES: Final = 8 * 1024

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_SIGNED: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
_UNSECURED: Final = (
    f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
)
_UNSECURED_OPTIONS: Final = "unsecured"
"""What the options of OAuthBearerLoginModule that ask for unsecured tokens begin with."""

_LOG = logging.getLogger("moldau.server")


class SignedTokens:
    """Checks tokens that an identity provider has signed (KIP-768). Call it as a `CheckToken`."""

    def __init__(self, keys: KeySource, rules: ClaimRules, clock: Clock) -> None:
        self.keys = keys
        self._rules = rules
        self._clock = clock

    def __call__(self, token: str) -> TokenUser:
        if len(token) > MAX_TOKEN_LENGTH:
            raise TokenRefused(f"the token has more than {MAX_TOKEN_LENGTH} characters")
        header, payload, signature = sections_of(token)
        if len(header) > MAX_HEADER_BYTES:
            raise TokenRefused(f"the token's header has more than {MAX_HEADER_BYTES} bytes")
        self._check_signature(json_object(header, "header"), token, signature)
        return check_claims(json_object(payload, "claims"), self._rules, self._clock.now_ms())

    def _check_signature(self, header: Mapping[str, Any], token: str, signature: bytes) -> None:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
            raise TokenRefused("the token's header has no alg, or a kid that is no text")
        if "crit" in header:
            raise TokenRefused("the token has critical header parameters, which are not served")
        known = self.keys.keys()
        candidates = known.candidates(key_id, algorithm)
        if not candidates:
            if key_id is not None and all(key.key_id != key_id for key in known.keys):
                self.keys.is_missing(key_id)
            raise TokenRefused("no known key has the token's kid and alg")
        message = token.rpartition(".")[0].encode("ascii")
        if not any(key.verifies(algorithm, message, signature) for key in candidates):
            raise TokenRefused("the token's signature is wrong")


class UnsecuredTokens:
    """Accepts what clients say of themselves (KIP-255), for development alone."""

    def __init__(self, rules: UnsecuredRules, clock: Clock) -> None:
        self.keys = None
        self._rules = rules
        self._clock = clock

    def __call__(self, token: str) -> TokenUser:
        if len(token) > MAX_TOKEN_LENGTH:
            raise TokenRefused(f"the token has more than {MAX_TOKEN_LENGTH} characters")
        return check_unsecured(token, self._rules, self._clock.now_ms())


def token_check(
    config: NodeConfig, listener_name: str, options: Mapping[str, str], clock: Clock
) -> SignedTokens | UnsecuredTokens:
    """What checks a listener's tokens. Blocks: reads files.

    Args:
        options: of OAuthBearerLoginModule; empty without one.

    Raises:
        ConfigError: the settings cannot work.
    """

    def value(key: str) -> Any:
        return config.listener_value(listener_name, key, MECHANISM)

    handler, url = value(HANDLER_KEY), value(URL_KEY)
    has_options = any(name.startswith(_UNSECURED_OPTIONS) for name in options)
    if handler in _UNSECURED or (handler is None and url is None and has_options):
        _LOG.warning(
            "listener %s accepts unsecured tokens: it believes whatever user a client names",
            listener_name,
        )
        return UnsecuredTokens(_unsecured_rules(options), clock)
    if handler is not None and handler not in _SIGNED:
        allowed = ", ".join((*_SIGNED, *_UNSECURED))
        raise ConfigError(HANDLER_KEY, handler, f"listener {listener_name}: one of {allowed}")
    if url is None:
        raise ConfigError(
            URL_KEY,
            None,
            f"listener {listener_name}: {MECHANISM} needs it, to check the signatures of tokens; "
            f"or {HANDLER_KEY}={_UNSECURED[0]}, to check none",
        )
    _check_packages(listener_name)
    rules = ClaimRules(
        value("sasl.oauthbearer.expected.issuer"),
        value("sasl.oauthbearer.expected.audience"),
        value("sasl.oauthbearer.sub.claim.name"),
        value("sasl.oauthbearer.scope.claim.name"),
        max(0, value("sasl.oauthbearer.clock.skew.seconds")) * 1_000.0,
    )
    return SignedTokens(_key_source(config, listener_name, url, options, clock), rules, clock)


def _check_packages(listener_name: str) -> None:
    for package in ("joserfc", "aiohttp"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                "sasl.enabled.mechanisms",
                MECHANISM,
                f"listener {listener_name}: needs the package {package}: "
                "pip install 'moldau[server]'",
            )


def _key_source(
    config: NodeConfig, listener_name: str, url: str, options: Mapping[str, str], clock: Clock
) -> KeySource:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme.lower() in ("http", "https", "file") and parts.username is None
    except ValueError:
        is_good = False
    if not is_good:
        # Not shown: it may have a password in it.
        raise ConfigError(URL_KEY, None, "is no https:, http: or file: URL without a password")
    if url not in config[ALLOWED_URLS_KEY]:
        raise ConfigError(URL_KEY, url, f"is not allowed: {ALLOWED_URLS_KEY} must have it")
    path = file_of(url)
    if path is not None:
        if path not in config[ALLOWED_FILES_KEY]:
            raise ConfigError(URL_KEY, url, f"is not allowed: {ALLOWED_FILES_KEY} must have it")
        try:
            return KeyFile(path)
        except SecuritySettingError as error:
            raise ConfigError(URL_KEY, url, str(error)) from None
    times_ms = [config.listener_value(listener_name, key, MECHANISM) for key in _TIMES_KEYS]
    for key, time_ms in zip(_TIMES_KEYS, times_ms, strict=True):
        if time_ms < 1:
            raise ConfigError(key, str(time_ms), "must be at least 1")
    context = None
    if parts.scheme.lower() == "https":
        trust = Store(
            "ssl.truststore",
            options.get("ssl.truststore.location"),
            options.get("ssl.truststore.type"),
            options.get("ssl.truststore.password"),
            options.get("ssl.truststore.certificates"),
        )
        try:
            context = client_context(TlsSettings(trust=trust))
        except SecuritySettingError as error:
            reason = f"listener {listener_name}: {error}"
            raise ConfigError("sasl.jaas.config", None, reason) from None
    refresh_ms, first_ms, most_ms = times_ms
    return KeyEndpoint(EndpointSettings(url, refresh_ms, first_ms, most_ms, context), clock)


def _unsecured_rules(options: Mapping[str, str]) -> UnsecuredRules:
    def option(name: str, default: str) -> str:
        return options.get(f"unsecuredValidator{name}", "").strip() or default

    skew = option("AllowableClockSkewMs", "0")
    if not (skew.isascii() and skew.isdigit() and len(skew) < 10):
        raise ConfigError(
            "sasl.jaas.config", None, "unsecuredValidatorAllowableClockSkewMs is a number from 0"
        )
    return UnsecuredRules(
        option("PrincipalClaimName", "sub"),
        option("ScopeClaimName", "scope"),
        tuple(option("RequiredScope", "").split()),
        float(skew),
    )
