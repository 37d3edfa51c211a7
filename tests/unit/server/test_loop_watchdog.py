"""What holds the loop is named, logged and counted; requests that come at once let others in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from moldau.runtime.telemetry.logs import MAX_LINES
from moldau.runtime.telemetry.metrics import Histogram, Registry
from moldau.server.loop_watchdog import (
    CLIENT_ID_LENGTH,
    LAG_PROBE_INTERVAL_MS,
    NO_REQUEST,
    STALL_MS,
    LoopWatchdog,
)
from moldau.server.request import Request
from tests.kit.manual_clock import ManualClock
from tests.kit.server_harness import Harness, Written, response

STALLS = "kafka.server:type=DataLoop,name=Stalls"


class Watched:
    """A watchdog, its clock, and what it has counted."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = Registry(self.clock.monotonic_ms)
        self.watchdog = LoopWatchdog(self.clock, self.registry, "DataLoop")

    def stalls(self, request: str = "Metadata") -> int:
        return self.registry.counter(STALLS, request=request).value

    @property
    def lag(self) -> Histogram:
        return self.registry.histogram("kafka.server:type=DataLoop,name=LagMs")


def test_the_lag_is_sampled() -> None:
    watched = Watched()
    assert [dict(each.labels)["request"] for each in watched.registry.collect() if each.labels] == [
        NO_REQUEST
    ], "it is shown before there is any"
    watched.watchdog.start()
    watched.clock.advance(10 * LAG_PROBE_INTERVAL_MS)
    assert watched.lag.count == 10
    assert watched.lag.total == 0.0
    watched.watchdog.stop()
    assert watched.clock.timer_count == 0
    assert watched.stalls(NO_REQUEST) == 0


def test_work_that_belongs_to_no_request_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.watchdog.start()
    watched.clock.stand_still(LAG_PROBE_INTERVAL_MS + STALL_MS + 1)
    watched.clock.advance(0)
    assert watched.stalls(NO_REQUEST) == 1
    assert "no request held the DataLoop for 101 ms" in caplog.text
    watched.clock.advance(10 * LAG_PROBE_INTERVAL_MS)
    assert watched.stalls(NO_REQUEST) == 1


def test_a_stall_of_a_request_is_not_reported_again_by_the_timer() -> None:
    watched = Watched()
    watched.watchdog.start()
    watched.clock.stand_still(500)
    watched.watchdog.held_by(a_request(), 500)
    watched.clock.advance(0)
    assert (watched.stalls(), watched.stalls(NO_REQUEST)) == (1, 0)


def test_what_requests_do_not_explain_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.watchdog.start()
    watched.clock.stand_still(LAG_PROBE_INTERVAL_MS + 600)
    watched.watchdog.held_by(a_request(), 400)
    caplog.clear()
    watched.clock.advance(0)
    assert watched.stalls(NO_REQUEST) == 1
    assert "no request held the DataLoop for 200 ms" in caplog.text
    caplog.clear()
    watched.clock.stand_still(LAG_PROBE_INTERVAL_MS + STALL_MS)
    watched.clock.advance(0)
    assert caplog.text == "", "not longer than it may"


def test_lines_are_limited_and_counts_are_not(written: Written) -> None:
    watched = Watched()
    for _ in range(50):
        watched.watchdog.held_by(a_request("client-" * 1000), 101)
    assert watched.stalls() == 50
    lines = written.take()
    assert len(lines) == MAX_LINES
    assert len(lines[0]) < CLIENT_ID_LENGTH + 100


def a_request(client_id: str | None = None) -> Any:
    class Stub:
        api_key = 3
        api_version = 13

        class connection:
            client_host = "10.0.0.1"

    stub: Any = Stub()
    stub.client_id = client_id
    return stub


@pytest.mark.real
async def test_a_handler_that_holds_the_loop_is_named(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched()
    held_ms = [STALL_MS + 1, STALL_MS - 1, STALL_MS + 2]

    def handler(request: Request) -> None:
        watched.clock.stand_still(held_ms.pop())
        request.respond_parts(response(request, b"x"))

    server = await harness.server(handler, clock=watched.clock, watchdog=watched.watchdog)
    peer = await harness.peer(server)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            peer.send(peer.request(number))
            await peer.receive()
    assert watched.stalls() == 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "Metadata v0 of client 'test' at 127.0.0.1 held the DataLoop for 102 ms",
        "Metadata v0 of client 'test' at 127.0.0.1 held the DataLoop for 101 ms",
    ]


@pytest.mark.real
async def test_each_of_several_requests_that_came_at_once_has_its_own_time(
    harness: Harness,
) -> None:
    watched = Watched()

    def handler(request: Request) -> None:
        watched.clock.stand_still(0.6 * STALL_MS)
        request.respond_parts(response(request, b"x"))

    server = await harness.server(handler, clock=watched.clock, watchdog=watched.watchdog)
    peer = await harness.peer(server)
    peer.send(*(peer.request(number) for number in range(5)))
    for _ in range(5):
        await peer.receive()
    assert watched.stalls() == 0


# -- the steps of a coroutine ------------------------------------------------------------------


async def test_the_steps_of_a_coroutine_are_timed_and_not_its_waits() -> None:
    watched = Watched()

    async def work(value: int) -> int:
        watched.clock.stand_still(STALL_MS)
        await asyncio.sleep(0)
        watched.clock.stand_still(STALL_MS)
        await asyncio.sleep(0)
        assert watched.stalls() == 0
        watched.clock.stand_still(STALL_MS + 1)
        await asyncio.sleep(0)
        assert watched.stalls() == 1
        watched.clock.stand_still(STALL_MS + 1)
        return value

    assert await asyncio.create_task(watched.watchdog.watch(a_request(), work(7))) == 7
    assert watched.stalls() == 2


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_a_coroutine_raises_and_what_is_raised_in_it_passes_through(
    is_cancelled: bool,
) -> None:
    watched = Watched()
    caught = []

    async def work(begun: Callable[[], None]) -> None:
        begun()
        try:
            await asyncio.Event().wait() if is_cancelled else await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            caught.append(error)
            watched.clock.stand_still(STALL_MS + 1)
            raise
        watched.clock.stand_still(STALL_MS + 1)
        raise ValueError("no")

    begun = asyncio.Event()
    task = asyncio.create_task(watched.watchdog.watch(a_request(), work(begun.set)))
    await begun.wait()
    if is_cancelled:
        task.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else ValueError):
        await task
    assert len(caught) == is_cancelled
    assert watched.stalls() == 1


async def test_what_is_cancelled_before_it_begins_never_begins() -> None:
    watched = Watched()
    begun = []

    async def work() -> None:
        begun.append(1)

    task = asyncio.create_task(watched.watchdog.watch(a_request(), work()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not begun
