"""Work in the background: failures are reported once, a stop waits, nothing starts after it."""

from __future__ import annotations

import asyncio

from moldau.broker.lifecycle.background import Background
from tests.kit.manual_clock import ManualClock


async def test_failures_are_reported_once() -> None:
    faults: list[BaseException] = []
    background = Background(ManualClock(), faults.append)

    async def fails() -> None:
        raise ValueError("a bug")

    background.start(fails(), "fails")
    await background.close()
    assert [str(fault) for fault in faults] == ["a bug"]
    assert len(background) == 0


async def test_a_stop_waits_for_what_runs_and_what_that_starts() -> None:
    background = Background(ManualClock(), lambda error: None)
    gate = asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        await gate.wait()
        ended.append("work")

    background.start(work())
    stopping = asyncio.ensure_future(background.close())
    await asyncio.sleep(0)
    assert not stopping.done()
    background.start(work())
    gate.set()
    await stopping
    assert ended == ["work"], "what came after the stop never ran"
