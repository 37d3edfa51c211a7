"""Handshakes that others give up, over real sockets: nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
import trustme

from moldau.runtime.network import AsyncioNetwork
from moldau.runtime.tls_transport import TlsTransport
from tests.kit.counting import Newcomers, collector_at_rest
from tests.kit.waiting import until_async

pytestmark = pytest.mark.real

HOST = "127.0.0.1"
NOISE = b"\x16\x03\x01\x00\x05" + b"\xff" * 5
"""What looks like TLS, so that an alert follows."""


class Handshakes:
    """Allows each, now or when it is cancelled, and keeps the last one's task."""

    timeout_ms = 60_000.0

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("localhost").configure_cert(self.made)
        self.last: asyncio.Task[None] | None = None

    async def context(self) -> ssl.SSLContext:
        return self.made

    def begin(self, host: str, handshake: asyncio.Task[None]) -> object:
        self.last = handshake
        return asyncio.get_running_loop().create_future() if self.waits else True

    def end(self, host: str, error: OSError | None, *, is_late: bool) -> None:
        assert host == HOST
        assert not is_late

    async def cancel(self) -> None:
        """Give up the last one, when it has begun."""
        await until_async(lambda: self.last is not None)
        assert self.last is not None
        self.last.cancel()
        await asyncio.wait([self.last])
        self.last = None


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("noise", [b"", NOISE])
async def test_a_handshake_that_is_cancelled_leaves_no_cycle(noise: bytes, *, waits: bool) -> None:
    handshakes = Handshakes(waits=waits)
    listener = await AsyncioNetwork().listen(asyncio.Protocol, HOST, 0, handshakes=handshakes)  # type: ignore[arg-type]
    new = Newcomers(TlsTransport, asyncio.Task)
    with collector_at_rest():
        for _ in range(3):
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write(noise)
            if noise and not waits:
                assert await reader.read(1) == b"\x15", "the alert: it has failed, and waits"
            await handshakes.cancel()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            del reader, writer
        await until_async(lambda: not [each for each in new.objects() if is_over(each)])
    listener.close()


def is_over(found: object) -> bool:
    return not isinstance(found, asyncio.Task) or found.done()
