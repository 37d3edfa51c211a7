"""The gate before a node serves: order, lost connections, and a request that does harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.protocol.errors import RemoteProtocolError
from moldau.server import start_gate
from moldau.server.start_gate import StartGate
from tests.unit.broker.harness import until


class Early:
    """A request as far as the gate looks at it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_connection_lost = False
        self.endings: list[str] = []

    def discard(self) -> None:
        self.endings.append("discarded")

    def close(self, reason: str) -> None:
        self.endings.append(reason)


class Handler:
    """Takes requests, and fails for those it was told to fail for."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.failures: dict[int, Exception] = {}

    def __call__(self, request: Any) -> None:
        if request.number in self.failures:
            raise self.failures[request.number]
        self.taken.append(request.number)


def enter(gate: StartGate, *requests: Early) -> None:
    for request in requests:
        gate(request)  # type: ignore[arg-type]


async def test_early_requests_come_first_and_in_order() -> None:
    handler = Handler()
    gate = StartGate(handler)
    requests = [Early(number) for number in range(6)]
    requests[1].is_connection_lost = True
    enter(gate, *requests[:4])
    assert handler.taken == []
    gate.open()
    # Still before those that wait have been handed on.
    enter(gate, requests[4])
    await until(lambda: len(handler.taken) == 4)
    await asyncio.sleep(0)
    enter(gate, requests[5])
    assert handler.taken == [0, 2, 3, 4, 5]
    assert [request.endings for request in requests] == [[], ["discarded"], [], [], [], []]


async def test_one_that_fails_costs_its_connection_and_not_the_start() -> None:
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: faults.append(context["exception"])
    )
    handler = Handler()
    handler.failures = {1: OSError("the test says so"), 2: RemoteProtocolError("no such thing")}
    gate = StartGate(handler)
    requests = [Early(number) for number in range(4)]
    enter(gate, *requests)
    gate.open()
    await until(lambda: handler.taken == [0, 3])
    assert faults == [handler.failures[1]]
    assert [request.endings for request in requests] == [
        [],
        ["a request failed inside the node"],
        ["malformed request: no such thing"],
        [],
    ]


async def test_too_many_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_gate, "MAX_EARLY_REQUESTS", 2)
    handler = Handler()
    gate = StartGate(handler)
    requests = [Early(number) for number in range(3)]
    enter(gate, *requests)
    assert [len(request.endings) for request in requests] == [0, 0, 1]
    gate.open()
    await until(lambda: handler.taken == [0, 1])
