"""One slice of a look-up: some names that one expression is tried on, for so long.

Owns: the slice in this process's threads, and the port behind which others take it. Must not: know
what the names are. Invariant: a slice tries at least one name, and ends after the match under way
when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from moldau.runtime.clock import Clock
from moldau.server.outgoing import Offload

THREAD_SLICE_MS: Final = 1.0
"""Python's lock is free during a match, but not between two: the loop waits for it so long."""

Tried = tuple[list[int], int]
"""Indexes of the names that match as a whole, and how many names were tried."""


class SliceWorker(Protocol):
    """Tries names beside the loop; one slice at a time."""

    async def take(self, pattern: Any, names: Sequence[str]) -> Tried:
        """Try a compiled expression on the first names, or on all of them."""

    async def close(self) -> None:
        """No slice comes any more. Idempotent."""


class ThreadWorker:
    """Tries names in the file system's threads, which a simulation does not have either.

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
