"""Limits on new connections (KIP-612) with TLS: a connection counts when it is accepted."""

from __future__ import annotations

import asyncio

import pytest
import trustme

from moldau.config.listeners import SecurityProtocol
from moldau.server.connection_limits import ServerLimits
from moldau.server.quotas.core.connection_rates import ConnectionRates
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness
from tests.kit.waiting import until_async

from . import test_secured_server
from .test_secured_server import secured

pytestmark = pytest.mark.real
authority, stores = test_secured_server.authority, test_secured_server.stores


async def test_connections_above_the_rate_of_their_address_begin_no_handshake(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    clock, rates = ManualClock(), ConnectionRates()
    rates.change({(("ip", "127.0.0.1"),): {"connection_creation_rate": 1.0}})
    ssl_only = (harness, authority, SecurityProtocol.SSL, stores)
    made = await secured(*ssl_only, clock=clock, rates=rates)
    connections = made.server.connections
    silent = [await made.client() for _ in range(10)]  # none of them shakes hands
    refused = await made.client()
    refused.writer.write(b"\x16\x03\x01")
    await until_async(lambda: connections.rejected_count == 1)
    clock.advance(999.0)
    assert not refused.reader.at_eof()
    clock.advance(1.0)
    assert await refused.at_eof(), "without a word of TLS"
    assert not any(each.reader.at_eof() for each in silent)
    clock.advance(20_000.0)
    for _ in range(10):
        assert await (await made.tls_client()).who_am_i() == "User:ANONYMOUS", "counted once"
    assert connections.rejected_count == 1
    last = await made.client()
    await until_async(lambda: connections.rejected_count == 2)
    await made.server.close(0)
    assert await last.at_eof(), "one that waits for its end does not hold up the server's"


async def test_handshakes_wait_above_the_rate_of_the_node(
    harness: Harness, authority: trustme.CA, stores: dict[str, str]
) -> None:
    clock = ManualClock()
    limits = ServerLimits(max_connection_creation_rate=1, listen_backlog=1)
    ssl_only = (harness, authority, SecurityProtocol.SSL, stores)
    made = await secured(*ssl_only, clock=clock, limits=limits)
    silent = [await made.client() for _ in range(10)]
    waiting = await made.client()
    handshake = asyncio.create_task(waiting.writer.start_tls(made.context()))
    refused = await made.client()
    assert await refused.at_eof(), "one waits already"
    assert not handshake.done()
    clock.advance(1_000.0)
    await handshake
    assert await waiting.who_am_i() == "User:ANONYMOUS"
    assert not any(each.reader.at_eof() for each in silent)
