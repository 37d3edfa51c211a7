"""What a client's connection consists of besides itself: its errors, its requests, its login.

Must not do anything by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.records.crc import Buffer
from moldau.protocol.schema import Message
from moldau.runtime.authentication import TlsError

CLIENT_SOFTWARE_NAME: Final = "moldau"


class ConnectionLost(ConnectionError):
    """The connection ended before the response; the request may or may not have been served."""


class NothingHeard(ConnectionLost):
    """The connection ended before the peer had said a single word."""


class RequestTimedOut(TimeoutError):
    """No response within the request's time; the connection was closed."""


class UnsupportedByPeer(LocalProtocolError):
    """The peer serves no version of the API that we speak."""


class Authenticator(Protocol):
    """Logs a connection in."""

    async def __call__(self, send: Callable[[Message], Awaitable[Any]], peer: str) -> int:
        """Returns how many ms that lasts, 0 for ever. Raises AuthenticationError."""


class HeldRequests:
    """Requests that wait until the connection has logged in again."""

    __slots__ = ("data", "pending")

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.pending: list[PendingRequest] = []


class PendingRequest:
    """A request that has been sent, and where its answer goes."""

    __slots__ = ("api_key", "api_version", "correlation_id", "deadline_ms", "future")

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        deadline_ms: float,
        future: asyncio.Future[Message],
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.deadline_ms = deadline_ms
        self.future = future


class SendsVersion(Protocol):
    """Sends a request in a version of the caller's choice."""

    async def __call__(self, message: Message, *, api_version: int) -> Any:
        """The response."""


async def ask_versions(send: SendsVersion, peer: str) -> Any:
    """What the peer serves, in the newest version of ApiVersions that it takes (KIP-511).

    Raises RemoteProtocolError when it refuses.
    """
    from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest

    request = ApiVersionsRequest(
        client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=_version()
    )
    response = await send(request, api_version=ApiVersionsRequest.MAX_VERSION)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        # The answer is a version 0 body; a recent enough peer names the versions it would take.
        highest = 0
        for entry in response.api_keys:
            if entry.api_key == ApiKey.API_VERSIONS:
                highest = min(entry.max_version, ApiVersionsRequest.MAX_VERSION)
        response = await send(request, api_version=highest)
    if response.error_code != ErrorCode.NONE:
        raise RemoteProtocolError(f"{peer} refuses ApiVersions with error {response.error_code}")
    return response


def _version() -> str:
    import moldau

    return str(getattr(moldau, "__version__", "0"))


def gathered(pieces: Sequence[Buffer], limit_bytes: int) -> list[Buffer]:
    """The same bytes in few pieces: those of up to `limit_bytes` joined with their neighbours."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) <= limit_bytes:
            small.append(piece)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(piece)
    if small:
        found.append(b"".join(small))
    return found


def speaks_tls(peer: str) -> TlsError:
    """The error of a plaintext connection to a TLS listener."""
    from moldau.runtime.authentication.tls import TLS_ADVICE

    return TlsError(f"{peer} speaks TLS; {TLS_ADVICE}")


def tls_error(peer: str, error: ssl.SSLError) -> TlsError:
    """What a failed handshake means."""
    from moldau.runtime.authentication import tls

    return tls.tls_error(peer, error)


def api_name(api_key: int) -> str:
    """For messages."""
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API {api_key}"
