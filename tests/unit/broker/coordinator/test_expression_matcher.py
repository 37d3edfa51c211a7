"""Small look-ups on the loop, others in slices, in turns, and only as long as they are wanted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest
import re2

from moldau.broker.coordinator.core.expressions import compile_expression
from moldau.broker.coordinator.expression_matcher import (
    FREE_COMPILATION_MS,
    MAX_MATCH_MS,
    MAX_NS_ON_THE_LOOP,
    MOST_REST_MS,
    NS_PER_NAME,
    NS_PER_STEP,
    PIECE_CHARACTERS,
    REST_PER_COMPILATION,
    THREAD_SLICE_MS,
    TIMED_TWICE_MS,
    ExpressionMatcher,
    ThreadWorker,
    TooCostly,
    Tried,
    take_slice,
)
from tests.kit.manual_clock import ManualClock

NAMES = [f"name-{number}" for number in range(20)]
COSTLY = "((.?){0,15}){0,16}"
ENDS_IN = "(" + COSTLY + ")%s"


class Worker:
    """Tries three names a slice."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.is_closed = False
        self.taken_ms = 0.0

    async def take(self, pattern: Any, names: Sequence[str]) -> Tried:
        await asyncio.sleep(0)
        self.asked.append((pattern.pattern, list(names)))
        tried = names[:3]
        matching = [i for i, name in enumerate(tried) if pattern.fullmatch(name)]
        return matching, len(tried), self.taken_ms

    async def close(self) -> None:
        self.is_closed = True


async def test_a_small_look_up_is_done_at_once() -> None:
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    patterns = [compile_expression(each) for each in ("name-.*3", "x", ".*-7|.*-17")]
    found = await matcher.match(patterns, NAMES, principal="User:a", is_wanted=lambda: True)
    assert found == [["name-3", "name-13"], [], ["name-7", "name-17"]]
    assert worker.asked == []


async def test_a_costly_look_up_goes_beside_the_loop_and_others_of_the_same_request_do_not() -> (
    None
):
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    names = [*NAMES, "n" * 200]
    patterns = [compile_expression(each) for each in ("name-.*3", ENDS_IN % "3", "name-.*7")]
    found = await matcher.match(patterns, names, principal="User:a", is_wanted=lambda: True)
    assert found == [["name-3", "name-13"], ["name-3", "name-13"], ["name-7", "name-17"]]
    assert [names for _, names in worker.asked] == [names[start:] for start in range(0, 21, 3)]


@pytest.mark.parametrize("excess", [0, 1])
async def test_the_limit_of_the_loop(excess: int) -> None:
    worker = Worker()
    pattern = compile_expression("(abc|xyz)*")
    per_character = NS_PER_STEP * pattern.programsize
    length = (MAX_NS_ON_THE_LOOP - NS_PER_NAME) // per_character + excess
    matcher = ExpressionMatcher(ManualClock(), worker)
    assert await matcher.match(
        [pattern], ["x" * length], principal="User:a", is_wanted=lambda: True
    ) == [[]]
    assert len(worker.asked) == excess


async def test_many_short_names_are_no_small_look_up() -> None:
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    count = MAX_NS_ON_THE_LOOP // NS_PER_NAME + 1
    found = await matcher.match(
        [compile_expression("x")], [""] * count, principal="User:a", is_wanted=lambda: True
    )
    assert found == [[]]
    assert worker.asked


