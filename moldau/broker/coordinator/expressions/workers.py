"""The workers that try names on a regular expression, beside the loop: threads or a child process.

A slice is some names that one expression is tried on, for so long: it tries at least one name, and
ends after the match under way when its time is over. Workers must not know what the names are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import orjson

from moldau.runtime.child_process import ChildLost, ChildProcess
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.telemetry.logs import RateLimitedLog
from moldau.server.outgoing import Offload

THREAD_SLICE_MS: Final = 1.0
"""Python's lock is free during a match, but not between two: the loop waits for it that long."""

Tried = tuple[list[int], int]
"""Indexes of the names that match as a whole, and how many names were tried."""


class SliceWorker(Protocol):
    """Tries names beside the loop; one slice at a time."""

    async def take(self, pattern: Any, names: Sequence[str]) -> Tried:
        """Try a compiled expression on the first names, or on all of them."""

    async def close(self) -> None:
        """No slice comes any more. Idempotent."""


class ThreadWorker:
    """Tries names in the file system's threads; a simulation has none, and runs them inline.

    Args:
        offload: runs a function on another thread.
    """

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload

    async def take(self, pattern: Any, names: Sequence[str]) -> Tried:
        tried: Tried = await self._offload(
            take_slice, pattern, names, self._clock.monotonic_ms, THREAD_SLICE_MS
        )
        return tried

    async def close(self) -> None:
        """Nothing is held between slices."""


def take_slice(
    pattern: Any, names: Sequence[str], now_ms: Callable[[], float], slice_ms: float
) -> Tried:
    """Try names until the slice is over."""
    end_ms = now_ms() + slice_ms
    matching = []
    for index, name in enumerate(names):
        if pattern.fullmatch(name) is not None:
            matching.append(index)
        if now_ms() >= end_ms:
            return matching, index + 1
    return matching, len(names)


CHILD: Final = "moldau.broker.coordinator.expressions.child"
IDLE_MS: Final = 60_000
"""How long a child waits for the next look-up: it takes 26 MB, and 0.1 s to start."""

ANSWER_S: Final = 30.0
"""A child that does not answer for so long (stopped, or without processor time) is replaced."""

logger = logging.getLogger("moldau.broker.coordinator.expressions")


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
        self._log = RateLimitedLog(logger, clock, allowed_count=1, interval_ms=60_000)

    @property
    def child_pid(self) -> int | None:
        """The child's process id, None without one."""
        return self._child.pid

    async def take(self, pattern: Any, names: Sequence[str]) -> Tried:
        if self._idle is not None:
            self._idle.cancel()
        try:
            return await self._ask(
                orjson.dumps([pattern.pattern, names], option=orjson.OPT_APPEND_NEWLINE)
            )
        except (ChildLost, ValueError, TypeError) as lost:
            self._child.kill()
            self._log.warning("regular expressions: %s; a thread matches names instead", lost)
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
                indexes, tried_count = orjson.loads(await self._child.read_line())
                return indexes, tried_count
        except TimeoutError:
            raise ChildLost(f"its process did not answer within {ANSWER_S:g} s") from None

    async def close(self) -> None:
        """End the child, if there is one."""
        if self._idle is not None:
            self._idle.cancel()
        await self._child.end()
