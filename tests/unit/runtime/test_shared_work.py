"""Work that several callers wait for, and that ends without one of them."""

from __future__ import annotations

import asyncio

import pytest

from moldau.runtime.shared_work import outcome_of
from tests.kit.loop_reports import heard_reports

pytestmark = pytest.mark.real


async def test_a_caller_that_gives_up_ends_nothing() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    callers = [asyncio.create_task(outcome_of(work)) for _ in range(2)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.wait(callers[:1])
    assert callers[0].cancelled()
    work.set_result(7)
    assert await callers[1] == 7
    assert await outcome_of(work) == 7


@pytest.mark.parametrize("is_late", [False, True], ids=["in the same turn", "before it ends"])
async def test_what_fails_after_its_only_caller_has_gone_is_not_reported(is_late: bool) -> None:
    async def give_up() -> None:
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        caller = asyncio.create_task(outcome_of(work))
        await asyncio.sleep(0)
        if not is_late:
            work.set_exception(ValueError("unheard"))
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        if is_late:
            work.set_exception(ValueError("unheard"))
        await asyncio.sleep(0)

    with heard_reports() as reports:
        await give_up()
    assert reports == []


async def test_a_caller_hears_of_the_failure_and_of_the_end() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    work.set_exception(ValueError("heard"))
    with pytest.raises(ValueError, match="heard"):
        await outcome_of(work)
    ended = asyncio.create_task(asyncio.sleep(0))
    ended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome_of(ended)
