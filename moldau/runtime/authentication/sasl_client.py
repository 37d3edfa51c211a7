"""SASL on a connection: the handshake, the mechanism's messages, and how long it lasts.

Owns the order of requests (KIP-152) and the reading of refusals. Must not know how mechanisms work.
Invariant: it returns only when the broker has accepted the client, and the mechanism the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from moldau.protocol.schema import Message
from moldau.runtime.authentication.errors import AuthenticationError, SecuritySettingError
from moldau.runtime.authentication.mechanisms import SaslCredentials

Send: TypeAlias = Callable[[Message], Awaitable[Any]]
"""Sends a request in the highest version both sides speak and returns the response."""

MOST_STEPS: Final = 10
"""No mechanism here needs more than two."""


async def authenticate(send: Send, credentials: SaslCredentials, peer: str) -> int:
    """Log in, or log in again (KIP-368).

    Returns:
        How many ms the session lasts; 0 when it does not end.

    Raises:
        AuthenticationError: refused, or the broker is not who it should be.
    """
    mechanism = credentials.mechanism
    where = f"{peer}: {mechanism}"
    handshake = await send(SaslHandshakeRequest(mechanism=mechanism))
    code = ErrorCode.of(handshake.error_code)
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationError(
            f"{where} is not offered there; set sasl.mechanism to one of: {offered}"
        )
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            f"{where}: this listener does not authenticate; set security.protocol to PLAINTEXT or "
            "SSL, or use the port of a SASL listener"
        )
    if code is not ErrorCode.NONE:
        raise AuthenticationError(f"{where}: {code.name}: {code.message}")
    try:
        exchange = await credentials.exchange()
    except SecuritySettingError as error:
        raise AuthenticationError(f"{peer}: {error}") from error
    message: bytes | None = exchange.first()
    for _ in range(MOST_STEPS):
        if message is None:
            break
        response = await send(SaslAuthenticateRequest(auth_bytes=message))
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            raise AuthenticationError(f"{where}: {response.error_message or code.message}")
        try:
            message = exchange.answer(bytes(response.auth_bytes))
        except AuthenticationError as error:
            raise AuthenticationError(f"{peer}: {error}") from None
    else:
        raise AuthenticationError(f"{where}: the broker never comes to an end")
    if not exchange.is_complete:
        raise AuthenticationError(f"{where}: the broker ended it too early")
    return int(response.session_lifetime_ms)
