"""The listener's side of OAUTHBEARER: how bearer tokens are checked, those of HTTP too.

Owns the meaning of the `sasl.oauthbearer.*` keys, and the check of signatures. Must not fetch keys
by itself. Invariants: a token is accepted only with a signature of a known public key, except where
the configuration asks for unsecured tokens in so many words; settings that cannot work are a
`ConfigError` when the node starts.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from moldau.config.definition import ConfigError
from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.clock import Clock
from moldau.sasl.mechanism import HANDLER_KEY, MechanismConfig, Offer
from moldau.sasl.oauthbearer.claims import (
    ClaimRules,
    TokenRefused,
    TokenUser,
    UnsecuredRules,
    check_claims,
    check_unsecured,
    json_object,
    sections_of,
)
from moldau.sasl.oauthbearer.exchanges import CheckToken, OAuthBearerServer
from moldau.sasl.oauthbearer.identity_provider import (
    PACKAGE,
    check_allowed,
    endpoint_context,
    file_of,
)
from moldau.sasl.oauthbearer.jwks import URL_KEY, EndpointSettings, KeyEndpoint, KeyFile, KeySource

_TIMES_KEYS: Final = (
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
)

MAX_HEADER_BYTES: Final = 8 * 1024

_SIGNED: Final = (
    f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
_UNSECURED: Final = (f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",)
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


def offer(config: MechanismConfig) -> Offer:
    """What a listener of Kafka's protocol accepts. Blocks: reads files. Raises: ConfigError."""
    handler, url, options = config.value(HANDLER_KEY), config.value(URL_KEY), config.options
    has_options = any(name.startswith(_UNSECURED_OPTIONS) for name in options)
    if handler in _UNSECURED or (handler is None and url is None and has_options):
        _LOG.warning(
            "%s accepts unsecured tokens: it believes whatever user a client names", config.place
        )
        check = unsecured_check(_unsecured_rules(options), config.clock)
        return Offer(partial(OAuthBearerServer, check))
    if handler is not None and handler not in _SIGNED:
        allowed = ", ".join((*_SIGNED, *_UNSECURED))
        raise ConfigError(HANDLER_KEY, handler, f"{config.place}: one of {allowed}")
    if url is None:
        raise ConfigError(
            URL_KEY,
            None,
            f"{config.place}: {config.mechanism} needs it, to check the signatures of tokens; "
            f"or {HANDLER_KEY}={_UNSECURED[0]}, to check none",
        )
    signed = signed_tokens(config, ("sasl.enabled.mechanisms", config.mechanism))
    return Offer(partial(OAuthBearerServer, signed), keys=signed.keys)


def signed_tokens(config: MechanismConfig, enabled_by: tuple[str, str]) -> SignedTokens:
    """What checks signed tokens. Blocks: reads files.

    Args:
        enabled_by: the key that asks for tokens, and what it says.

    Raises:
        ConfigError: the settings cannot work, or a package is missing.
    """
    for package in ("joserfc", "aiohttp"):
        if importlib.util.find_spec(package) is None:
            needs = f"{config.place}: needs the package {package}: pip install 'moldau[server]'"
            raise ConfigError(*enabled_by, needs)
    return SignedTokens(_key_source(config), ClaimRules.of(config.value), config.clock)


def _key_source(config: MechanismConfig) -> KeySource:
    url: str = config.value(URL_KEY)
    check_allowed(config, URL_KEY, url)
    path = file_of(url)
    if path is not None:
        try:
            return KeyFile(path)
        except SecuritySettingError as error:
            raise ConfigError(URL_KEY, url, str(error)) from None
    times_ms = [config.value(key) for key in _TIMES_KEYS]
    for key, time_ms in zip(_TIMES_KEYS, times_ms, strict=True):
        if time_ms < 1:
            raise ConfigError(key, str(time_ms), "must be at least 1")
    context = endpoint_context(config, url)
    refresh_ms, first_ms, most_ms = times_ms
    return KeyEndpoint(EndpointSettings(url, refresh_ms, first_ms, most_ms, context), config.clock)


def unsecured_check(rules: UnsecuredRules, clock: Clock) -> CheckToken:
    """Accepts what clients say of themselves (KIP-255), for development alone."""
    return lambda token: check_unsecured(token, rules, clock.now_ms())


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
