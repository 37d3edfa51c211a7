"""Makes a failing sequence shorter: the fewest requests that still show the same difference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from tests.interop.differential.groups.playing import Failure
from tests.interop.differential.groups.sequences import Sequence

TIMES: Final = 20

Again = Callable[[Sequence], Awaitable[Failure | None]]
"""Plays a sequence, in groups made for it."""


async def is_stable(failure: Failure, again: Again) -> bool:
    """Whether playing the sequence again always shows such a difference: what Apache Kafka does may
    depend on the order of ids that it draws.
    """
    for _ in range(TIMES):
        if await _same(failure, failure.sequence, again) is None:
            return False
    return True


async def shrink(failure: Failure, again: Again) -> Failure:
    """Drop requests as long as a difference of the same kind stays."""
    best = failure
    shrunk = True
    while shrunk:
        shrunk = False
        for place in reversed(range(best.at + 1)):
            steps = best.sequence.steps
            shorter = replace(best.sequence, steps=steps[:place] + steps[place + 1 : best.at + 1])
            if not shorter.steps:
                continue
            found = await _same(failure, shorter, again)
            if found is not None:
                best, shrunk = found, True
                break
    return best


async def _same(failure: Failure, sequence: Sequence, again: Again) -> Failure | None:
    found = await again(sequence)
    return found if found is not None and found.kind == failure.kind else None
