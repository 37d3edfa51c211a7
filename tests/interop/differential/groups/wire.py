"""Connections that many sequences use at the same time.

Owns: frames, and which answer belongs to which request. Must not: know what is in them. Invariant:
answers come in the order of the requests; a connection that ends answers all that is left with
nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque

from moldau.protocol.headers import encode_request
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.schema import Message

CLIENT_ID = "differential"
"""Where it does not matter who asks."""

LENGTH_BYTES = 4


class Connection(asyncio.Protocol):
    """One connection to a broker."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._received = bytearray()
        self._correlation_id = 0

    @classmethod
    async def open(cls, bootstrap: str) -> Connection:
        """A new one, which the broker has taken notice of."""
        host, _, port = bootstrap.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        await connection.ask(ApiVersionsRequest(), 0)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None

    def ask(
        self, request: Message, api_version: int, client_id: str = CLIENT_ID
    ) -> asyncio.Future[bytes]:
        """Send a request; the answer is its frame without the size, empty when there is none."""
        future = asyncio.get_running_loop().create_future()
        if self._transport is None:
            future.set_result(b"")
            return future
        self._correlation_id += 1
        parts = encode_request(
            request,
            api_version=api_version,
            correlation_id=self._correlation_id,
            client_id=client_id,
        )
        self._waiting.append(future)
        self._transport.write(b"".join(parts))
        return future

    def abort(self) -> None:
        """End it, with a reset, so that no port is kept."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            end = start + LENGTH_BYTES + int.from_bytes(received[start : start + LENGTH_BYTES])
            if len(received) < end:
                break
            self._answer(bytes(received[start + LENGTH_BYTES : end]))
            start = end
        del received[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        while self._waiting:
            self._answer(b"")

    def _answer(self, frame: bytes) -> None:
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(frame)
