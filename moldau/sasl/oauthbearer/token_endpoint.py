"""Token endpoints of identity providers, asked over HTTP (RFC 6749).

Owns the request and its grants: client credentials with a secret (KIP-768) or an assertion
(KIP-1258), and the JWT bearer grant (KIP-1139). Invariants: secrets and assertions go to the
endpoint's URL alone; a request keeps neither the event loop nor the end of the process waiting.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote_plus, urlencode

from moldau.config.backoff import Backoff
from moldau.runtime.aside import Aside
from moldau.runtime.authentication import AuthenticationError, LoginRefused, is_lasting_status
from moldau.sasl.oauthbearer.assertions import Assertion
from moldau.sasl.oauthbearer.tokens import OAuthBearerToken, token_of

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""What is read of a token endpoint's answer."""

DEFAULT_HTTP_TIMEOUT_MS: Final = 10_000
TRY_COUNT: Final = 5
"""Tries of one token before the connection's attempt fails."""

_CHUNK_BYTES: Final = 64 * 1024
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class TokenRequest(NamedTuple):
    """What a grant says to the endpoint: fields of the form, and an `Authorization`."""

    form: dict[str, str]
    authorization: str | None = None


Grant: TypeAlias = Callable[[], TokenRequest]
"""Gives the next request for a token; blocks. Raises: AuthenticationError."""


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """Client credentials, with an id and a secret in the header `Authorization`.

    Attributes:
        urlencodes: whether id and secret are URL-encoded before they are joined.
    """

    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    urlencodes: bool = False

    def __call__(self) -> TokenRequest:
        pair = [self.client_id.strip(), self.client_secret.strip()]
        if self.urlencodes:
            pair = [quote_plus(each) for each in pair]
        form = {"grant_type": "client_credentials", **_scope(self.scope)}
        return TokenRequest(form, "Basic " + b64encode(":".join(pair).encode()).decode())


@dataclass(frozen=True, slots=True)
class ClientAssertion:
    """Client credentials, with an assertion in place of a secret."""

    assertion: Assertion = field(repr=False)
    client_id: str | None = None
    scope: str | None = None

    def __call__(self) -> TokenRequest:
        form = {
            "client_assertion_type": _ASSERTION_TYPE,
            "client_assertion": self.assertion(),
            "grant_type": "client_credentials",
        }
        if self.client_id and self.client_id.strip():
            form["client_id"] = self.client_id
        return TokenRequest({**form, **_scope(self.scope)})


@dataclass(frozen=True, slots=True)
class JwtBearer:
    """The JWT bearer grant: the assertion itself is what a token is given for."""

    assertion: Assertion = field(repr=False)
    scope: str | None = None

    def __call__(self) -> TokenRequest:
        form = {"grant_type": _JWT_BEARER, "assertion": self.assertion()}
        return TokenRequest({**form, **_scope(self.scope)})


def _scope(scope: str | None) -> dict[str, str]:
    return {"scope": scope.strip()} if scope and scope.strip() else {}


@dataclass(eq=False, repr=False)
class TokenEndpoint:
    """A token endpoint. Call it as a `TokenSource`.

    Args:
        timeout_ms: for one request in all.
        context: for https; None for the system's authorities.
        try_count: tries before the endpoint's fault is the caller's.
    """

    url: str
    grant: Grant
    _: KW_ONLY
    timeout_ms: int = DEFAULT_HTTP_TIMEOUT_MS
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    context: ssl.SSLContext | None = None
    try_count: int = TRY_COUNT

    def __post_init__(self) -> None:
        self._aside = Aside("moldau-token-request", self.timeout_ms)

    async def __call__(self) -> OAuthBearerToken:
        """Request a token, beside the event loop. Faults that may pass are retried.

        Raises:
            LoginRefused: the endpoint answers, and trying again does not help.
            AuthenticationError: it cannot be reached, or is out of order.
        """
        pauses = Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)
        for left in reversed(range(self.try_count)):
            try:
                return await self._aside(self._ask)
            except OSError as error:
                if left and not _is_lasting(error):
                    await asyncio.sleep(pauses.next_ms() / 1000)
                    continue
                kind = LoginRefused if _is_lasting(error) else AuthenticationError
                reason = str(error) or f"no answer within {self.timeout_ms} ms"
                raise kind(f"token endpoint {self.url}: {reason}") from error
        raise AssertionError("the last try either returns or raises")

    def _ask(self) -> OAuthBearerToken:
        from http.client import HTTPException  # brings MIME along
        from urllib.error import HTTPError
        from urllib.request import Request

        from moldau.runtime.https import opener

        form, authorization = self.grant()
        headers = {"Accept": "application/json", "Cache-Control": "no-cache"}
        if authorization is not None:
            headers["Authorization"] = authorization
        request = Request(self.url, data=urlencode(form).encode(), headers=headers)
        timeout_s = self.timeout_ms / 1000
        end_s = time.monotonic() + timeout_s
        body = b""
        try:
            with opener(self.context).open(request, timeout=timeout_s) as response:
                while chunk := response.read1(_CHUNK_BYTES):
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES or time.monotonic() > end_s:
                        raise OSError("its answer is too long, in bytes or in time")
        except HTTPError as error:
            error.close()  # it is the answer, too, and has the connection
            raise
        except HTTPException as error:
            raise OSError(f"no HTTP: {type(error).__name__}") from None
        return token_of(self._token_in(body))

    def _token_in(self, body: bytes) -> str:
        try:
            told = json.loads(body)
        except ValueError:
            told = None
        for name in ("access_token", "id_token"):
            value = told.get(name) if isinstance(told, dict) else None
            if isinstance(value, str) and value.strip():
                return value
        raise LoginRefused(f"token endpoint {self.url}: no access_token in its answer")


def _is_lasting(error: OSError) -> bool:
    return is_lasting_status(getattr(error, "code", 0))
