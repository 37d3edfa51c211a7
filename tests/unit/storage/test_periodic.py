"""When the periodic jobs of storage run."""

from __future__ import annotations

from moldau.runtime.clock import ManualClock
from moldau.storage.manager_settings import NEVER_MS
from moldau.storage.periodic import PeriodicJob


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
