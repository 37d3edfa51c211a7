"""Unsecured tokens (KIP-255), for development alone: they have no signature.

They are made of the options of OAuthBearerLoginModule that begin with `unsecuredLogin`.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

from moldau.runtime.authentication import SecuritySettingError
from moldau.runtime.clock import Clock
from moldau.sasl.oauthbearer.tokens import OAuthBearerToken

PREFIX: Final = "unsecuredLogin"

_TEXT, _NUMBER, _LIST = (f"{PREFIX}{kind}Claim_" for kind in ("String", "Number", "List"))
_EXTENSION: Final = f"{PREFIX}Extension_"
_LIFETIME: Final = f"{PREFIX}LifetimeSeconds"
_GENERATED: Final = ("iat", "exp")
_DEFAULT_LIFETIME_S: Final = "3600"


class UnsecuredLogin:
    """Makes tokens that name the user of the options. Call it as a `TokenSource`."""

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        """Raises: SecuritySettingError: the options make no token."""
        self._clock = clock
        self._claims = _claims(options)
        lifetime_s = options.get(_LIFETIME, _DEFAULT_LIFETIME_S).strip()
        if not (lifetime_s.isascii() and lifetime_s.isdigit() and 0 < int(lifetime_s) < 2**31):
            raise SecuritySettingError(f"{_LIFETIME}: a whole number of seconds from 1")
        self._lifetime_s = int(lifetime_s)
        name = options.get(f"{PREFIX}PrincipalClaimName", "").strip() or "sub"
        user = self._claims.get(name)
        if not isinstance(user, str) or not user.strip():
            raise SecuritySettingError(f"{_TEXT}{name} is needed: the user that the token names")
        self._extensions = tuple(
            (option.removeprefix(_EXTENSION), value)
            for option, value in options.items()
            if option.startswith(_EXTENSION)
        )

    async def __call__(self) -> OAuthBearerToken:
        now_s = self._clock.now_ms() / 1000
        end_s = now_s + self._lifetime_s
        parts = ({"alg": "none"}, {"exp": end_s, "iat": now_s, **self._claims})
        encoded = [urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts]
        text = b".".join((*encoded, b"")).decode()
        return OAuthBearerToken(text, end_s * 1000, self._extensions)


def has_unsecured(options: Mapping[str, str]) -> bool:
    """Whether the options of a login module ask for unsecured tokens to log in with."""
    return any(name.startswith(PREFIX) for name in options)


def _claims(options: Mapping[str, str]) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    for option, value in options.items():
        for prefix in (_TEXT, _NUMBER, _LIST):
            name = option.removeprefix(prefix)
            if name in ("", option):
                continue
            if name in _GENERATED:
                raise SecuritySettingError(f"{option}: the token's {name} is made here")
            claims[name] = _value(prefix, option, value)
    return claims


def _value(prefix: str, option: str, value: str) -> Any:
    if prefix == _TEXT:
        return value
    if prefix == _LIST:
        # The first character is what stands between the elements.
        return value[1:].split(value[0]) if len(value) > 1 else []
    try:
        number = float(value)
    except ValueError:
        raise SecuritySettingError(f"{option}: a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise SecuritySettingError(f"{option}: a finite number")
    return number
