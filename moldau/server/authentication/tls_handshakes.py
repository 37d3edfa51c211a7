"""The TLS handshakes of one listener: how many there may be, and what went wrong with one.

Owns the words for a handshake that fails. Must not touch sockets. Invariant: a peer that provokes
failures provokes no more lines in the log than the connections' log lets through.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from moldau.runtime.authentication.store_contexts import StoreContexts

if TYPE_CHECKING:
    from moldau.server.connection_group import ConnectionGroup

_NOT_TLS: Final = frozenset(
    {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
)


class TlsHandshakes:
    """Implements `moldau.runtime.network.Handshakes` for one listener of a server."""

    __slots__ = ("_contexts", "_group", "_listener_name")

    def __init__(self, contexts: StoreContexts, group: ConnectionGroup, listener_name: str) -> None:
        self._contexts = contexts
        self._group = group
        self._listener_name = listener_name

    @property
    def timeout_ms(self) -> float:
        return self._group.limits.tls_handshake_ms

    async def context(self) -> ssl.SSLContext:
        return await self._contexts.current()

    def begin(self, host: str, handshake: asyncio.Task[None]) -> bool | Awaitable[bool]:
        return self._group.begin_handshake(self._listener_name, host)

    def end(self, host: str, error: OSError | None, *, is_late: bool) -> None:
        problem = f"no TLS handshake within {self.timeout_ms:.0f} ms" if is_late else None
        if problem is None and isinstance(error, ssl.SSLError):
            problem = handshake_problem(error)
        self._group.end_handshake(self._listener_name, host, problem)


def handshake_problem(error: ssl.SSLError) -> str:
    """What a failed handshake means on the server's side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    reason = error.reason or "broken off"
    if reason in _NOT_TLS:
        return "the client does not speak TLS, which this listener does"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client shows no certificate, and ssl.client.auth is required"
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return f"the client does not accept the certificate shown to it ({reason})"
    return f"no TLS connection ({reason})"
