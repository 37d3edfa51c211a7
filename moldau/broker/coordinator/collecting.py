"""One answer out of many: requests that ask several groups, or several partitions.

Owns the counting of parts that are still missing. Must not know what they say. Invariant: `done`
is called exactly once, when the last part is there, with the parts in the order of their making.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from moldau.broker.coordinator import CallbackReply

_MISSING: Final = object()


class Collector:
    """Make all parts with `part`, then call `all_asked`; parts may be answered at any time."""

    __slots__ = ("_done", "_is_complete", "_missing_count", "_parts")

    def __init__(self, done: Callable[[list[Any]], None]) -> None:
        self._done = done
        self._parts: list[Any] = []
        self._missing_count = 0
        self._is_complete = False

    def part(self, made: Callable[[Any], Any] | None = None) -> CallbackReply:
        """Who is to be answered with the next part.

        Args:
            made: makes the part of that answer when it comes: `done` may have very many of them.
        """
        self._parts.append(_MISSING)
        self._missing_count += 1
        return CallbackReply(partial(self._take, len(self._parts) - 1, made))

    def all_asked(self) -> None:
        """There will be no more parts."""
        self._is_complete = True
        self._end_if_complete()

    def _take(self, index: int, made: Callable[[Any], Any] | None, message: Any) -> None:
        assert self._parts[index] is _MISSING, "a part is answered once"
        self._parts[index] = message if made is None else made(message)
        self._missing_count -= 1
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._is_complete and not self._missing_count:
            parts, self._parts = self._parts, []
            self._done(parts)
