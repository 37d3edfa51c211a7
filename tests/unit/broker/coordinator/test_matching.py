"""Matching off the loop: slices of time, turns, and an end when the result is not wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import re2

from moldau.broker.coordinator.matching import (
    FREE_COMPILATION_MS,
    MATCH_SLICE_MS,
    MOST_REST_MS,
    REST_PER_COMPILATION,
    ExpressionMatcher,
)
from moldau.runtime.clock import ManualClock

MATCH_MS = 0.3
NAMES = [f"name-{number}" for number in range(20)]


class Pattern:
    """Matches names that end in a digit's text; each match takes its time."""

    def __init__(self, clock: ManualClock, end: str) -> None:
        self.clock = clock
        self.end = end

    def fullmatch(self, name: str) -> object | None:
        self.clock.advance(MATCH_MS)
        return name if name.endswith(self.end) else None


class Thread:
    """Stands in for the threads: how long each call took, and for whom."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.calls_ms: list[float] = []
        self.looked_up: list[Any] = []

    async def offload(self, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        begun_ms = self.clock.monotonic_ms()
        result = function(*args)
        self.calls_ms.append(self.clock.monotonic_ms() - begun_ms)
        self.looked_up.append(args[1])
        return result


async def test_no_slice_is_longer_than_its_time_and_one_match() -> None:
    clock = ManualClock()
    thread = Thread(clock)
    matcher = ExpressionMatcher(clock, thread.offload)
    patterns = [Pattern(clock, "3"), Pattern(clock, "x"), Pattern(clock, "7")]
    found = await matcher.match(patterns, NAMES, is_wanted=lambda: True)
    assert found == [["name-3", "name-13"], [], ["name-7", "name-17"]]
    assert len(thread.calls_ms) == 15
    assert max(thread.calls_ms) < MATCH_SLICE_MS + MATCH_MS


async def test_look_ups_take_turns() -> None:
    clock = ManualClock()
    thread = Thread(clock)
    matcher = ExpressionMatcher(clock, thread.offload)
    one, other = [Pattern(clock, "1")], [Pattern(clock, "2")]
    await asyncio.gather(
        *(matcher.match(each, NAMES, is_wanted=lambda: True) for each in (one, other))
    )
    assert thread.looked_up == [one, other] * 5


async def test_a_look_up_that_is_not_wanted_any_more_ends_after_its_slice() -> None:
    clock = ManualClock()
    thread = Thread(clock)
    matcher = ExpressionMatcher(clock, thread.offload)
    found = await matcher.match(
        [Pattern(clock, "1")], NAMES, is_wanted=lambda: len(thread.calls_ms) < 2
    )
    assert found is None
    assert len(thread.calls_ms) == 2


async def test_without_patterns_or_names_nothing_is_found() -> None:
    clock = ManualClock()
    matcher = ExpressionMatcher(clock, Thread(clock).offload)
    assert await matcher.match([], NAMES, is_wanted=lambda: True) == []
    assert await matcher.match([Pattern(clock, "1")], [], is_wanted=lambda: True) == [[]]


@pytest.mark.parametrize("end", ["", "("], ids=["taken", "refused"])
def test_who_has_an_expression_compiled_rests_once_for_as_long_as_that_took(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    clock = ManualClock()
    compile_with_re2, taken_ms = re2.compile, 0.0

    def slowly(expression: str, options: Any) -> Any:
        clock.stand_still(taken_ms)
        return compile_with_re2(expression, options)

    monkeypatch.setattr(re2, "compile", slowly)
    matcher = ExpressionMatcher(clock, Thread(clock).offload)
    for taken_ms, rest_ms in (
        (FREE_COMPILATION_MS / 2, 0),
        (2.0, 2 * REST_PER_COMPILATION),
        (1e6, MOST_REST_MS),
    ):
        expression = f"rest-{taken_ms}-{end}"
        assert matcher.rest_after(expression) == rest_ms
        assert matcher.rest_after(expression) == 0
