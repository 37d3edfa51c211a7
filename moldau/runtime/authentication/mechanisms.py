"""The SASL mechanisms a client can use, behind one face.

Owns their messages and what credentials they need. Must not do I/O, but for asking the token
source. Invariant: a mechanism object is used for one exchange only.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from moldau.runtime.authentication.errors import AuthenticationError, SecuritySettingError
from moldau.runtime.authentication.scram import HASH_BY_MECHANISM, ScramClient
from moldau.runtime.authentication.tokens import OAuthBearerToken

MECHANISMS: Final = ("PLAIN", *HASH_BY_MECHANISM, "OAUTHBEARER")

_SEPARATOR: Final = "\x01"
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN: Final = re.compile(r"[-._~+/A-Za-z0-9]+=*")


class Exchange(Protocol):
    """One authentication, step by step."""

    @property
    def is_complete(self) -> bool:
        """Whether the mechanism has seen all it needs to see."""

    def first(self) -> bytes:
        """What the client says first."""

    def answer(self, challenge: bytes) -> bytes | None:
        """What the client says to that; None for nothing. Raises AuthenticationError."""


class PlainExchange:
    """PLAIN (RFC 4616)."""

    def __init__(self, username: str, password: str) -> None:
        for part in (username, password):
            if not part or "\0" in part:
                raise SecuritySettingError(
                    "PLAIN: a username and a password are needed, both not empty and without NUL"
                )
        self._message = f"\0{username}\0{password}".encode()

    is_complete = True

    def first(self) -> bytes:
        """Both, once."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """Nothing: the server only says yes or no."""
        return None


class OAuthBearerExchange:
    """OAUTHBEARER (RFC 7628, KIP-255) with SASL extensions (KIP-342)."""

    def __init__(self, token: OAuthBearerToken) -> None:
        if not _TOKEN.fullmatch(token.value):
            raise SecuritySettingError("OAUTHBEARER: the token has characters that tokens lack")
        fields = [f"auth=Bearer {token.value}"]
        for name, value in token.extensions:
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
                raise SecuritySettingError(f"OAUTHBEARER: {name!r} cannot name an extension")
            if not _EXTENSION_VALUE.fullmatch(value):
                raise SecuritySettingError(f"OAUTHBEARER: extension {name} has no printable value")
            fields.append(f"{name}={value}")
        self._message = _SEPARATOR.join(["n,,", *fields, "", ""]).encode()
        self._refusal: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the server has not said what is wrong."""
        return self._refusal is None

    def first(self) -> bytes:
        """The token."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """A challenge says in JSON what is wrong; it is confirmed, and then the refusal comes."""
        if not challenge:
            return None
        if self._refusal is not None:
            raise AuthenticationError(f"OAUTHBEARER: {self._refusal}")
        text = challenge.decode(errors="replace")
        try:
            told = json.loads(text)
            self._refusal = str(told.get("status", text)) if isinstance(told, dict) else text
        except ValueError:
            self._refusal = text
        return _SEPARATOR.encode()


TokenSource = Callable[[], Awaitable[OAuthBearerToken]]


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """What one client logs in with.

    Attributes:
        mechanism: one of MECHANISMS.
        username, password: for PLAIN and SCRAM.
        token_source: for OAUTHBEARER.
        scram_extensions: as `ScramClient` takes them.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_source: TokenSource | None = None
    scram_extensions: Mapping[str, str] = field(default_factory=dict)

    async def exchange(self) -> Exchange:
        """The mechanism's messages for one authentication.

        Raises:
            AuthenticationError: no token could be got.
            SecuritySettingError: credentials that cannot be sent.
        """
        if self.mechanism == "PLAIN":
            return PlainExchange(self.username, self.password)
        if self.mechanism == "OAUTHBEARER":
            assert self.token_source is not None
            return OAuthBearerExchange(await self.token_source())
        return ScramClient(
            HASH_BY_MECHANISM[self.mechanism],
            self.username,
            self.password,
            secrets.token_urlsafe(24),
            self.scram_extensions,
        )
