"""A client that says exactly what a test gives it: one connection, one message at a time.

Owns framing only. Must not retry, negotiate or repair anything.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from moldau.protocol.headers import decode_response, encode_request
from moldau.protocol.schema import Message
from tests.fake_broker.node import HOST, FakeNode


class RawClient:
    """Use as an async context manager."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._correlation_id = 0

    async def __aenter__(self) -> Self:
        self.reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self.reader)
        network = self._node.cluster.ports.network
        transport, _ = await network.connect(lambda: protocol, HOST, self._node.port)
        loop = asyncio.get_running_loop()
        self.writer = asyncio.StreamWriter(transport, protocol, self.reader, loop)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.transport.abort()

    async def send(self, message: Message, version: int | None = None) -> int:
        """Send a request; its correlation id."""
        self._correlation_id += 1
        parts = encode_request(
            message,
            api_version=message.MAX_VERSION if version is None else version,
            correlation_id=self._correlation_id,
            client_id="raw",
        )
        self.writer.write(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
        await self.writer.drain()
        return self._correlation_id

    async def frame(self) -> bytes:
        """The next frame, without its size."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def ask(self, message: Message, version: int | None = None) -> Any:
        """Send a request and take its response."""
        correlation_id = await self.send(message, version)
        version = message.MAX_VERSION if version is None else version
        async with asyncio.timeout(20):
            frame = await self.frame()
        received_id, response = decode_response(message.API_KEY, version, frame)
        assert received_id == correlation_id, f"answer {received_id} to request {correlation_id}"
        return response
