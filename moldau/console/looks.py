"""What a person has lately asked a large cluster for, so that pages that look every few seconds do
not have it described every few seconds.

Invariants: an answer that came quickly is not kept; one that took long is kept for so many times as
long, so that asking takes a small part of the time, however often they look; nothing is kept over a
change that the person makes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

QUICK_S: Final = 0.1
TIMES_KEPT: Final = 10
LONGEST_S: Final = 30.0

Value = TypeVar("Value")


@dataclass(slots=True)
class _Look:
    """One question, and the last answer with the time until which it is kept."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: Any = None
    until_s: float = 0.0


@dataclass(eq=False)
class Looks:
    """The answers for one person.

    Args:
        now_s: a clock that never goes back.
    """

    now_s: Callable[[], float] = time.monotonic
    _looks: dict[str, _Look] = field(default_factory=dict)
    _change_count: int = 0

    async def of(self, question: str, ask: Callable[[], Awaitable[Value]]) -> Value:
        """The answer to a question, kept or asked for now; errors are not kept. Of several requests
        at once, one asks.

        Args:
            question: one of a few names, which means the same each time.
        """
        look = self._looks.setdefault(question, _Look())
        async with look.asking:
            if self.now_s() < look.until_s:
                kept: Value = look.answer
                return kept
            look.answer = None
            began_s, change_count = self.now_s(), self._change_count
            answer = await ask()
            took_s = self.now_s() - began_s
            if took_s >= QUICK_S and change_count == self._change_count:
                look.answer = answer
                look.until_s = self.now_s() + min(LONGEST_S, TIMES_KEPT * took_s)
            return answer

    def forget(self) -> None:
        """Keep nothing of what was asked before now: the person has changed something."""
        self._change_count += 1
        for look in self._looks.values():
            look.answer, look.until_s = None, 0.0
