"""Long work in slices of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from moldau.runtime.slices import RUN_LENGTH, SLICE_MS, LoopSlices, sorted_in_slices
from tests.kit.manual_clock import ManualClock


@pytest.mark.parametrize("count", [0, 1, RUN_LENGTH, 3 * RUN_LENGTH + 1])
async def test_texts_are_sorted_a_run_at_a_time(count: int) -> None:
    clock, dice = ManualClock(), Random(7)
    texts = [f"text-{dice.randrange(count)}" for _ in range(count)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def slowly() -> Iterator[str]:
        for text in texts:
            clock.advance(SLICE_MS / RUN_LENGTH * 2)
            yield text

    beside = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    assert list(await sorted_in_slices(LoopSlices(clock), slowly())) == sorted(texts)
    beside.cancel()
    assert turns == -(-count // RUN_LENGTH) - (0 < count % RUN_LENGTH < RUN_LENGTH // 2)
