"""The client's side of OAUTHBEARER: from its settings to tokens, for clients and nodes alike.

Owns what `sasl.oauthbearer.*` and `sasl.login.*` mean to the side that logs in, and that they fit
together. Must not ask for a token. Invariant: what cannot work is an error that names its key and
shows no secret.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from moldau.config.backoff import Backoff
from moldau.config.definition import ConfigError
from moldau.runtime.aside import Aside
from moldau.runtime.authentication import (
    AuthenticationError,
    LoginExpiration,
    SecuritySettingError,
)
from moldau.runtime.clock import Clock
from moldau.sasl.login import SaslLogin, Value
from moldau.sasl.mechanism import MechanismConfig
from moldau.sasl.oauthbearer.assertions import (
    FILE_KEY,
    KEY_FILE_KEY,
    TEMPLATE_KEY,
    Assertion,
    SignedAssertion,
    WatchedFile,
    jwt_text,
)
from moldau.sasl.oauthbearer.exchanges import OAuthBearerClient
from moldau.sasl.oauthbearer.identity_provider import (
    ALLOWED_FILES_KEY,
    PACKAGE,
    check_allowed,
    endpoint_context,
)
from moldau.sasl.oauthbearer.token_endpoint import (
    DEFAULT_HTTP_TIMEOUT_MS,
    TRY_COUNT,
    ClientAssertion,
    ClientSecret,
    Grant,
    JwtBearer,
    TokenEndpoint,
)
from moldau.sasl.oauthbearer.tokens import (
    CachedTokens,
    OAuthBearerToken,
    RefreshRules,
    TokenSource,
    expiration_of,
    from_function,
    token_of,
)
from moldau.sasl.oauthbearer.unsecured_tokens import PREFIX, UnsecuredLogin, has_unsecured

URL_KEY: Final = "sasl.oauthbearer.token.endpoint.url"
RETRIEVER_KEY: Final = "sasl.oauthbearer.jwt.retriever.class"
FILE_KEYS: Final = (FILE_KEY, KEY_FILE_KEY, TEMPLATE_KEY)
"""Keys that name files."""

DEFAULT_RETRIEVER: Final = f"{PACKAGE}.DefaultJwtRetriever"
_CREDENTIALS: Final = f"{PACKAGE}.ClientCredentialsJwtRetriever"
_FILE: Final = f"{PACKAGE}.FileJwtRetriever"
_JWT_BEARER: Final = f"{PACKAGE}.JwtBearerJwtRetriever"
RETRIEVERS: Final = (DEFAULT_RETRIEVER, _CREDENTIALS, _FILE, _JWT_BEARER)

_SCOPE_KEY: Final = "sasl.oauthbearer.scope"
_ID_KEY: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET_KEY: Final = "sasl.oauthbearer.client.credentials.client.secret"
_ISSUER_KEY: Final = "sasl.oauthbearer.assertion.claim.iss"

_LOG = logging.getLogger(__name__)


class TokenLogin(SaslLogin):
    """What this process logs in with: tokens that all its connections share."""

    mechanism = "OAUTHBEARER"

    def __init__(
        self,
        tokens: TokenSource,
        files: Sequence[WatchedFile[str]] = (),
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`files` have a token or an assertion that another program keeps up to date."""
        self.tokens = tokens
        self.context = context
        self._files = files

    def expirations(self) -> Sequence[LoginExpiration]:
        found = []
        for each in self._files:
            with suppress(AuthenticationError):
                found.append(expiration_of(each.place, each()))
        return [each for each in found if each is not None]

    async def prepare(self) -> None:
        await self.tokens()

    async def exchange(self, host: str) -> OAuthBearerClient:
        return OAuthBearerClient(await self.tokens())


def login(config: MechanismConfig) -> TokenLogin:
    value, clock, pauses = config.value, config.clock, None
    provider, url = value("sasl.oauthbearer.token.provider"), value(URL_KEY)
    if provider is not None and url is not None:
        raise SecuritySettingError(
            "sasl.oauthbearer.token.provider and sasl.oauthbearer.token.endpoint.url exclude each "
            "other"
        )
    if provider is not None:
        source = from_function(provider)
    elif config.place:
        source = _source_of_node(config)
        first_ms = max(value("sasl.login.retry.backoff.ms"), 1)
        pauses = Backoff(first_ms, max(value("sasl.login.retry.backoff.max.ms"), 1))
    else:
        if url is None and not has_unsecured(config.options):
            raise SecuritySettingError(
                "sasl.mechanism=OAUTHBEARER needs sasl_oauthbearer_token_provider (a function) or "
                "sasl.oauthbearer.token.endpoint.url"
            )
        assert config.context is not None, "a client has it"
        source = token_source(value, config.options, clock, context=config.context)
    tokens = CachedTokens(source, clock, config.dice, RefreshRules.of(value), pauses)
    context = source.context if isinstance(source, TokenEndpoint) else None
    return TokenLogin(tokens, _files(value, source), context)


def _files(value: Value, source: TokenSource) -> Sequence[WatchedFile[str]]:
    """What a source reads tokens or assertions from."""
    if isinstance(source, TokenFile):
        return (source.file,)
    path = value(FILE_KEY)
    is_read = path is not None and isinstance(source, TokenEndpoint)
    return (WatchedFile(FILE_KEY, path, jwt_text),) if is_read else ()


def _source_of_node(config: MechanismConfig) -> TokenSource:
    """Raises: ConfigError: also for what the node may not ask, or read."""
    place, options = config.place, config.options
    url: str | None = config.value(URL_KEY)
    if url is not None:
        check_allowed(config, URL_KEY, url)
    elif has_unsecured(options):
        _LOG.warning("this node logs in to %s with unsecured tokens, as %s… says", place, PREFIX)
    else:
        reason = f"{place}: this node needs it, for tokens to log in to other nodes with"
        raise ConfigError(URL_KEY, None, reason)
    for key in FILE_KEYS:
        path: str | None = config.value(key)
        if path is not None and path not in config.value(ALLOWED_FILES_KEY):
            raise ConfigError(key, path, f"is not allowed: {ALLOWED_FILES_KEY} must have it")
    try:
        return token_source(
            config.value,
            options,
            config.clock,
            context=lambda: endpoint_context(config, url or ""),
            try_count=1,  # connections are tried again and again
        )
    except SecuritySettingError as error:
        raise ConfigError(place, None, str(error)) from None


class TokenFile:
    """A token that another program keeps up to date in a file. Call it as a `TokenSource`."""

    def __init__(self, path: str) -> None:
        self.file = WatchedFile("token file", path, jwt_text)
        self._aside = Aside("moldau-token-file", DEFAULT_HTTP_TIMEOUT_MS)

    async def __call__(self) -> OAuthBearerToken:
        """Raises: AuthenticationError."""
        return token_of(await self._aside(self.file))


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
    """What cannot work is known when settings are read."""
    path = value(FILE_KEY)
    assertion: Assertion = (
        SignedAssertion(value, clock) if path is None else WatchedFile(FILE_KEY, path, jwt_text)
    )
    try:
        assertion()
    except AuthenticationError as error:
        raise SecuritySettingError(str(error)) from None
    return assertion
