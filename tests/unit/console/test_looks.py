"""What took long is not asked again at once, and never over a change."""

from __future__ import annotations

import asyncio

import pytest

from moldau.console.looks import LONGEST_S, QUICK_S, TIMES_KEPT, Looks


class Question:
    """One that takes some time of a clock, and is counted."""

    def __init__(self, took_s: float) -> None:
        self.now_s = 100.0
        self.took_s = took_s
        self.count = 0
        self.error: Exception | None = None
        self.looks = Looks(lambda: self.now_s)

    async def ask(self) -> int:
        self.count += 1
        self.now_s += self.took_s
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.count

    async def look(self) -> int:
        return await self.looks.of("topics", self.ask)


async def test_a_quick_answer_is_not_kept() -> None:
    question = Question(QUICK_S / 2)
    assert [await question.look() for _ in range(3)] == [1, 2, 3]


async def test_a_slow_answer_is_kept_for_so_many_times_as_long() -> None:
    question = Question(0.5)
    assert [await question.look() for _ in range(3)] == [1, 1, 1]
    question.now_s += 0.5 * TIMES_KEPT - 0.1
    assert await question.look() == 1
    question.now_s += 0.2
    assert await question.look() == 2


async def test_no_answer_is_kept_for_long() -> None:
    question = Question(60.0)
    assert await question.look() == 1
    question.now_s += LONGEST_S
    assert await question.look() == 2


async def test_a_change_has_everything_asked_again() -> None:
    question = Question(1.0)
    assert await question.look() == 1
    question.looks.forget()
    assert await question.look() == 2


async def test_an_answer_from_before_a_change_is_not_kept_behind_it() -> None:
    question = Question(1.0)
    asked = asyncio.create_task(question.look())
    await asyncio.sleep(0)
    question.looks.forget()
    assert await asked == 1
    assert await question.look() == 2


async def test_several_at_once_ask_once() -> None:
    question = Question(1.0)
    assert await asyncio.gather(*(question.look() for _ in range(5))) == [1] * 5


async def test_an_error_is_not_kept() -> None:
    question = Question(1.0)
    question.error = ValueError("down")
    with pytest.raises(ValueError, match="down"):
        await question.look()
    question.error = None
    assert await question.look() == 2
