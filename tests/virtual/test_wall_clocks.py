"""The machines' wall clocks: off as the seed says, they jump, and monotonic time never does."""

from __future__ import annotations

from random import Random

from tests.virtual.loop import VirtualClock, VirtualLoop
from tests.virtual.wall_clocks import HOUR_MS, ClockSettings, WallClocks


def test_a_jump_moves_one_wall_clock_and_no_monotonic_time():
    clocks = WallClocks(Random(3), ClockSettings(apart_ms=2_000, jump_ms=5_000))
    loop = VirtualLoop()
    ours, other = (VirtualClock(loop, clocks.of(host)) for host in ("broker-1", "broker-2"))
    before = [(each.now_ms(), each.monotonic_ms()) for each in (ours, other)]
    line = clocks.jump()
    after = [(each.now_ms(), each.monotonic_ms()) for each in (ours, other)]
    moved = [one[0] != two[0] for one, two in zip(before, after, strict=True)]
    assert sum(moved) == 1, line
    assert [each[1] for each in after] == [each[1] for each in before]
    loop.dispose()


def test_clocks_jump_both_ways_and_no_further_than_asked():
    settings = ClockSettings(apart_ms=2_000, jump_ms=5_000)
    clocks = WallClocks(Random(4), settings)
    clock = clocks.of("controller-100")
    assert abs(clock.offset_ms) <= settings.apart_ms
    jumps = []
    for _ in range(50):
        before = clock.offset_ms
        clocks.jump()
        jumps.append(clock.offset_ms - before)
    assert min(jumps) < 0 < max(jumps)
    assert max(map(abs, jumps)) <= settings.jump_ms


def test_a_jump_of_an_hour_is_taken_back():
    clocks = WallClocks(Random(8), ClockSettings(apart_ms=2_000, jump_ms=HOUR_MS))
    hosts = [clocks.of(f"broker-{number}") for number in range(3)]
    seen = set()
    for _ in range(50):
        clocks.jump()
        seen |= {round(each.offset_ms / HOUR_MS) for each in hosts}
    assert {-1, 0, 1} <= seen
    clocks.set_right()
    assert all(abs(each.offset_ms) <= clocks.settings.apart_ms for each in hosts)
    assert clocks.set_right() == []


def test_a_restarted_process_has_the_clock_of_its_machine():
    clocks = WallClocks(Random(5))
    clock = clocks.of("broker-1")
    clocks.jump()
    assert clocks.of("broker-1") is clock
    assert WallClocks(Random(6)).of("broker-1") is not clock


def test_the_same_seed_gives_the_same_clocks():
    first, second = (WallClocks(Random("wall clocks 7")) for _ in range(2))
    assert first.settings == second.settings
    for host in ("broker-1", "broker-2", "controller-100"):
        assert first.of(host) == second.of(host)
    assert first.jump() == second.jump()
