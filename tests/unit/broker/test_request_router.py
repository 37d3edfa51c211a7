"""The router: versions, garbage, faults of handlers, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.broker.api import load_handler_module
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p60_describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.registry import request_class
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.apis import BROKER_APIS, BY_LISTENER
from moldau.server.authorizer import Authorizer
from moldau.server.fair_shares import Lane
from moldau.server.loop_watchdog import STALL_MS, LoopWatchdog
from moldau.server.request_router import Handler, RequestRouter, Route
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import until_async
from tests.unit.broker.harness import DataPath, FakeConnection, FakeRequest
from tests.unit.broker.messages import batch, produce

OF_MODULES = [api_key for api_key, api in BROKER_APIS.items() if api.broker != BY_LISTENER]


@pytest.mark.parametrize("api_key", OF_MODULES)
def test_every_advertised_api_has_one_handler(api_key: ApiKey) -> None:
    module = load_handler_module(BROKER_APIS[api_key])
    assert hasattr(module, "handle") != hasattr(module, "answer")
    message_class = request_class(api_key)
    served = BROKER_APIS[api_key]
    assert message_class.MIN_VERSION <= served.min_version <= served.max_version
    assert served.max_version <= message_class.MAX_VERSION


@pytest.mark.parametrize(
    ("api_key", "api_version"),
    [(0, 2), (0, 14), (1, 3), (1, 19), (3, -1), (4, 0), (999, 0), (-1, 0), (52, 0)],
)
async def test_unknown_apis_and_versions_close_the_connection(
    broker: DataPath, api_key: int, api_version: int
) -> None:
    request = FakeRequest(broker.connection, api_key, api_version, b"\0" * 20)
    broker.router(request)  # type: ignore[arg-type]
    assert broker.connection.is_closed
    assert request.is_body_released
    other = FakeConnection()
    broker.create_topic("t")
    assert broker.send(produce({("t", 0): batch()}), 12, other).is_answered


@pytest.mark.parametrize("api_version", [5, 99, 32767, -1])
async def test_an_unknown_api_versions_version_is_answered_in_version_0(
    broker: DataPath, api_version: int
) -> None:
    request = AnsweredInVersion0(broker.connection, 18, api_version, b"garbage")
    broker.router(request)  # type: ignore[arg-type]
    assert request.response.error_code == ErrorCode.UNSUPPORTED_VERSION
    (entry,) = request.response.api_keys
    assert (entry.api_key, entry.min_version, entry.max_version) == (18, 0, 4)
    assert not broker.connection.is_closed


class AnsweredInVersion0(FakeRequest):
    def respond(self, message: Any, *, api_version: int | None = None) -> None:
        assert api_version == 0
        super().respond(message, api_version=api_version)


@pytest.mark.parametrize("cut", [0, 1, 7, 30])
async def test_malformed_bodies_close_the_connection(broker: DataPath, cut: int) -> None:
    body = produce({("t", 0): batch()}).to_bytes(12)[:cut]
    request = FakeRequest(broker.connection, 0, 12, body)
    broker.router(request)  # type: ignore[arg-type]
    assert broker.connection.is_closed
    assert "malformed" in broker.connection.close_reason


class Slow:
    """A handler whose answers come when the test says so."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.running = 0
        self.error: BaseException | None = None
        self.cluster_id: Any = "x"

    async def answer(self, context: Any, request: Any) -> Any:
        self.running += 1
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return DescribeClusterResponse(cluster_id=self.cluster_id)


LANE = Lane("tests", 64)


def slow_router(lane: Lane = LANE) -> tuple[RequestRouter, Slow, list[BaseException]]:
    slow = Slow()
    faults: list[BaseException] = []
    router = RequestRouter(
        {ApiKey.DESCRIBE_CLUSTER: Route(0, 2, lambda: Handler(answer=slow.answer), lane)},
        clock=ManualClock(),
        authorizer=Authorizer(),
        on_fault=faults.append,
    )
    return router, slow, faults


