"""The line of work on the controller's working state: slices, order, and how it is called off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.controller.controller import SLICE_MS, Turns
from moldau.metadata.steps import Steps
from tests.unit.metadata.builders import BusyClock


class Bench:
    """Turns, and pieces of work that note each of their steps."""

    def __init__(self) -> None:
        self.clock = BusyClock()
        self.turns = Turns(self.clock)
        self.done: list[str] = []

    def piece(
        self, name: str, *durations_ms: float, then: Callable[[], None] = lambda: None
    ) -> Steps[None]:
        try:
            for index, duration_ms in enumerate(durations_ms):
                self.clock.stand_still(duration_ms)
                self.done.append(f"{name}{index}")
                yield
            then()
            self.done.append(f"{name} ended")
        except GeneratorExit:
            self.done.append(f"{name} called off")

    def take(self, name: str, *durations_ms: float) -> None:
        self.turns.take(self.piece(name, *durations_ms))


def test_a_small_piece_is_done_at_once() -> None:
    bench = Bench()
    bench.take("a", 0, 0)
    assert bench.done == ["a0", "a1", "a ended"]
    assert bench.clock.timer_count == 0


def test_a_long_piece_gives_way_after_a_slice_and_others_wait_for_its_end() -> None:
    bench = Bench()
    half = SLICE_MS / 2
    bench.take("a", half, half, 0, half, half)
    assert bench.done == ["a0", "a1"]
    bench.take("b", 0)
    bench.take("c", 0)
    assert bench.done == ["a0", "a1"], "nothing changes under a piece that is under way"
    bench.clock.turn()
    assert bench.done[2:] == ["a2", "a3", "a4"]
    bench.clock.turn()
    assert bench.done[5:] == ["a ended", "b0", "b ended", "c0", "c ended"]


def test_many_small_pieces_give_way_too() -> None:
    bench = Bench()
    bench.take("a", SLICE_MS)
    for name in "bcd":
        bench.take(name, SLICE_MS)
    taken = []
    while bench.clock.timer_count:
        before = len(bench.done)
        bench.clock.turn()
        taken.append(bench.done[before:])
    assert taken == [["a ended", "b0"], ["b ended", "c0"], ["c ended", "d0"], ["d ended"]]


def test_a_piece_that_fails_does_not_keep_the_others_waiting() -> None:
    bench = Bench()

    def fail() -> None:
        raise AssertionError("broken")

    bench.turns.take(bench.piece("a", SLICE_MS, 0, then=fail))
    bench.take("b", 0)
    with pytest.raises(AssertionError, match="broken"):
        bench.clock.turn()
    bench.clock.turn()
    assert bench.done == ["a0", "a1", "b0", "b ended"]
    bench.take("c", 0)
    assert bench.done[-1] == "c ended"


def test_what_is_called_off_does_not_go_on() -> None:
    bench = Bench()
    bench.take("a", SLICE_MS, 0)
    bench.take("b", 0)
    bench.turns.clear()
    assert bench.done == ["a0", "a called off"]
    assert bench.clock.timer_count == 0
    bench.take("c", 0)
    assert bench.done[2:] == ["c0", "c ended"]


def test_a_piece_may_call_off_everything_itself_included() -> None:
    bench = Bench()

    def piece() -> Steps[None]:
        bench.turns.clear()
        bench.done.append("cleared")
        yield
        bench.done.append("went on")

    bench.take("a", SLICE_MS)
    bench.turns.take(piece())
    bench.take("b", 0)
    bench.clock.turn()
    assert bench.done == ["a0", "a ended", "cleared"]
    bench.take("c", 0)
    assert bench.done[3:] == ["c0", "c ended"]


def test_what_a_piece_asks_for_comes_after_what_waits() -> None:
    bench = Bench()
    bench.turns.take(bench.piece("a", SLICE_MS, then=lambda: bench.take("c", 0)))
    bench.take("b", 0)
    bench.clock.turn()
    assert bench.done == ["a0", "a ended", "b0", "b ended", "c0", "c ended"]
