"""Matching many names with regular expressions, and compiling expressions, on the loop.

Owns which look-ups are small enough for the loop, the turns of the others, the workers that take
them (threads or a child process), and how much of the loop clients may use for compilations. Must
not know what the names are, or who may see them. Invariant: a look-up that may take over 2 ms is
not matched on the loop; of those, one slice at a time is under way, principals take turns, and each
ends when it has taken MAX_MATCH_MS.

A slice is some names that a worker tries on one expression, for so long: it tries at least one
name, and ends after the match under way when its time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import orjson

from moldau.broker.coordinator.core.expressions import (
    InvalidExpression,
    Pattern,
    compile_expression,
    compile_once_more,
    load_library,
)
from moldau.runtime.child_process import ChildLost, ChildProcess
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.slices import LoopSlices
from moldau.server.fair_shares import FairShares
from moldau.server.outgoing import Offload

THREAD_SLICE_MS: Final = 1.0
"""Python's lock is free during a match, but not between two: the loop waits for it that long."""

Tried = tuple[list[int], int, float]
"""Indexes of the names that match as a whole, how many names were tried, and the milliseconds of
processor time that took.
"""


class SliceWorker(Protocol):
    """Tries names beside the loop; one slice at a time."""

    async def take(self, pattern: Pattern, names: Sequence[str]) -> Tried:
        """Try a compiled expression on the first names, or on all of them."""

    async def close(self) -> None: ...


class ThreadWorker:
    """Tries names in the file system's threads; a simulation has none, and runs them inline."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload

    async def take(self, pattern: Pattern, names: Sequence[str]) -> Tried:
        tried: Tried = await self._offload(take_slice, pattern, names, self._clock, THREAD_SLICE_MS)
        return tried

    async def close(self) -> None:
        pass


def take_slice(pattern: Pattern, names: Sequence[str], clock: Clock, slice_ms: float) -> Tried:
    begin_ms, end_ms = clock.thread_ms(), clock.monotonic_ms() + slice_ms
    matching = []
    tried_count = 0
    for name in names:
        if pattern.fullmatch(name) is not None:
            matching.append(tried_count)
        tried_count += 1
        if clock.monotonic_ms() >= end_ms:
            break
    return matching, tried_count, clock.thread_ms() - begin_ms


CHILD: Final = "moldau.broker.coordinator.expression_child"
IDLE_MS: Final = 60_000
"""How long a child waits for the next look-up: it takes 26 MB, and 0.1 s to start."""

ANSWER_S: Final = 30.0
"""A child that does not answer for so long (stopped, or without processor time) is replaced."""

logger = logging.getLogger(__name__)


class ProcessWorker:
    """Tries names in a child process, which gets the processor time that others leave. A line of
    its input is a question (the expression and the names), a line of its output the answer.

    Invariant: no answer is taken for another question's: a child whose answer was not awaited is
    killed. States: no child -> (`take`) one that works -> one that waits -> (`IDLE_MS`, `close`)
    no child.

    Args:
        instead: takes a slice when the child is lost, or cannot be started.
    """

    def __init__(self, clock: Clock, instead: SliceWorker) -> None:
        self._clock = clock
        self._instead = instead
        self._child = ChildProcess(CHILD)
        self._idle: TimerHandle | None = None

    async def take(self, pattern: Pattern, names: Sequence[str]) -> Tried:
        if self._idle is not None:
            self._idle.cancel()
        try:
            return await self._ask(
                orjson.dumps([pattern.pattern, names], option=orjson.OPT_APPEND_NEWLINE)
            )
        except (ChildLost, ValueError, TypeError) as lost:
            self._child.kill()
            logger.warning("regular expressions: %s; a thread matches names instead", lost)
            return await self._instead.take(pattern, names)
        except BaseException:
            self._child.kill()
            raise
        finally:
            self._idle = self._clock.call_later(IDLE_MS, self._child.kill)

    async def _ask(self, question: bytes) -> Tried:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._child.write(question)
                indexes, tried_count, taken_ms = orjson.loads(await self._child.read_line())
                return indexes, tried_count, taken_ms
        except TimeoutError:
            raise ChildLost(f"its process did not answer within {ANSWER_S:g} s") from None

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        await self._child.end()


NS_PER_NAME: Final = 600
NS_PER_STEP: Final = 6
"""What a name takes at most: a constant, and a time for each instruction of the expression at each
character of the name (measured: 0.03 to 6.1 ns).
"""

MAX_NS_ON_THE_LOOP: Final = 2_000_000
"""A look-up that may take longer by this estimate is done beside the loop."""

MAX_MATCH_MS: Final = 5_000.0
"""How much processor time one look-up may take: an expression of usual cost tries a million names
in that time.
"""

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


class TooCostly(InvalidExpression):
    """An expression that takes too long with the names that there are."""


class ExpressionMatcher:
    """Small look-ups are done at once, others in slices by time, in turns."""

    def __init__(self, clock: Clock, worker: SliceWorker) -> None:
        self._clock = clock
        self._worker = worker
        self._turns = FairShares(1)

    def rest_after(self, expression: str) -> int:
        """Compile the expression of a request, so that it is remembered, valid or not, and tell for
        how many milliseconds the client's next requests shall wait.
        """
        load_library()
        taken_ms = self._time(compile_expression, expression)
        if FREE_COMPILATION_MS < taken_ms <= TIMED_TWICE_MS:
            # On a busy machine anything may take long once: clients shall not rest for that.
            again_ms = self._time(compile_once_more, expression)
            taken_ms = again_ms if again_ms <= FREE_COMPILATION_MS else taken_ms + again_ms
        if taken_ms <= FREE_COMPILATION_MS:
            return 0
        return int(min(taken_ms * REST_PER_COMPILATION, MOST_REST_MS))

    def _time(self, compile_it: Callable[[str], object], expression: str) -> float:
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
        self,
        patterns: Sequence[Pattern],
        names: Sequence[str],
        *,
        principal: str,
        is_wanted: Callable[[], bool],
    ) -> list[list[str]] | None:
        """For each pattern the names that it matches as a whole, in their order; None once
        `is_wanted`, which is called before each slice, says no.

        Raises:
            TooCostly: a pattern has taken MAX_MATCH_MS.
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
            elif not await self._match_beside(principal, pattern, names, is_wanted, found):
                return None
            if slices.is_over:
                await slices.next()
        return found

    async def _match_beside(
        self,
        principal: str,
        pattern: Pattern,
        names: Sequence[str],
        is_wanted: Callable[[], bool],
        found: list[list[str]],
    ) -> bool:
        """Add what the pattern matches; False when the look-up is not wanted any more."""
        matched: list[str] = []
        position, left_ms = 0, MAX_MATCH_MS
        while position < len(names):
            if left_ms <= 0:
                raise TooCostly(
                    f"{pattern.pattern!r} takes more than {MAX_MATCH_MS:g} ms of processor time"
                )
            piece = _piece(names, position)
            async with self._turns.share(principal):
                if not is_wanted():
                    return False
                indexes, count, taken_ms = await self._worker.take(pattern, piece)
            left_ms -= taken_ms
            matched += [piece[index] for index in indexes]
            position += count
        found.append(matched)
        return True

    async def close(self) -> None:
        await self._worker.close()


def _piece(names: Sequence[str], position: int) -> Sequence[str]:
    end, characters = position, 0
    while end < len(names) and (end == position or characters < PIECE_CHARACTERS):
        characters += len(names[end])
        end += 1
    return names[position:end]
