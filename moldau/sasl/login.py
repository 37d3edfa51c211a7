"""The client's side of a login: the handshake on a connection and the steps of a mechanism.

Owns the order of requests (KIP-152) and the reading of refusals. Must not know a mechanism's
messages, do I/O but through `send`, or decide when to log in again (`runtime.connection` does).
Invariants: `authenticate` returns only when the broker has accepted the client and the mechanism is
complete: with SCRAM and GSSAPI the broker has proved its own identity then; an exchange is used for
one authentication only.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.runtime.authentication import (
    AuthenticationError,
    LoginExpiration,
    SecuritySettingError,
)
from moldau.runtime.connection import Send

T = TypeVar("T")

MOST_STEPS: Final = 10
"""No mechanism here needs more than four."""

Value: TypeAlias = Callable[[str], Any]
"""What a key is set to: a password as its text, None for a key that this side does not have."""


class ClientExchange(Protocol):
    """One authentication on the client's side, step by step."""

    @property
    def is_complete(self) -> bool:
        """Whether the mechanism accepts that the broker ends the exchange now."""

    def first(self) -> bytes:
        """The client's first message. Raises as `answer`."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to the broker's message; None for none.

        Raises:
            AuthenticationError: the broker refuses, broke the rules, or did not prove itself.
            ConnectionError: another attempt may succeed as things are.
        """


class SaslLogin:
    """What a client, or a node towards other nodes, logs in with, by one mechanism.

    Attributes:
        context: of TLS towards an identity provider; None without a trust store for it.
    """

    mechanism: str
    context: ssl.SSLContext | None = None

    async def exchange(self, host: str) -> ClientExchange:
        """An exchange for one authentication to a broker at `host`.

        Raises:
            AuthenticationError: there is no token.
            SecuritySettingError: the credentials cannot be sent.
        """
        raise NotImplementedError

    async def prepare(self) -> None:
        """Have what may take long before the peer waits for it. Raises: AuthenticationError."""

    async def step(self, step: Callable[..., T], *args: bytes) -> T:
        """Take a step of an exchange. Raises: AuthenticationError, ConnectionError."""
        return step(*args)

    def change(self, value: Value) -> None:
        """Go by what the keys say now, as far as a login that exists can."""

    def expirations(self) -> Sequence[LoginExpiration]:
        """What it depends on that expires, and that others renew: files with tokens, a cache of
        tickets. Blocks. What cannot be read is left out: the login itself says so.
        """
        return ()

    async def authenticate(self, send: Send, peer: str) -> int:
        """Log in, or log in again (KIP-368).

        Returns:
            How many ms the session lasts; 0 when it does not end.

        Raises:
            AuthenticationError: refused, or the broker is not who it should be.
            ConnectionError: no connection now; another attempt may succeed.
        """
        where = f"{peer}: {self.mechanism}"
        await self._shake_hands(send, where)
        try:
            exchange = await self.exchange(peer.rpartition(":")[0])
        except SecuritySettingError as error:
            raise AuthenticationError(f"{peer}: {error}") from error
        message: bytes | None = await self._step(peer, exchange.first)
        for _ in range(MOST_STEPS):
            if message is None:
                break
            response = await send(SaslAuthenticateRequest(auth_bytes=message))
            code = ErrorCode.of(response.error_code)
            if code is not ErrorCode.NONE:
                raise AuthenticationError(f"{where}: {response.error_message or code.message}")
            message = await self._step(peer, exchange.answer, bytes(response.auth_bytes))
        else:
            raise AuthenticationError(f"{where}: the broker never comes to an end")
        if not exchange.is_complete:
            raise AuthenticationError(f"{where}: the broker ended it too early")
        return int(response.session_lifetime_ms)

    async def _step(self, peer: str, step: Callable[..., T], *args: bytes) -> T:
        try:
            return await self.step(step, *args)
        except AuthenticationError as error:
            raise AuthenticationError(f"{peer}: {error}") from None

    async def _shake_hands(self, send: Send, where: str) -> None:
        handshake = await send(SaslHandshakeRequest(mechanism=self.mechanism))
        code = ErrorCode.of(handshake.error_code)
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise AuthenticationError(
                f"{where} is not offered there; set sasl.mechanism to one of: {offered}"
            )
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"{where}: this listener does not authenticate; set security.protocol to PLAINTEXT "
                "or SSL, or use the port of a SASL listener"
            )
        if code is not ErrorCode.NONE:
            raise AuthenticationError(f"{where}: {code.name}: {code.message}")
