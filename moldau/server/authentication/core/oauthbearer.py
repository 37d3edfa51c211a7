"""The server's side of OAUTHBEARER (RFC 7628, KIP-255) with its extensions (KIP-342).

Owns the reading of the client's message and the way of a refusal: the server says in JSON what is
wrong, the client answers with one byte 1, and only then the authentication has failed. Must not
check a token: that comes from outside. Invariant: what the client is told, and what is logged, has
nothing of the token in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from moldau.server.authentication.core.claims import TokenRefused, TokenUser
from moldau.server.authentication.core.mechanism import (
    OTHER_AUTHORIZATION_ID,
    Accepted,
    SaslRefused,
)

CONFIRMATION: Final = b"\x01"
"""What a client answers to a refusal."""

_NAME: Final = r"(?:[\x02-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01", re.ASCII
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)

CheckToken: TypeAlias = Callable[[str], TokenUser]
"""The user of a token. Raises: TokenRefused."""


class OAuthBearer:
    """One exchange: accepted at once, or refused in two steps.

    Extensions are read and, as Kafka's own validators do, all of them accepted.
    """

    __slots__ = ("_check", "_refusal")

    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._refusal: SaslRefused | None = None

    def step(self, token: bytes) -> bytes | Accepted:
        if self._refusal is not None:
            raise self._refusal
        authorization_id, value = _read(token)
        try:
            user = self._check(value)
        except TokenRefused as refused:
            told = {"status": refused.status}
            if refused.scope:
                told["scope"] = refused.scope
            text = json.dumps(told, separators=(",", ":"))
            self._refusal = SaslRefused(str(refused), text)
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
