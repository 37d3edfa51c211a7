"""OpenSegments: which closed segments have descriptors and mappings open, and how many may.

Owns: the least-recently-used order. Must not: touch active segments, which stay open.
Invariant: at most `limit` closed segments are open at a time; a FileRegion on its way to a socket
holds its descriptor by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

MAX_OPEN_CLOSED_SEGMENTS = 512
"""Closed segments of all logs of a process that keep their files open (up to three descriptors
each)."""


class Closeable(Protocol):
    """Something whose descriptors can be taken away and are opened again on demand."""

    def close_descriptors(self) -> None:
        """Give them back; the next use opens them again."""


class OpenSegments:
    """A bounded set of open things, the least recently used closed first. One loop's own."""

    __slots__ = ("_entries", "limit")

    def __init__(self, limit: int = MAX_OPEN_CLOSED_SEGMENTS) -> None:
        self.limit = limit
        self._entries: OrderedDict[int, Closeable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def touch(self, entry: Closeable) -> None:
        """`entry` is being used: it is open from now on, and something else may be closed."""
        key = id(entry)
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
            return
        while len(entries) >= self.limit:
            _, oldest = entries.popitem(last=False)
            oldest.close_descriptors()
        entries[key] = entry

    def forget(self, entry: Closeable) -> None:
        """`entry` closed by itself (deleted, became active, shut down)."""
        self._entries.pop(id(entry), None)

    def close_all(self) -> None:
        """Close everything that is open."""
        while self._entries:
            _, entry = self._entries.popitem(last=False)
            entry.close_descriptors()
