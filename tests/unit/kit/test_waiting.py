"""Tests wait for conditions, as long as the machine needs: the factor reaches every limit."""

from __future__ import annotations

import pytest

from tests.kit import waiting
from tests.kit.waiting import patience, until, until_async

pytestmark = pytest.mark.real


@pytest.mark.parametrize(("said", "factor"), [(None, 1), ("1", 1), ("2.5", 2.5)])
def test_the_factor_is_what_the_environment_says(monkeypatch, said, factor):
    monkeypatch.delenv(waiting.PATIENCE, raising=False)
    if said is not None:
        monkeypatch.setenv(waiting.PATIENCE, said)
    assert patience() == factor


@pytest.mark.parametrize("said", ["", "0.5", "-1", "nan", "inf", "much"])
def test_anything_else_is_refused(monkeypatch, said):
    monkeypatch.setenv(waiting.PATIENCE, said)
    with pytest.raises(ValueError, match=r"MOLDAU_TEST_PATIENCE|not convert"):
        patience()


async def test_what_does_not_come_true_is_named_with_the_lengthened_limit(monkeypatch):
    monkeypatch.setenv(waiting.PATIENCE, "3")
    with pytest.raises(TimeoutError, match=r"^not within 0\.003 s: the moon$"):
        until(lambda: False, "the moon", deadline_s=0.001)
    with pytest.raises(TimeoutError, match=r"^not within 0\.003 s: the moon$"):
        await until_async(lambda: False, "the moon", deadline_s=0.001)


async def test_the_value_is_that_of_the_condition_awaited_or_not():
    async def awaited() -> list[int]:
        return [2]

    looks = [[1], [], []]
    assert until(looks.pop) == [1]
    assert await until_async(awaited) == [2]
    assert await until_async(lambda: [3]) == [3]
