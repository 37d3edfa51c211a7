"""From `sasl.oauthbearer.*` and `sasl.login.*` to what gives tokens, for clients and nodes alike.

Owns what the keys mean to the side that logs in, and that they fit together. Must not ask for a
token. Invariant: what cannot work is a `SecuritySettingError` that names its key and shows no
secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.authentication.aside import Aside
from moldau.runtime.authentication.assertions import (
    FILE_KEY,
    KEY_FILE_KEY,
    PASSPHRASE_KEY,
    TEMPLATE_KEY,
    Assertion,
    AssertionSettings,
    FileAssertion,
    SignedAssertion,
    WatchedFile,
    jwt_text,
)
from moldau.runtime.authentication.token_endpoint import (
    DEFAULT_HTTP_TIMEOUT_MS,
    TRY_COUNT,
    ClientAssertion,
    ClientSecret,
    Grant,
    JwtBearer,
    TokenEndpoint,
)
from moldau.runtime.authentication.tokens import (
    OAuthBearerToken,
    RefreshRules,
    TokenSource,
    token_of,
)
from moldau.runtime.authentication.unsecured_tokens import UnsecuredLogin, has_unsecured
from moldau.runtime.clock import Clock

URL_KEY: Final = "sasl.oauthbearer.token.endpoint.url"
RETRIEVER_KEY: Final = "sasl.oauthbearer.jwt.retriever.class"
FILE_KEYS: Final = (FILE_KEY, KEY_FILE_KEY, TEMPLATE_KEY)
"""Keys that name files."""

PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
DEFAULT_RETRIEVER: Final = f"{PACKAGE}.DefaultJwtRetriever"
_CREDENTIALS: Final = f"{PACKAGE}.ClientCredentialsJwtRetriever"
_FILE: Final = f"{PACKAGE}.FileJwtRetriever"
_JWT_BEARER: Final = f"{PACKAGE}.JwtBearerJwtRetriever"
RETRIEVERS: Final = (DEFAULT_RETRIEVER, _CREDENTIALS, _FILE, _JWT_BEARER)

_SCOPE_KEY: Final = "sasl.oauthbearer.scope"
_ID_KEY: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET_KEY: Final = "sasl.oauthbearer.client.credentials.client.secret"
_ISSUER_KEY: Final = "sasl.oauthbearer.assertion.claim.iss"
_CLAIM_KEYS: Final = {
    "aud": "sasl.oauthbearer.assertion.claim.aud",
    "iss": _ISSUER_KEY,
    "sub": "sasl.oauthbearer.assertion.claim.sub",
}

Value = Callable[[str], Any]
"""What a key of Kafka is set to; passwords as texts."""


class TokenFile:
    """A token that another program keeps up to date in a file. Call it as a `TokenSource`."""

    def __init__(self, path: str) -> None:
        self._file = WatchedFile("token file", path, jwt_text)
        self._aside = Aside("moldau-token-file", DEFAULT_HTTP_TIMEOUT_MS)

    async def __call__(self) -> OAuthBearerToken:
        """Raises: AuthenticationError."""
        return token_of(await self._aside(self._file))


def token_source(
    value: Value,
    options: Mapping[str, str],
    clock: Clock,
    *,
    context: Callable[[], ssl.SSLContext | None],
    try_count: int = TRY_COUNT,
) -> TokenSource:
    """What gives tokens. Blocks: reads keys.

    Args:
        options: of OAuthBearerLoginModule; empty without one.
        context: TLS towards the token endpoint.
        try_count: tries of one token before the connection's attempt fails.

    Raises:
        SecuritySettingError: the settings cannot work.
    """
    url, retriever = value(URL_KEY), value(RETRIEVER_KEY) or DEFAULT_RETRIEVER
    if retriever not in RETRIEVERS:
        raise SecuritySettingError(f"{RETRIEVER_KEY}={retriever}: one of {', '.join(RETRIEVERS)}")
    if url is None and has_unsecured(options):
        return UnsecuredLogin(options, clock)
    if url is None:
        raise SecuritySettingError(f"{URL_KEY} is needed, to get tokens from")
    scheme = urlsplit(url).scheme.lower()
    if scheme not in ("http", "https", "file"):
        raise SecuritySettingError(f"{URL_KEY}={url}: an https:, http: or file: URL")
    if (scheme == "file") is not (retriever == _FILE) and retriever != DEFAULT_RETRIEVER:
        raise SecuritySettingError(f"{URL_KEY}={url} does not fit {RETRIEVER_KEY}={retriever}")
    if scheme == "file":
        return TokenFile(unquote(urlsplit(url).path))
    timeouts_ms = value("sasl.login.connect.timeout.ms"), value("sasl.login.read.timeout.ms")
    return TokenEndpoint(
        url,
        _grant(value, options, clock, retriever),
        timeout_ms=max((each for each in timeouts_ms if each), default=DEFAULT_HTTP_TIMEOUT_MS),
        retry_backoff_ms=value("sasl.login.retry.backoff.ms"),
        retry_backoff_max_ms=value("sasl.login.retry.backoff.max.ms"),
        context=context() if scheme == "https" else None,
        try_count=try_count,
    )


def refresh_rules(value: Value) -> RefreshRules:
    """`sasl.login.refresh.*`."""
    return RefreshRules(
        value("sasl.login.refresh.window.factor"),
        value("sasl.login.refresh.window.jitter"),
        value("sasl.login.refresh.min.period.seconds"),
        value("sasl.login.refresh.buffer.seconds"),
    )


def _grant(value: Value, options: Mapping[str, str], clock: Clock, retriever: str) -> Grant:
    """As Apache Kafka prefers them: an assertion of a file, one that is signed here, a secret."""
    if retriever == _JWT_BEARER:
        return JwtBearer(_assertion(value, clock), value(_SCOPE_KEY))
    # Java users of older releases have id, secret and scope in the options (KIP-768).
    client_id = value(_ID_KEY) or options.get("clientId")
    scope = value(_SCOPE_KEY) or options.get("scope")
    if value(FILE_KEY) is not None or value(_ISSUER_KEY) is not None:
        return ClientAssertion(_assertion(value, clock), client_id, scope)
    secret = value(_SECRET_KEY) or options.get("clientSecret")
    if not (client_id and client_id.strip() and secret and secret.strip()):
        raise SecuritySettingError(
            f"{URL_KEY}: {_ID_KEY} and .client.secret are needed with it, or an assertion: "
            f"{FILE_KEY}, or {KEY_FILE_KEY} with {_ISSUER_KEY}"
        )
    return ClientSecret(client_id, secret, scope, bool(value("sasl.oauthbearer.header.urlencode")))


def _assertion(value: Value, clock: Clock) -> Assertion:
    path = value(FILE_KEY)
    if path is not None:
        return FileAssertion(path)
    key_file = value(KEY_FILE_KEY)
    if key_file is None:
        raise SecuritySettingError(f"{KEY_FILE_KEY} is needed, to sign assertions; or {FILE_KEY}")
    claims = {name: value(key) for name, key in _CLAIM_KEYS.items()}
    settings = AssertionSettings(
        value("sasl.oauthbearer.assertion.algorithm").upper(),
        key_file,
        value(PASSPHRASE_KEY),
        {name: claim for name, claim in claims.items() if claim is not None},
        value(TEMPLATE_KEY),
        value("sasl.oauthbearer.assertion.claim.exp.seconds"),
        value("sasl.oauthbearer.assertion.claim.nbf.seconds"),
        value("sasl.oauthbearer.assertion.claim.jti.include"),
    )
    return SignedAssertion(settings, clock)
