"""ProcessWorker: tries names in a child process, which gets what processor time others leave.

Owns: the child: its lines, and its end when there is nothing to do. Must not: choose names.
Invariant: no answer is taken for another question's: a child whose answer was not waited for is
killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import orjson

from moldau.broker.coordinator.expressions.slices import SliceWorker, Tried
from moldau.runtime.child_process import ChildLost, ChildProcess
from moldau.runtime.clock import Clock, TimerHandle
from moldau.runtime.telemetry.logs import RateLimitedLog

CHILD: Final = "moldau.broker.coordinator.expressions.child"
IDLE_MS: Final = 60_000
"""So long a child waits for the next look-up: it takes 26 MB, and 0.1 s to begin."""

ANSWER_S: Final = 30.0
"""A child that is stopped, or gets no processor time for so long, is replaced."""

logger = logging.getLogger("moldau.broker.coordinator.expressions")


class ProcessWorker:
    """States: no child -> (`take`) one that works -> one that waits -> (`IDLE_MS`, `close`) none.

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
            return await self._ask(encode_question(pattern.pattern, names))
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
                return decode_answer(await self._child.read_line())
        except TimeoutError:
            raise ChildLost(f"its process did not answer within {ANSWER_S:g} s") from None

    async def close(self) -> None:
        """End the child, if there is one."""
        if self._idle is not None:
            self._idle.cancel()
        await self._child.end()


def encode_question(expression: str, names: Sequence[str]) -> bytes:
    """One line."""
    return orjson.dumps([expression, names], option=orjson.OPT_APPEND_NEWLINE)


def decode_question(line: bytes) -> tuple[str, list[str]]:
    """The expression, and the names to try."""
    expression, names = orjson.loads(line)
    return expression, names


def encode_answer(tried: Tried) -> bytes:
    """One line."""
    return orjson.dumps(tried, option=orjson.OPT_APPEND_NEWLINE)


def decode_answer(line: bytes) -> Tried:
    """What `encode_answer` wrote."""
    matching, count = orjson.loads(line)
    return matching, count