def describe(connection: FakeConnection | None = None) -> FakeRequest:
    body = DescribeClusterRequest().to_bytes(2)
    return FakeRequest(connection or FakeConnection(), 60, 2, body)


async def test_steps_of_slow_requests_are_watched() -> None:
    clock = ManualClock()
    registry = Registry(clock.monotonic_ms)

    async def answer(context: Any, request: Any) -> Any:
        clock.stand_still(STALL_MS)
        await asyncio.sleep(0)
        clock.stand_still(STALL_MS + 1)
        return DescribeClusterResponse()

    router = RequestRouter(
        {ApiKey.DESCRIBE_CLUSTER: Route(0, 2, lambda: Handler(answer=answer), LANE)},
        clock=clock,
        authorizer=Authorizer(),
        on_fault=[].append,
        watchdog=LoopWatchdog(clock, registry, "DataLoop"),
    )
    request = describe()
    router(request)  # type: ignore[arg-type]
    await until_async(lambda: request.is_answered)
    assert request.response is not None
    name = "kafka.server:type=DataLoop,name=Stalls"
    assert registry.counter(name, request="DescribeCluster").value == 1


async def test_a_fault_closes_its_connection_only() -> None:
    router, slow, faults = slow_router()
    slow.error = RuntimeError("the test says so")
    request = describe()
    router(request)  # type: ignore[arg-type]
    slow.release.set()
    await until_async(lambda: request.is_answered)
    assert request.connection.is_closed
    assert faults == [slow.error]


async def test_an_answer_that_does_not_fit_the_wire_closes_its_connection() -> None:
    """Not answering at all would hold up everything behind it for ever."""
    router, slow, faults = slow_router()
    slow.cluster_id = 7
    request = describe()
    router(request)  # type: ignore[arg-type]
    slow.release.set()
    await until_async(lambda: request.is_answered)
    assert request.connection.is_closed
    assert len(faults) == 1


async def test_close_waits_for_what_runs() -> None:
    router, slow, _ = slow_router(Lane("tests", 1))
    running, waiting = describe(), describe()
    for request in (running, waiting):
        router(request)  # type: ignore[arg-type]
    closing = asyncio.create_task(router.close())
    await asyncio.sleep(0)
    assert waiting.connection.is_closed
    slow.release.set()
    await closing
    assert running.response.cluster_id == "x"


class Measured:
    """Quotas that remember how long each request took."""

    limits_requests = True

    def __init__(self) -> None:
        self.recorded: list[float] = []

    def record_request(self, principal: str, client_id: str | None, time_ms: float) -> int:
        self.recorded.append(time_ms)
        return 0


@pytest.mark.parametrize("kind", ["at once", "in steps", "by a coroutine"])
async def test_only_the_steps_of_a_request_take_its_time(kind: str) -> None:
    clock, quotas, goes_on = ManualClock(), Measured(), asyncio.Event()
    contexts: list[Any] = []

    def handle(context: Any, _message: Any) -> None:
        clock.stand_still(3)
        contexts.append(context)

    def steps(context: Any, message: Any) -> Iterator[None]:
        handle(context, message)
        yield

    async def answer(context: Any, message: Any) -> Any:
        handle(context, message)
        await goes_on.wait()
        return DescribeClusterResponse()

    handler = {
        "at once": Handler(handle=handle),
        "in steps": Handler(handle=steps),
        "by a coroutine": Handler(answer=answer),
    }[kind]
    router = RequestRouter(
        {ApiKey.DESCRIBE_CLUSTER: Route(0, 2, lambda: handler, LANE if handler.answer else None)},
        clock=clock,
        authorizer=Authorizer(),
        on_fault=[].append,
        quotas=quotas,  # type: ignore[arg-type]
    )
    request = describe()
    router(request)  # type: ignore[arg-type]
    await until_async(lambda: bool(contexts))
    clock.stand_still(50)
    if handler.answer is None:
        contexts[0].respond(DescribeClusterResponse())
    goes_on.set()
    await until_async(lambda: request.is_answered)
    assert quotas.recorded == [3.0]
    await router.close()
