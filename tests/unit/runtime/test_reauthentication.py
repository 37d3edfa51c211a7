"""Logging in on a connection, and again before the session ends (KIP-368)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.protocol.messages.p03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.schema import Message
from moldau.runtime.authentication import AuthenticationError
from moldau.runtime.connection import Connection, ConnectionLost
from moldau.runtime.ports import Ports
from moldau.server.request import Request
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness

pytestmark = [pytest.mark.real, pytest.mark.virtual_too]

LIFETIME_MS = 1_000


def ask(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


class Login:
    """An authenticator with two steps; waits between them while `gate` is closed."""

    def __init__(self) -> None:
        self.count = 0
        self.refuses = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.has_begun = asyncio.Event()

    async def __call__(self, send: Callable[[Message], Awaitable[Any]], peer: str) -> int:
        self.count += 1
        await send(ask("login 1"))
        self.has_begun.set()
        await self.gate.wait()
        await send(ask("login 2"))
        if self.refuses:
            raise AuthenticationError(f"{peer}: no more")
        return LIFETIME_MS


class Peer:
    """Answers everything, and remembers the order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, request: Request) -> None:
        if request.api_key == 18:
            keys = [ApiVersion(api_key=key, min_version=0, max_version=4) for key in (3, 18)]
            request.respond(ApiVersionsResponse(api_keys=keys))
            return
        message, _ = MetadataRequest.decode(request.body, request.api_version)
        name = message.topics[0].name or ""
        self.seen.append(name)
        request.respond(MetadataResponse(cluster_id=name))


async def logged_in(harness: Harness, peer: Peer, login: Login, clock: ManualClock) -> Connection:
    server = await harness.server(peer)
    connection = await Connection.connect(
        Ports.of_machine().network,
        "127.0.0.1",
        server.port("PLAINTEXT"),
        clock=clock,
        request_timeout_ms=1_000_000,
        authenticator=login,
    )
    harness.stack.callback(connection.close)
    return connection


async def test_others_wait_while_the_connection_logs_in_again(harness: Harness) -> None:
    peer, login, clock = Peer(), Login(), ManualClock()
    connection = await logged_in(harness, peer, login, clock)
    assert peer.seen == ["login 1", "login 2"]
    login.gate.clear()
    login.has_begun.clear()
    earlier = connection.submit(ask("earlier"))
    clock.advance(LIFETIME_MS * 0.96)
    await login.has_begun.wait()
    assert (await earlier).cluster_id == "earlier"  # type: ignore[attr-defined]
    later = [asyncio.create_task(connection.send(ask(f"later {n}"))) for n in range(3)]
    await asyncio.sleep(0)
    login.gate.set()
    assert [(await each).cluster_id for each in later] == ["later 0", "later 1", "later 2"]
    assert peer.seen[2:] == ["earlier", "login 1", "login 2", "later 0", "later 1", "later 2"]
    # And once more: the new session ends too.
    clock.advance(LIFETIME_MS * 0.96)
    assert (await connection.send(ask("last"))).cluster_id == "last"
    assert login.count == 3


async def test_who_is_refused_the_second_time_loses_the_connection(harness: Harness) -> None:
    peer, login, clock = Peer(), Login(), ManualClock()
    connection = await logged_in(harness, peer, login, clock)
    login.refuses = True
    login.gate.clear()
    login.has_begun.clear()
    clock.advance(LIFETIME_MS * 0.96)
    await login.has_begun.wait()
    held = connection.submit(ask("held"))
    login.gate.set()
    with pytest.raises(ConnectionLost, match=r"did not renew the session: .*no more"):
        await held
    assert connection.is_closed
    assert "held" not in peer.seen


async def test_a_connection_that_is_closed_during_reauthentication_leaves_nothing(
    harness: Harness,
) -> None:
    peer, login, clock = Peer(), Login(), ManualClock()
    connection = await logged_in(harness, peer, login, clock)
    before = asyncio.all_tasks()
    login.gate.clear()
    login.has_begun.clear()
    clock.advance(LIFETIME_MS * 0.96)
    await login.has_begun.wait()
    held = connection.submit(ask("held"))
    connection.close()
    with pytest.raises(ConnectionError):
        await held
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_a_first_login_that_fails_is_the_callers_error(harness: Harness) -> None:
    peer, login, clock = Peer(), Login(), ManualClock()
    login.refuses = True
    with pytest.raises(AuthenticationError):
        await logged_in(harness, peer, login, clock)
