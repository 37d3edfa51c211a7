"""Long work on an event loop, cut into slices by the time that has passed.

Owns: how long a slice may last. Must not: know the work. Invariant: between two looks at `is_over`
that say no, the loop is held for one slice and one step of the work at most.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from moldau.runtime.clock import Clock

T = TypeVar("T")

Work = Coroutine[object, None, None]
"""What a handler returns that needs several turns of the loop; later requests of its connection
wait until it has ended, so that they are handled in the order they came."""

SLICE_MS: Final = 0.5
"""How long one piece of work may hold the loop before other work has its turn; to switch takes a
fiftieth of that.
"""

RUN_LENGTH: Final = 5_000
"""How many texts are sorted in one go: 1 to 2 ms."""


class LoopSlices:
    """The slices of one piece of work: look at `is_over` after each step, await `next` if it is."""

    __slots__ = ("_clock", "_end_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + SLICE_MS

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_ms() >= self._end_ms

    async def next(self) -> None:
        """Let others have their turn; the next slice begins then."""
        await asyncio.sleep(0)
        self._end_ms = self._clock.monotonic_ms() + SLICE_MS


async def completed(clock: Clock, steps: Generator[object, None, T]) -> T:
    """The result of work that yields after each small part; others of the loop have their turns
    between slices. Work of one slice is done at once.
    """
    slices = LoopSlices(clock)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if slices.is_over:
            await slices.next()


async def sorted_in_slices(slices: LoopSlices, texts: Iterable[str]) -> Iterator[str]:
    """Texts in order: runs of them are sorted in slices, and merged while they are taken."""
    rest, runs = iter(texts), []
    while run := list(islice(rest, RUN_LENGTH)):
        run.sort()
        runs.append(run)
        if slices.is_over:
            await slices.next()
    return heapq.merge(*runs)


def in_slices(clock: Clock, steps: Iterator[object]) -> Work | None:
    """Take steps until they end or the slice is over; what takes the others, if any are left."""
    end_ms = clock.monotonic_ms() + SLICE_MS
    for _ in steps:
        if clock.monotonic_ms() >= end_ms:
            return _go_on(LoopSlices(clock), steps)
    return None


async def _go_on(slices: LoopSlices, steps: Iterator[object]) -> None:
    await slices.next()
    for _ in steps:
        if slices.is_over:
            await slices.next()
