"""The messages of OAUTHBEARER (RFC 7628, KIP-255) with its extensions (KIP-342), both sides.

Owns the way of a refusal: the listener says in JSON what is wrong, the client answers with one byte
1, and only then the authentication has failed. Must not check a token, or get one: that comes from
outside. Invariant: what the client reads, and what is logged, has nothing of the token in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from moldau.runtime.authentication import AuthenticationError, SecuritySettingError
from moldau.sasl.mechanism import OTHER_AUTHORIZATION_ID, Accepted, SaslRefused
from moldau.sasl.oauthbearer.claims import TokenRefused, TokenUser
from moldau.sasl.oauthbearer.tokens import OAuthBearerToken

CONFIRMATION: Final = b"\x01"
"""What a client answers to a refusal."""

_NAME: Final = r"(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01", re.ASCII
)
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
TOKEN: Final = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_AUTH: Final = re.compile(rf"(?P<scheme>\w+) +(?P<token>{TOKEN.pattern})", re.ASCII)

CheckToken: TypeAlias = Callable[[str], TokenUser]
"""The user of a token. Raises: TokenRefused."""


class OAuthBearerServer:
    """The listener's side. One exchange: accepted at once, or refused in two steps.

    Extensions are read and, as Kafka's own validators do, all of them accepted.
    """

    __slots__ = ("_check", "_refusal")

    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._refusal: tuple[str, str] | None = None

    def step(self, token: bytes) -> bytes | Accepted:
        if self._refusal is not None:
            raise SaslRefused(*self._refusal)  # one that was kept would hold the connection
        authorization_id, value = _read(token)
        try:
            user = self._check(value)
        except TokenRefused as refused:
            told = {"status": refused.status}
            if refused.scope:
                told["scope"] = refused.scope
            text = json.dumps(told, separators=(",", ":"))
            self._refusal = str(refused), text
            return text.encode()
        if authorization_id not in ("", user.name):
            raise SaslRefused(
                f"the token is of {user.name!r}, and asked to act as another",
                OTHER_AUTHORIZATION_ID,
            )
        return Accepted(user.name, left_ms=user.left_ms)


def _read(message: bytes) -> tuple[str, str]:
    """Authorization id ("" for none) and token of the client's message. Raises: SaslRefused."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslRefused("the message of OAUTHBEARER is not UTF-8") from None
    found = _FIRST.fullmatch(text)
    if found is None:
        raise SaslRefused("the client's message of OAUTHBEARER is malformed")
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01")[:-1])
    authorization = _AUTH.fullmatch(pairs.get("auth", ""))
    if authorization is None or authorization["scheme"].lower() != "bearer":
        raise SaslRefused("the client's message of OAUTHBEARER has no auth=Bearer TOKEN")
    name = (found["authorization_id"] or "").replace("=2C", ",").replace("=3D", "=")
    return name, authorization["token"]


class OAuthBearerClient:
    """The client's side, with one token."""

    def __init__(self, token: OAuthBearerToken) -> None:
        if not TOKEN.fullmatch(token.value):
            raise SecuritySettingError("OAUTHBEARER: the token has characters that tokens lack")
        fields = [f"auth=Bearer {token.value}"]
        for name, value in token.extensions:
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
                raise SecuritySettingError(f"OAUTHBEARER: {name!r} cannot name an extension")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise SecuritySettingError(f"OAUTHBEARER: extension {name} has no printable value")
            fields.append(f"{name}={value}")
        self._message = "\x01".join(["n,,", *fields, "", ""]).encode()
        self._refusal: str | None = None

    @property
    def is_complete(self) -> bool:
        return self._refusal is None

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # The broker says in JSON what is wrong. The client confirms it; then the refusal comes.
        if self._refusal is not None:
            raise AuthenticationError(f"OAUTHBEARER: {self._refusal}")
        text = challenge.decode(errors="replace")
        try:
            told = json.loads(text)
            self._refusal = str(told.get("status", text)) if isinstance(told, dict) else text
        except ValueError:
            self._refusal = text
        return CONFIRMATION
