"""Calls beside the event loop, with a limit of their number and of their time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from moldau.runtime.aside import Aside


async def test_what_a_function_returns_and_raises():
    aside = Aside("test", 60_000)
    assert await aside(lambda a, b: a + b, 1, 2) == 3
    assert await aside(threading.current_thread) is not threading.main_thread()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await aside(fail)


async def test_calls_beyond_the_limit_wait_for_those_that_run():
    aside = Aside("test", 60_000, limit=2)
    gate, running = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        running.release()
        gate.wait(60)

    held = [asyncio.create_task(aside(hold)) for _ in range(3)]
    for _ in range(2):
        await asyncio.to_thread(running.acquire)
    assert not running.acquire(blocking=False)
    gate.set()
    await asyncio.gather(*held)


async def test_a_call_that_is_given_up_keeps_its_place_until_it_ends():
    aside = Aside("test", 10, limit=1)
    gate, ended = threading.Event(), threading.Event()

    def hold() -> None:
        gate.wait(60)
        ended.set()

    with pytest.raises(TimeoutError):
        await aside(hold)
    with pytest.raises(TimeoutError):
        await aside(str)
    gate.set()
    await asyncio.to_thread(ended.wait, 60)
    await asyncio.sleep(0)
    patient = Aside("test", 60_000, limit=1)
    patient._places = aside._places
    assert await patient(int) == 0
