"""How one listener checks bearer tokens, from the node's configuration: OAUTHBEARER's, and HTTP's.

Owns the meaning of the `sasl.oauthbearer.*` keys, and the check of signatures. Must not fetch keys
by itself. Invariants: a token is accepted only with a signature of a known public key, except where
the configuration asks for unsecured tokens in so many words; settings that cannot work are a
`ConfigError` when the node starts.
"""

from __future__ import annotations

import importlib.util
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
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
from moldau.server.authentication.listener_security import jaas_entry_of

MECHANISM: Final = "OAUTHBEARER"
HTTP_PREFIX: Final = "moldau.http."
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

_LOG = logging.getLogger(__name__)


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


class _Place(NamedTuple):
    """Which listener's tokens are checked.

    Attributes:
        name: as errors have it.
        value: of a key `sasl.…`.
        options: of OAuthBearerLoginModule; empty without one.
        enabled_by: the key that asks for tokens, and what it says.
        jaas_key: where the options are.
    """

    name: str
    value: Callable[[str], Any]
    options: Mapping[str, str]
    enabled_by: tuple[str, str]
    jaas_key: str


def token_check(
    config: NodeConfig, listener_name: str, options: Mapping[str, str], clock: Clock
) -> SignedTokens | UnsecuredTokens:
    """What checks the tokens of a listener of Kafka's protocol. Blocks: reads files.

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
    enabled_by = ("sasl.enabled.mechanisms", MECHANISM)
    name = f"listener {listener_name}"
    return _signed(config, _Place(name, value, options, enabled_by, "sasl.jaas.config"), clock)


def http_token_check(config: NodeConfig, clock: Clock) -> SignedTokens:
    """What checks the tokens of the HTTP listener: by `moldau.http.sasl.…`, and what is not set
    there as on the other listeners. Blocks: reads files. Raises: ConfigError.
    """

    def value(key: str) -> Any:
        own = config[HTTP_PREFIX + key]
        return config[key] if own is None else own

    if value(URL_KEY) is None:
        reason = f"BEARER needs it, or {URL_KEY}, to check the signatures of tokens"
        raise ConfigError(HTTP_PREFIX + URL_KEY, None, reason)
    jaas_key = f"{HTTP_PREFIX}sasl.jaas.config"
    entry = jaas_entry_of(jaas_key, config[jaas_key], MECHANISM)
    options = {} if entry is None else entry.options
    enabled_by = ("moldau.http.authentication", "BEARER")
    return _signed(config, _Place("the HTTP listener", value, options, enabled_by, jaas_key), clock)


def _signed(config: NodeConfig, place: _Place, clock: Clock) -> SignedTokens:
    _check_packages(place)
    value = place.value
    rules = ClaimRules(
        value("sasl.oauthbearer.expected.issuer"),
        value("sasl.oauthbearer.expected.audience"),
        value("sasl.oauthbearer.sub.claim.name"),
        value("sasl.oauthbearer.scope.claim.name"),
        max(0, value("sasl.oauthbearer.clock.skew.seconds")) * 1_000.0,
    )
    return SignedTokens(_key_source(config, place, clock), rules, clock)


def _check_packages(place: _Place) -> None:
    for package in ("joserfc", "aiohttp"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                *place.enabled_by,
                f"{place.name}: needs the package {package}: pip install 'moldau[server]'",
            )


def _key_source(config: NodeConfig, place: _Place, clock: Clock) -> KeySource:
    url: str = place.value(URL_KEY)
    check_allowed(config, URL_KEY, url)
    path = file_of(url)
    if path is not None:
        try:
            return KeyFile(path)
        except SecuritySettingError as error:
            raise ConfigError(URL_KEY, url, str(error)) from None
    times_ms = [place.value(key) for key in _TIMES_KEYS]
    for key, time_ms in zip(_TIMES_KEYS, times_ms, strict=True):
        if time_ms < 1:
            raise ConfigError(key, str(time_ms), "must be at least 1")
    context = endpoint_context(url, place.options, place.jaas_key, place.name)
    refresh_ms, first_ms, most_ms = times_ms
    return KeyEndpoint(EndpointSettings(url, refresh_ms, first_ms, most_ms, context), clock)


def check_allowed(config: NodeConfig, key: str, url: str) -> None:
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
    if url not in config[ALLOWED_URLS_KEY]:
        raise ConfigError(key, url, f"is not allowed: {ALLOWED_URLS_KEY} must have it")
    path = file_of(url)
    if path is not None and path not in config[ALLOWED_FILES_KEY]:
        raise ConfigError(key, url, f"is not allowed: {ALLOWED_FILES_KEY} must have it")


def endpoint_context(
    url: str, options: Mapping[str, str], jaas_key: str, place: str
) -> ssl.SSLContext | None:
    """TLS towards an identity provider, by the options of OAuthBearerLoginModule; None for http.
    Blocks: reads files. Raises: ConfigError.
    """
    if urlsplit(url).scheme.lower() != "https":
        return None
    trust = Store(
        "ssl.truststore",
        options.get("ssl.truststore.location"),
        options.get("ssl.truststore.type"),
        options.get("ssl.truststore.password"),
        options.get("ssl.truststore.certificates"),
    )
    try:
        return client_context(TlsSettings(trust=trust))
    except SecuritySettingError as error:
        raise ConfigError(jaas_key, None, f"{place}: {error}") from None


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
