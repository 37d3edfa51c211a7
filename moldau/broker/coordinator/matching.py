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
        while position < end:
            async with self._turn:
                if not is_wanted():
                    return None
                position = await self._offload(
                    match_slice, self._clock, patterns, names, found, position
                )
        return found


def match_slice(
    clock: Clock,
    patterns: Sequence[Any],
    names: Sequence[str],
    found: list[list[str]],
    position: int,
) -> int:
    """Match from one position in the product of names and patterns on; where the slice ended."""
    slice_end_ms = clock.monotonic_ms() + MATCH_SLICE_MS
    end = len(patterns) * len(names)
    while position < end:
        name_index, pattern_index = divmod(position, len(patterns))
        if patterns[pattern_index].fullmatch(names[name_index]) is not None:
            found[pattern_index].append(names[name_index])
        position += 1
        if clock.monotonic_ms() >= slice_end_ms:
            break
    return position
