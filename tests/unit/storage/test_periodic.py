"""When the periodic jobs of storage run."""

from __future__ import annotations

import asyncio

from moldau.storage.log_config import NEVER_MS
from moldau.storage.periodic import PeriodicJob
from tests.kit.manual_clock import ManualClock


async def _nothing() -> None:
    raise AssertionError("it must not run")


async def test_a_job_that_is_never_due_keeps_no_timer() -> None:
    clock = ManualClock()
    interval_ms = NEVER_MS
    job = PeriodicJob("never", clock, lambda: interval_ms, _nothing)
    job.start()
    assert clock.timer_count == 0
    interval_ms = NEVER_MS - 1
    job.start()
    assert clock.timer_count == 1
    interval_ms = NEVER_MS
    job.start()
    assert clock.timer_count == 0
    await job.stop()


class Bench:
    """A job whose runs are counted and end when they are asked to."""

    def __init__(self, interval_ms: int = 1000) -> None:
        self.clock = ManualClock()
        self.begun = 0
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.job = PeriodicJob("counted", self.clock, interval_ms, self._run)

    async def _run(self) -> None:
        self.begun += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def advance(self, elapsed_ms: int) -> int:
        """How many runs have begun by then."""
        self.clock.advance(elapsed_ms)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.begun


async def test_the_interval_counts_from_the_end_of_a_run() -> None:
    bench = Bench()
    bench.job.start()
    assert [await bench.advance(999), await bench.advance(1)] == [0, 1]
    bench.gate = asyncio.Event()
    assert await bench.advance(1000) == 2
    assert bench.job.is_running
    assert await bench.advance(5000) == 2
    bench.gate.set()
    assert await bench.advance(0) == 2
    assert not bench.job.is_running
    assert [await bench.advance(999), await bench.advance(1)] == [2, 3]
    await bench.job.stop()


async def test_the_first_run_may_come_at_another_time() -> None:
    bench = Bench()
    bench.job.start(30)
    assert [await bench.advance(29), await bench.advance(1), await bench.advance(999)] == [0, 1, 1]
    assert await bench.advance(1) == 2
    await bench.job.stop()


async def test_a_run_that_is_wanted_soon_takes_the_place_of_the_next_one() -> None:
    bench = Bench()
    bench.job.start()
    await bench.advance(600)
    bench.job.soon()
    assert bench.clock.timer_count == 0
    assert [await bench.advance(0), await bench.advance(999), await bench.advance(1)] == [1, 1, 2]
    await bench.job.stop()


async def test_what_is_wanted_during_a_run_is_one_more_run_after_it() -> None:
    bench = Bench()
    bench.gate = asyncio.Event()
    bench.job.soon()
    await bench.advance(0)
    bench.job.soon()
    bench.job.soon()
    assert await bench.advance(0) == 1
    bench.gate.set()
    await bench.advance(0)
    assert await bench.advance(0) == 2
    assert [await bench.advance(999), await bench.advance(1)] == [2, 3]
    await bench.job.stop()


async def test_a_failure_is_followed_by_a_pause_that_nothing_cuts_short() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    bench = Bench(interval_ms=10)
    bench.error = OSError("burnt")
    bench.job.soon()
    assert await bench.advance(0) == 1
    bench.job.soon()
    bench.job.start()
    assert [await bench.advance(999), await bench.advance(1)] == [1, 2]
    bench.error = None
    assert [await bench.advance(1999), await bench.advance(1), await bench.advance(10)] == [2, 3, 4]
    bench.error = OSError("burnt")
    await bench.advance(10)
    assert [await bench.advance(999), await bench.advance(1)] == [5, 6], "a first failure again"
    await bench.job.stop()


async def test_after_a_stop_nothing_runs_and_what_ran_has_ended() -> None:
    bench = Bench()
    bench.job.start()
    await bench.job.stop()
    bench.job.soon()
    bench.job.start()
    assert (await bench.advance(5000), bench.clock.timer_count) == (0, 0)
    running = Bench()
    running.gate = asyncio.Event()
    running.job.soon()
    await running.advance(0)
    running.job.soon()
    stopping = asyncio.ensure_future(running.job.stop())
    await running.advance(0)
    assert not stopping.done()
    running.gate.set()
    await stopping
    assert (await running.advance(5000), running.clock.timer_count) == (1, 0)


async def test_a_retired_job_ends_its_run_and_begins_no_other() -> None:
    bench = Bench()
    bench.gate = asyncio.Event()
    bench.job.soon()
    await bench.advance(0)
    bench.job.retire()
    bench.gate.set()
    assert (await bench.advance(5000), bench.job.is_running) == (1, False)
    waiting = Bench()
    waiting.job.start()
    waiting.job.retire()
    assert (await waiting.advance(5000), waiting.clock.timer_count) == (0, 0)
