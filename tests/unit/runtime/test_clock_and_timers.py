"""Clocks and the timer wheel."""

import asyncio
import random

import pytest

from moldau.runtime.clock import SystemClock
from moldau.runtime.timers import SWEEP_MIN_CANCELLED, TimerWheel
from tests.kit.dice import drawn_seed
from tests.kit.manual_clock import ManualClock


def test_timers_run_in_order_never_early_and_at_most_a_tick_late() -> None:
    seed = drawn_seed()
    source = random.Random(seed)
    clock = ManualClock()
    wheel = TimerWheel(clock)
    ran: list[tuple[float, float]] = []
    for _ in range(300):
        due = clock.monotonic_ms() + (delay := source.uniform(0, 2000))
        wheel.call_later(delay, lambda due=due: ran.append((due, clock.monotonic_ms())))
        clock.advance(source.uniform(0, 7))
    clock.advance(3000)
    assert len(ran) == 300
    assert all(due <= at <= due + 5.001 for due, at in ran)
    assert len(wheel) == 0
    assert clock.timer_count == 0


def test_cancelled_timers_do_not_run_and_do_not_pile_up() -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    ran: list[int] = []
    for number in range(3 * SWEEP_MIN_CANCELLED):
        timer = wheel.call_later(30_000, ran.append, number)
        assert timer.callback is not None
        timer.cancel()
        timer.cancel()
    kept = wheel.call_later(20, ran.append, -1)
    assert sum(map(len, wheel._buckets.values())) <= SWEEP_MIN_CANCELLED + 1
    assert len(wheel) == 1
    clock.advance(40_000)
    assert ran == [-1]
    assert kept.callback is None


def test_a_callback_that_raises_takes_no_other_with_it() -> None:
    clock = ManualClock()
    wheel = TimerWheel(clock)
    ran: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    wheel.call_later(10, ran.append, "before")
    wheel.call_later(10, fail)
    wheel.call_later(10, ran.append, "after")
    with pytest.raises(ZeroDivisionError):
        clock.advance(20)
    clock.advance(20)
    assert ran == ["before", "after"]


def test_a_callback_may_schedule_and_close() -> None:
    clock = ManualClock(monotonic_ms=0)
    wheel = TimerWheel(clock)
    ran: list[float] = []
    wheel.call_later(5, lambda: wheel.call_later(5, lambda: ran.append(clock.monotonic_ms())))
    clock.advance(100)
    assert ran == [10.0]
    wheel.call_later(5, ran.append, 1.0)
    wheel.close()
    clock.advance(100)
    assert len(ran) == 1


async def test_system_clock_runs_timers_on_the_running_loop() -> None:
    clock = SystemClock()
    done = asyncio.Event()
    before = clock.monotonic_ms()
    clock.call_later(1, done.set)
    await done.wait()
    assert clock.monotonic_ms() > before
    assert clock.now_ms() > 1_700_000_000_000


def test_manual_clock_lets_the_wall_clock_jump() -> None:
    clock = ManualClock(1000, monotonic_ms=0)
    clock.advance(5)
    assert clock.now_ms() == 1005
    clock.set_wall_clock(50)
    clock.advance(1)
    assert (clock.now_ms(), clock.monotonic_ms()) == (51, 6.0)
