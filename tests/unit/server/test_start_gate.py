"""Requests before a node serves: order, lost connections, and a request that does harm."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import RemoteProtocolError
from moldau.server import server as server_module
from moldau.server.server import Server
from tests.kit.waiting import until_async


class Early:
    """A request as far as the server looks at it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.connection = SimpleNamespace(principal="User:a", client_host="h")
        self.is_connection_lost = False
        self.endings: list[str] = []

    def discard(self) -> None:
        self.endings.append("discarded")

    def close(self, reason: str) -> None:
        self.endings.append(reason)


class Handler:
    """Takes requests, and fails for those that the test names."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.failures: dict[int, Exception] = {}

    def __call__(self, request: Any) -> None:
        if request.number in self.failures:
            raise self.failures[request.number]
        self.taken.append(request.number)


def closed_server() -> Server:
    """A server that holds requests back."""
    server = Server()
    server.connections.loop = asyncio.get_running_loop()
    return server


def enter(server: Server, *requests: Early) -> None:
    for request in requests:
        server.connections.handler(request)  # type: ignore[arg-type]


async def test_early_requests_come_first_and_in_order() -> None:
    handler = Handler()
    server = closed_server()
    requests = [Early(number) for number in range(6)]
    requests[1].is_connection_lost = True
    enter(server, *requests[:4])
    assert handler.taken == []
    server.open(handler)
    # Still before those that wait have been handed on.
    enter(server, requests[4])
    await until_async(lambda: len(handler.taken) == 4)
    await asyncio.sleep(0)
    enter(server, requests[5])
    assert handler.taken == [0, 2, 3, 4, 5]
    assert [request.endings for request in requests] == [[], ["discarded"], [], [], [], []]


async def test_one_that_fails_costs_its_connection_and_not_the_start() -> None:
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: faults.append(context["exception"])
    )
    handler = Handler()
    handler.failures = {1: OSError("the test says so"), 2: RemoteProtocolError("no such thing")}
    server = closed_server()
    requests = [Early(number) for number in range(4)]
    enter(server, *requests)
    server.open(handler)
    await until_async(lambda: handler.taken == [0, 3])
    assert faults == [handler.failures[1]]
    assert [request.endings for request in requests] == [
        [],
        ["a request failed inside the node"],
        ["malformed request: no such thing"],
        [],
    ]


async def test_too_many_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_EARLY_REQUESTS", 2)
    handler = Handler()
    server = closed_server()
    requests = [Early(number) for number in range(3)]
    enter(server, *requests)
    assert [len(request.endings) for request in requests] == [0, 0, 1]
    server.open(handler)
    await until_async(lambda: handler.taken == [0, 1])
