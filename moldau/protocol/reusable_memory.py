"""Large buffers that are used again as soon as no view on them is left.

Owns a few buffers that were handed out, and the check for views on them. There is no call that
gives a buffer back: this is for memory that passes from a response to its records, or from columns
to a table, where no place knows the end of its use. Fresh memory costs several times what recently
used memory does (docs/benchmarks.md). Invariant: a buffer with a view on it is never handed out
again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

STEP_BYTES: Final = 256 * 1024
"""Sizes are multiples of this, so that one buffer serves several needs."""
SMALLEST_BYTES: Final = 128 * 1024
"""Below this size the allocator is as fast."""


class ReusableMemory:
    """Hands out buffers, and remembers the newest of at most `limit_bytes` together."""

    __slots__ = ("_known", "_known_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes: int = limit_bytes
        self._known: deque[bytearray] = deque()
        self._known_bytes = 0

    def take(self, size_bytes: int) -> bytearray | None:
        """A buffer of at least that size, its contents arbitrary; None when it is not worth it.

        It may be handed out again as soon as no view (memoryview, Arrow buffer) on it exists, so
        its user holds one.
        """
        rounded = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        if size_bytes < SMALLEST_BYTES or rounded > self.limit_bytes:
            return None
        for _ in range(len(self._known)):
            buffer = self._known.popleft()
            self._known.append(buffer)
            if rounded <= len(buffer) <= 2 * rounded and is_unseen(buffer):
                return buffer
        buffer = bytearray(rounded)
        self._known.append(buffer)
        self._known_bytes += rounded
        while self._known_bytes > self.limit_bytes:
            self._known_bytes -= len(self._known.popleft())
        return buffer


def is_unseen(buffer: bytearray) -> bool:
    """Whether no view on the buffer exists: with one, its size cannot change."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
