"""What raises is reported to the fault table and begun again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.runtime import restarts
from moldau.runtime.restarts import FIRST_PAUSE_MS, JOB_KEY, MAX_PAUSE_MS, RestartedTask, Restarts


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


async def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success(
    told: list[dict[str, Any]],
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    job = Restarts("job")
    pauses = [job.failed(ValueError(str(number))) for number in range(8)]
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, MAX_PAUSE_MS, MAX_PAUSE_MS]
    assert [str(context["exception"]) for context in told] == [str(n) for n in range(8)]
    assert {context[JOB_KEY] for context in told} == {"job"}
    job.went_well()
    assert job.failed(ValueError()) == FIRST_PAUSE_MS


async def test_a_task_that_raises_runs_again_until_it_is_stopped(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    monkeypatch.setattr(restarts, "FIRST_PAUSE_MS", 1)
    failures: Iterator[Exception] = iter([ValueError("first"), KeyError("second")])
    is_running = asyncio.Event()
    was_cancelled = False

    async def work() -> None:
        nonlocal was_cancelled
        for failure in failures:
            raise failure
        is_running.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled = True

    task = RestartedTask("work", work)
    task.start()
    await is_running.wait()
    assert [str(context["exception"]) for context in told] == ["first", "'second'"]
    await task.stop()
    assert was_cancelled
    await task.stop()


async def test_a_task_that_raises_after_a_long_life_pauses_shortly(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    monkeypatch.setattr(restarts, "FIRST_PAUSE_MS", 1)
    monkeypatch.setattr(restarts, "LONG_LIFE_MS", 0)  # a life of any length is a long one
    failures: Iterator[Exception] = iter([ValueError() for _ in range(5)])
    has_ended = asyncio.Event()

    async def work() -> None:
        for failure in failures:
            raise failure
        has_ended.set()

    task = RestartedTask("work", work)
    task.start()
    await has_ended.wait()
    assert {context["message"] for context in told} == {"work failed and is begun again in 1 ms"}
    await task.stop()


async def test_a_task_that_pauses_is_not_begun_again_after_its_stop() -> None:
    is_told = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: is_told.set())

    async def work() -> None:
        raise ValueError

    task = RestartedTask("work", work)
    task.start()
    await is_told.wait()
    await task.stop()
    assert task._timer is None
    assert task._task is None
