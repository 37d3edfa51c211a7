"""Matching many names with regular expressions, and compiling expressions, on the loop.

Owns which look-ups are small enough for the loop, the turns of the others, and how much of the loop
clients may use for compilations. Must not know what the names are, or who may see them. Invariant:
a look-up that may take over 2 ms is not matched on the loop; of those, one slice at a time is under
way.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Sequence
from typing import Any, Final

from moldau.broker.coordinator.core.expressions import (
    InvalidExpression,
    compile_anew,
    compile_expression,
)
from moldau.broker.coordinator.expressions.workers import SliceWorker
from moldau.runtime.clock import Clock
from moldau.runtime.slices import LoopSlices

NS_PER_NAME: Final = 600
NS_PER_STEP: Final = 6
"""What a name takes at most: a constant, and a time for each instruction of the expression at each
character of the name (measured: 0.03 to 6.1 ns).
"""

MAX_NS_ON_THE_LOOP: Final = 2_000_000
"""A look-up that may take longer by this estimate is done beside the loop."""

PIECE_CHARACTERS: Final = 32_768
"""Names go to the worker in pieces of that many characters, at least one name each."""

FREE_COMPILATION_MS: Final = 0.3
"""An expression that compiles in this processor time or less costs its client no rest."""

TIMED_TWICE_MS: Final = 2.0
"""An expression that took longer is not timed again: twice it would hold the loop for longer than
the most expensive one does once, 4 ms.
"""

REST_PER_COMPILATION: Final = 1_000
"""The next requests of the client wait this many times as long as the compilation took: RE2 holds
Python's lock while it compiles, so that a thread would hold up the loop as well. One connection
can take 0.1 % of the loop by compilations (what others see of it: docs/benchmarks.md).
"""

MOST_REST_MS: Final = 5_000
"""The longest rest: the time between two heartbeats, a ninth of a session."""


class ExpressionMatcher:
    """Small look-ups are done at once, others in slices by time, in turns.

    Args:
        worker: takes the slices.
    """

    def __init__(self, clock: Clock, worker: SliceWorker) -> None:
        self._clock = clock
        self._worker = worker
        self._turn = asyncio.Lock()

    def rest_after(self, expression: str) -> int:
        """Compile the expression of a request, so that it is remembered, valid or not.

        Returns:
            For how many milliseconds the client's next requests shall wait.
        """
        taken_ms = self._time(compile_expression, expression)
        if FREE_COMPILATION_MS < taken_ms <= TIMED_TWICE_MS:
            # On a busy machine anything may take long once: clients shall not rest for that.
            again_ms = self._time(compile_anew, expression)
            taken_ms = again_ms if again_ms <= FREE_COMPILATION_MS else taken_ms + again_ms
        if taken_ms <= FREE_COMPILATION_MS:
            return 0
        return int(min(taken_ms * REST_PER_COMPILATION, MOST_REST_MS))

    def _time(self, compile_it: Callable[[str], Any], expression: str) -> float:
        """Milliseconds of processor time, without those of the garbage collector."""
        is_collecting = gc.isenabled()
        gc.disable()
        begin_ms = self._clock.thread_ms()
        try:
            with contextlib.suppress(InvalidExpression):
                compile_it(expression)
            return self._clock.thread_ms() - begin_ms
        finally:
            if is_collecting:
                gc.enable()

    async def match(
        self, patterns: Sequence[Any], names: Sequence[str], *, is_wanted: Callable[[], bool]
    ) -> list[list[str]] | None:
        """For each pattern the names that it matches as a whole, in their order.

        Args:
            patterns: compiled expressions.
            is_wanted: called before each slice; once it says no, the result is None.
        """
        character_count = sum(map(len, names))
        slices = LoopSlices(self._clock)
        found = []
        for pattern in patterns:
            if not is_wanted():
                return None
            steps = pattern.programsize * character_count
            if NS_PER_NAME * len(names) + NS_PER_STEP * steps <= MAX_NS_ON_THE_LOOP:
                found.append([name for name in names if pattern.fullmatch(name) is not None])
            elif not await self._match_beside(pattern, names, is_wanted, found):
                return None
            if slices.is_over:
                await slices.next()
        return found

    async def _match_beside(
        self,
        pattern: Any,
        names: Sequence[str],
        is_wanted: Callable[[], bool],
        found: list[list[str]],
    ) -> bool:
        """Add what the pattern matches; False when the look-up is not wanted any more."""
        matched: list[str] = []
        position = 0
        while position < len(names):
            piece = _piece(names, position)
            async with self._turn:
                if not is_wanted():
                    return False
                indexes, count = await self._worker.take(pattern, piece)
            matched += [piece[index] for index in indexes]
            position += count
        found.append(matched)
        return True

    async def close(self) -> None:
        """There will be no more look-ups."""
        await self._worker.close()


def _piece(names: Sequence[str], position: int) -> Sequence[str]:
    end, characters = position, 0
    while end < len(names) and (end == position or characters < PIECE_CHARACTERS):
        characters += len(names[end])
        end += 1
    return names[position:end]
