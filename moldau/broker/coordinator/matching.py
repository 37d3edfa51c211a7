"""Matching many names with regular expressions, off the loop, and compiling expressions, on it.

Owns: the slices of all look-ups of one broker, and how much of the loop clients may have compiled.
Must not: know what the names are, or who may see them. Invariant: one thread works on one slice at
a time, so that disks do not wait for threads; a look-up leaves the thread when its slice is over,
and after the match that is under way then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from moldau.broker.coordinator.core.expressions import InvalidExpression, compile_expression
from moldau.runtime.clock import Clock
from moldau.runtime.outgoing import Offload

MATCH_SLICE_MS: Final = 1.0
"""Python's lock is free during a match, but not between two: the loop waits for it so long."""

FREE_MATCHING_MS: Final = 5.0
"""A look-up that takes no longer, as one of some thousand names by an ordinary expression, does not
rest.
"""

REST_PER_MATCHING: Final = 200
"""What a look-up takes beyond that, it rests so many times as long, and others like it rest with
it: together they have 0.5 % of a processor, which others' 99th percentile does not see.
"""

FREE_COMPILATION_MS: Final = 0.3
"""An expression that takes no longer to compile, in processor time, costs its client no rest."""

REST_PER_COMPILATION: Final = 1_000
"""The next requests of its client wait for so many times as long as another expression took: RE2
holds Python's lock while it compiles, so that a thread would hold up the loop as well. So one
connection takes 0.1 % of the loop by compilations, and others' 99th percentile does not see them
(docs/benchmarks.md).
"""

MOST_REST_MS: Final = 5_000
"""A rest is no longer: so long is the time between two heartbeats, a ninth of a session."""


class ExpressionMatcher:
    """Matches in slices by the time that has passed; look-ups take turns.

    Args:
        offload: runs a function on another thread.
    """

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload
        self._turn = asyncio.Lock()
        self._long_turn = asyncio.Lock()

    def rest_after(self, expression: str) -> int:
        """Compile the expression of a request, so that it is remembered, valid or not.

        Returns:
            For how many milliseconds the client's next requests shall wait.
        """
        begin_ms = self._clock.thread_ms()
        with contextlib.suppress(InvalidExpression):
            compile_expression(expression)
        taken_ms = self._clock.thread_ms() - begin_ms
        if taken_ms <= FREE_COMPILATION_MS:
            return 0
        return int(min(taken_ms * REST_PER_COMPILATION, MOST_REST_MS))

    async def match(
        self, patterns: Sequence[Any], names: Sequence[str], *, is_wanted: Callable[[], bool]
    ) -> list[list[str]] | None:
        """For each pattern the names that it matches as a whole, in their order.

        Args:
            patterns: compiled expressions.
            is_wanted: looked at before each slice; None is returned once it says no.
        """
        found: list[list[str]] = [[] for _ in patterns]
        position, end = 0, len(patterns) * len(names)
        taken_ms = last_ms = 0.0
        while position < end:
            is_long = taken_ms > FREE_MATCHING_MS
            async with self._long_turn if is_long else contextlib.nullcontext():
                if is_long:
                    await self._rest(min(last_ms * REST_PER_MATCHING, MOST_REST_MS))
                async with self._turn:
                    if not is_wanted():
                        return None
                    position, last_ms = await self._offload(
                        match_slice, self._clock, patterns, names, found, position
                    )
            taken_ms += last_ms
        return found

    async def _rest(self, rest_ms: float) -> None:
        over = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(rest_ms, over.set_result, None)
        try:
            await over
        finally:
            timer.cancel()


def match_slice(
    clock: Clock,
    patterns: Sequence[Any],
    names: Sequence[str],
    found: list[list[str]],
    position: int,
) -> tuple[int, float]:
    """Match from one position in the product of names and patterns on.

    Returns:
        Where the slice ended, and how many milliseconds it took.
    """
    begin_ms = now_ms = clock.monotonic_ms()
    end = len(patterns) * len(names)
    while position < end:
        name_index, pattern_index = divmod(position, len(patterns))
        if patterns[pattern_index].fullmatch(names[name_index]) is not None:
            found[pattern_index].append(names[name_index])
        position += 1
        now_ms = clock.monotonic_ms()
        if now_ms >= begin_ms + MATCH_SLICE_MS:
            break
    return position, now_ms - begin_ms
