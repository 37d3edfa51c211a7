"""The virtual loop: order, time, processes that die or stop, and failures that were not handled."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.virtual.loop import (
    Deadlock,
    EndlessLoop,
    Process,
    UnhandledFailure,
    VirtualLoop,
)


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.dispose()


def test_time_jumps_to_the_next_timer_and_ties_run_in_the_order_they_were_set(loop):
    seen = []
    for name in "abcdef":
        loop.call_later(3600, seen.append, name)
    loop.call_later(1800, seen.append, "earlier")
    loop.run_until_complete(loop.elapse(3_600_000))
    assert seen == ["earlier", *"abcdef"]
    assert loop.time() == 3600


def test_a_cancelled_timer_does_not_run(loop):
    seen = []
    loop.call_later(1, seen.append, "no").cancel()
    loop.call_soon_threadsafe(seen.append, "yes")
    loop.run_until_complete(loop.elapse(2_000))
    assert seen == ["yes"]


def test_waiting_for_what_can_never_happen_is_a_deadlock(loop):
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())


def test_callbacks_that_let_no_time_pass_are_an_endless_loop(loop):
    def again():
        loop.call_soon(again)

    again()
    with pytest.raises(EndlessLoop):
        loop.run_until_complete(loop.elapse(1))


def test_what_a_coroutine_begins_in_its_end_is_closed_with_the_loop():
    """It makes no event loop of its own, and leaves nothing to the collector."""
    ends = []

    async def end(number):
        ends.append(number)

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.gather(*(end(number) for number in range(3)))

    loop = VirtualLoop()
    process = Process(loop, "one")
    process.context.run(loop.create_task, work())
    loop.run_until_complete(loop.elapse(1))
    policy = asyncio.get_event_loop_policy()
    try:
        asyncio.set_event_loop_policy(None)  # as in a process in which no loop has run
        loop.dispose()
        assert asyncio.get_event_loop_policy()._local._loop is None
    finally:
        asyncio.set_event_loop_policy(policy)
    assert ends == []
    assert loop.tasks == []
    gc.collect()


def test_threads_are_refused(loop):
    async def work():
        await asyncio.to_thread(print)

    with pytest.raises(AssertionError, match="no threads"):
        loop.run_until_complete(work())


def test_nothing_of_a_killed_process_runs_any_more(loop):
    seen = []
    process = Process(loop, "one")

    async def work():
        try:
            while True:
                seen.append(loop.time())
                await loop.elapse(1_000)
        finally:
            seen.append("never")

    process.spawn(work())
    loop.call_later(2.5, process.kill)
    loop.run_until_complete(loop.elapse(10_000))
    assert seen == [0, 1, 2]


def test_a_stopped_process_goes_on_later_in_the_same_order(loop):
    seen = []
    process = Process(loop, "one")

    def set_timers():
        for name in "abc":
            loop.call_later(1, lambda name=name: seen.append((name, loop.time())))
        loop.call_later(5, lambda: seen.append(("late", loop.time())))

    loop.call_soon(set_timers, context=process.context)
    loop.call_later(0.5, process.stop_for, 10_000)
    loop.run_until_complete(loop.elapse(20_000))
    assert seen == [("a", 10.5), ("b", 10.5), ("c", 10.5), ("late", 10.5)]


def test_an_exception_in_a_callback_fails_the_run(loop):
    loop.call_soon(lambda: 1 / 0)
    with pytest.raises(UnhandledFailure, match="division by zero"):
        loop.run_until_complete(loop.elapse(1))


def test_a_spawned_task_that_fails_fails_the_run_but_not_a_dead_processs(loop):
    alive, dead = Process(loop, "alive"), Process(loop, "dead")

    async def fail():
        await loop.elapse(1)
        raise ValueError("unheard")

    dead.spawn(fail())
    loop.call_later(0.0005, dead.kill)
    loop.run_until_complete(loop.elapse(2))
    alive.spawn(fail())
    with pytest.raises(UnhandledFailure, match=r"alive: .*unheard"):
        loop.run_until_complete(loop.elapse(2))


def test_a_task_of_a_task_that_failed_unheard_is_found(loop):
    process = Process(loop, "one")
    tasks = []

    async def fail():
        raise ValueError("unheard")

    async def parent():
        tasks.append(asyncio.create_task(fail()))

    process.spawn(parent())
    loop.run_until_complete(loop.elapse(1))
    assert len(loop.unheard_failures()) == 1
    assert "unheard" in loop.unheard_failures()[0]


def test_timeouts_of_asyncio_run_on_virtual_time(loop):
    async def work():
        async with asyncio.timeout(86_400):
            await loop.create_future()

    with pytest.raises(TimeoutError):
        loop.run_until_complete(work())
    assert loop.time() == 86_400