async def test_names_come_in_pieces_and_a_long_one_alone() -> None:
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    half = "h" * (PIECE_CHARACTERS // 2)
    long = "l" * (2 * PIECE_CHARACTERS)
    names = [half, half, half, long, "short"]
    found = await matcher.match(
        [compile_expression("h*|l*|s.*")], names, principal="User:a", is_wanted=lambda: True
    )
    assert found == [names]
    assert [asked for _, asked in worker.asked] == [[half, half], [half, long], ["short"]]


async def test_look_ups_take_turns() -> None:
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    names = [f"{'n' * 200}{number}" for number in range(9)]
    one, other = (compile_expression(ENDS_IN % number) for number in (1, 2))
    await asyncio.gather(
        *(
            matcher.match([each], names, principal="User:a", is_wanted=lambda: True)
            for each in (one, other)
        )
    )
    assert [asked for asked, _ in worker.asked] == [one.pattern, other.pattern] * 3


async def test_principals_take_turns_however_many_look_ups_one_has() -> None:
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    names = [f"{'n' * 200}{number}" for number in range(6)]
    many = [compile_expression(ENDS_IN % number) for number in range(5)]
    other = compile_expression(ENDS_IN % "x")
    asked = [("User:a", each) for each in many] + [("User:b", other)]
    await asyncio.gather(
        *(
            matcher.match([each], names, principal=principal, is_wanted=lambda: True)
            for principal, each in asked
        )
    )
    places = [index for index, (each, _) in enumerate(worker.asked) if each == other.pattern]
    assert places[1] <= 5, "between those of the others, not after them"


async def test_a_look_up_ends_when_its_time_is_used_up() -> None:
    worker = Worker()
    worker.taken_ms = MAX_MATCH_MS / 2
    matcher = ExpressionMatcher(ManualClock(), worker)
    pattern = compile_expression(ENDS_IN % "1")
    found = await matcher.match(
        [pattern], ["n" * 200] * 6, principal="User:a", is_wanted=lambda: True
    )
    assert (found, len(worker.asked)) == ([[]], 2)
    with pytest.raises(TooCostly, match="takes more than 5000 ms of processor time"):
        await matcher.match([pattern], ["n" * 200] * 7, principal="User:a", is_wanted=lambda: True)
    assert len(worker.asked) == 4, "nothing is tried beyond it"


async def test_a_look_up_that_is_not_wanted_any_more_ends_after_its_slice() -> None:
    worker = Worker()
    matcher = ExpressionMatcher(ManualClock(), worker)
    found = await matcher.match(
        [compile_expression(ENDS_IN % "1")],
        ["n" * 200] * 20,
        principal="User:a",
        is_wanted=lambda: len(worker.asked) < 2,
    )
    assert found is None
    assert len(worker.asked) == 2


async def test_a_look_up_on_the_loop_that_is_not_wanted_any_more_ends_with_its_slice() -> None:
    clock = ManualClock()
    matched: list[str] = []

    class Pattern:
        programsize = 1

        def fullmatch(self, name: str) -> None:
            clock.advance(1)
            matched.append(name)

    matcher = ExpressionMatcher(clock, Worker())
    patterns = [Pattern(), Pattern(), Pattern()]
    assert (
        await matcher.match(patterns, ["a"], principal="User:a", is_wanted=lambda: len(matched) < 2)
        is None
    )
    assert len(matched) == 2


async def test_without_patterns_or_names_nothing_is_found() -> None:
    matcher = ExpressionMatcher(ManualClock(), Worker())
    assert await matcher.match([], NAMES, principal="User:a", is_wanted=lambda: True) == []
    pattern = compile_expression(".*")
    assert await matcher.match([pattern], [], principal="User:a", is_wanted=lambda: True) == [[]]


async def test_the_worker_is_closed_with_it() -> None:
    worker = Worker()
    await ExpressionMatcher(ManualClock(), worker).close()
    assert worker.is_closed


async def test_no_slice_is_longer_than_its_time_and_one_match() -> None:
    clock = ManualClock()
    match_ms = 0.3
    taken_ms: list[float] = []

    class Pattern:
        def fullmatch(self, name: str) -> object | None:
            clock.advance(match_ms)
            return name if name.endswith("3") else None

    async def offload(function: Any, *args: Any) -> Any:
        begun_ms = clock.monotonic_ms()
        result = function(*args)
        taken_ms.append(clock.monotonic_ms() - begun_ms)
        return result

    worker = ThreadWorker(clock, offload)
    found, names = [], NAMES
    while names:
        indexes, count, _ = await worker.take(Pattern(), names)
        found += [names[index] for index in indexes]
        names = names[count:]
    assert found == ["name-3", "name-13"]
    assert len(taken_ms) == 5
    assert max(taken_ms) < THREAD_SLICE_MS + match_ms
    await worker.close()


def test_a_slice_tries_one_name_at_least() -> None:
    tried = take_slice(compile_expression(".*2"), ["1", "2", "2"], ManualClock(), 0.0)
    assert tried == ([], 1, 0.0)


@pytest.mark.parametrize("end", ["", "("], ids=["taken", "refused"])
def test_who_has_an_expression_compiled_rests_once_for_as_long_as_that_took(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    clock = ManualClock()
    compile_with_re2, taken_ms, compiled_count = re2.compile, 0.0, 0

    def slowly(expression: str, options: Any) -> Any:
        nonlocal compiled_count
        compiled_count += 1
        clock.stand_still(taken_ms)
        return compile_with_re2(expression, options)

    monkeypatch.setattr(re2, "compile", slowly)
    matcher = ExpressionMatcher(clock, Worker())
    for taken_ms, rest_ms, count in (
        (FREE_COMPILATION_MS / 2, 0, 1),
        (TIMED_TWICE_MS, 2 * TIMED_TWICE_MS * REST_PER_COMPILATION, 2),
        (TIMED_TWICE_MS + 1, (TIMED_TWICE_MS + 1) * REST_PER_COMPILATION, 1),
        (1e6, MOST_REST_MS, 1),
    ):
        expression, compiled_count = f"rest-{taken_ms}-{end}", 0
        assert matcher.rest_after(expression) == rest_ms
        assert matcher.rest_after(expression) == 0
        assert compiled_count == count


def test_what_took_long_once_and_not_again_costs_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    compile_with_re2 = re2.compile
    times_ms = iter([TIMED_TWICE_MS, FREE_COMPILATION_MS / 2])

    def disturbed(expression: str, options: Any) -> Any:
        assert not gc.isenabled(), "what the collector takes is not the expression's"
        clock.stand_still(next(times_ms))
        return compile_with_re2(expression, options)

    monkeypatch.setattr(re2, "compile", disturbed)
    matcher = ExpressionMatcher(clock, Worker())
    assert matcher.rest_after("disturbed once") == 0
    assert gc.isenabled()
    assert next(times_ms, None) is None
