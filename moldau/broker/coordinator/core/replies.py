"""Answers within the broker: what takes one without being a request, and one answer out of many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

PartT = TypeVar("PartT")


class Answerable(Protocol):
    """What a `Reply` goes to, exactly once; a request's context is one. State machines do not look
    into it.
    """

    def respond(self, message: Any) -> None: ...


class CallbackReply:
    """Hands the answer to a function."""

    __slots__ = ("respond",)

    def __init__(self, respond: Callable[[Any], None]) -> None:
        self.respond = respond


_MISSING: Final = object()


class Collector(Generic[PartT]):
    """Joins the answers for several groups or partitions: make all parts with `part`, then call
    `all_asked`. A part may be answered at any time.

    Invariant: `done` is called exactly once, when the last part has its answer, with the parts in
    the order in which they were made.
    """

    __slots__ = ("_done", "_is_complete", "_missing_count", "_parts")

    def __init__(self, done: Callable[[list[PartT]], None]) -> None:
        self._done = done
        self._parts: list[Any] = []
        self._missing_count = 0
        self._is_complete = False

    def part(self, made: Callable[[Any], PartT] | None = None) -> CallbackReply:
        """The reply of one more part.

        Args:
            made: turns the answer into the part as soon as it comes: `done` may have very many.
        """
        self._parts.append(_MISSING)
        self._missing_count += 1
        return CallbackReply(partial(self._take, len(self._parts) - 1, made))

    def all_asked(self) -> None:
        """There will be no more parts."""
        self._is_complete = True
        self._end_if_complete()

    def _take(self, index: int, made: Callable[[object], PartT] | None, message: object) -> None:
        assert self._parts[index] is _MISSING, "a part is answered once"
        self._parts[index] = message if made is None else made(message)
        self._missing_count -= 1
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._is_complete and not self._missing_count:
            parts, self._parts = self._parts, []
            self._done(parts)
