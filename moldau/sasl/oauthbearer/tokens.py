"""The OAUTHBEARER token of a client, or of a node as one, that all its connections share.

Where tokens come from is in `token_endpoint` and `assertions`, but for the user's function; how a
listener checks one at login is in `listener` and `claims`. Invariants: a token
is not used after it has expired, and no other one is requested before `window_factor`
(`sasl.login.refresh.window.factor`) of its lifetime is over; one request is under way at a time,
however many connections wait for it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from moldau.config.backoff import Backoff
from moldau.config.settings import KeyedSettings, of_key
from moldau.runtime.authentication import AuthenticationError, LoginExpiration
from moldau.runtime.clock import Clock
from moldau.runtime.shared_work import outcome_of

RENEWAL_PATIENCE_S: Final = 2.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OAuthBearerToken:
    """A token (KIP-255).

    Attributes:
        value: as the broker gets it, "a.b.c" for a JWT.
        expires_at_ms: in ms since 1970; None when unknown. For a JWT that is given as text it is
            read off the token.
        extensions: further SASL extensions by name (KIP-342).
    """

    value: str = field(repr=False)
    expires_at_ms: float | None = None
    extensions: tuple[tuple[str, str], ...] = ()


TokenSource: TypeAlias = Callable[[], Awaitable[OAuthBearerToken]]


@dataclass(frozen=True, slots=True)
class RefreshRules(KeyedSettings):
    """`sasl.login.refresh.*`: when a token counts as used up."""

    window_factor: float = of_key("sasl.login.refresh.window.factor")
    window_jitter: float = of_key("sasl.login.refresh.window.jitter")
    min_period_seconds: int = of_key("sasl.login.refresh.min.period.seconds")
    buffer_seconds: int = of_key("sasl.login.refresh.buffer.seconds")


@dataclass(eq=False, repr=False)
class CachedTokens:
    """Gives the same token until it is time for another. Call it as a `TokenSource`.

    While the old token is good, logins wait `RENEWAL_PATIENCE_S` for a new one and then use the old
    one: a token endpoint may be down for a while.

    Args:
        pauses: after a failure, how long further logins fail with the same error before the source
            is asked again; None for not at all.
    """

    _source: TokenSource
    _clock: Clock
    _random: random.Random
    _rules: RefreshRules
    _pauses: Backoff | None = None
    _token: OAuthBearerToken | None = None
    #: When another token is asked for: by the wall clock, as tokens' ends are.
    _until_ms: float = 0.0
    _renewal: asyncio.Task[OAuthBearerToken] | None = None
    _failure: BaseException | None = None
    #: Until then no source is asked that has just failed: by the clock that never goes back.
    _paused_until_ms: float = 0.0

    async def __call__(self) -> OAuthBearerToken:
        token, now_ms = self._token, self._clock.now_ms()
        if token is not None and now_ms < self._until_ms:
            return token
        end_ms = None if token is None else token.expires_at_ms
        left_ms = 0.0 if end_ms is None else end_ms - now_ms
        if self._failure is not None and self._clock.monotonic_ms() < self._paused_until_ms:
            if token is not None and left_ms > 0:
                return token
            raise AuthenticationError(str(self._failure))
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._ask())
            self._renewal.add_done_callback(self._renewed)
        renewal = self._renewal
        if token is None or left_ms <= 0:
            return await outcome_of(renewal)
        await asyncio.wait((renewal,), timeout=min(RENEWAL_PATIENCE_S, left_ms / 4_000))
        return self._token or token

    async def _ask(self) -> OAuthBearerToken:
        token = await self._source()
        self._until_ms = self._refresh_at_ms(token)
        self._token = token
        return token

    def _renewed(self, task: asyncio.Task[OAuthBearerToken]) -> None:
        self._renewal = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._failure = None
            if self._pauses is not None:
                self._pauses.reset()
            return
        token, now_ms = self._token, self._clock.now_ms()
        end_ms = 0.0 if token is None else token.expires_at_ms or 0.0
        if self._failure is None and end_ms > now_ms:
            left_s = (end_ms - now_ms) / 1000
            _LOG.warning("no new token, the last one is good for %d s more: %s", left_s, error)
        self._failure = error
        if self._pauses is not None:
            self._paused_until_ms = self._clock.monotonic_ms() + self._pauses.next_ms()

    def _refresh_at_ms(self, token: OAuthBearerToken) -> float:
        if token.expires_at_ms is None:
            return 0.0  # each connection asks, wherever the clock is set to
        now_ms = self._clock.now_ms()
        left_ms = token.expires_at_ms - now_ms
        if left_ms <= 0:
            raise AuthenticationError("OAUTHBEARER: the token that was got has expired already")
        rules = self._rules
        at_ms = now_ms + left_ms * (
            rules.window_factor + self._random.uniform(0, rules.window_jitter)
        )
        # Neither too late nor too often; where both do not go together they are left out (KIP-255).
        earliest_ms = now_ms + rules.min_period_seconds * 1000
        latest_ms = token.expires_at_ms - rules.buffer_seconds * 1000
        if earliest_ms <= latest_ms:
            at_ms = min(max(at_ms, earliest_ms), latest_ms)
        return min(at_ms, token.expires_at_ms)


def from_function(function: Callable[[], object]) -> TokenSource:
    """A plain or an async function that returns a token or its text."""

    async def source() -> OAuthBearerToken:
        given = function()
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, OAuthBearerToken):
            return given if given.expires_at_ms is not None else token_of(given.value, given)
        if isinstance(given, str) and given:
            return token_of(given)
        raise AuthenticationError(
            f"sasl_oauthbearer_token_provider returned a {type(given).__name__}; an "
            "OAuthBearerToken or its text is needed"
        )

    return source


def token_of(value: str, like: OAuthBearerToken | None = None) -> OAuthBearerToken:
    """A token from its text; the end of a JWT is read off it (nothing of it is verified)."""
    extensions = () if like is None else like.extensions
    return OAuthBearerToken(value.strip(), _jwt_time_ms(value, "exp"), extensions)


def _jwt_time_ms(value: str, claim: str) -> float | None:
    parts = value.strip().split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims[claim]) * 1000
    except (ValueError, KeyError, TypeError):
        return None


def expiration_of(source: str, value: str) -> LoginExpiration | None:
    """The end of a JWT, which is read off it; None for one that does not say it."""
    end_ms = _jwt_time_ms(value, "exp")
    if end_ms is None:
        return None
    begin_ms = _jwt_time_ms(value, "iat")
    return LoginExpiration(source, end_ms, None if begin_ms is None else end_ms - begin_ms)
