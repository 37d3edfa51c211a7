"""Batches that are in the log and not yet committed, as they will be delivered.

Owns: a bounded window of them. Must not: read the log; whoever misses a batch here finds it on the
disk. Invariant: the batches in it are consecutive and none of them has been cut off the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from moldau.raft.values import CommittedBatch

MAX_RECENT_BYTES: Final = 16 * 1024 * 1024
MAX_RECENT_BATCHES: Final = 10_000


class RecentBatches:
    """Spares the delivery a look at the disk."""

    __slots__ = ("_batches", "_size_bytes")

    def __init__(self) -> None:
        self._batches: deque[CommittedBatch] = deque()
        self._size_bytes = 0

    def add(self, batch: CommittedBatch) -> None:
        """The log has a further batch."""
        batches = self._batches
        is_next = not batches or batches[-1].last_offset + 1 == batch.base_offset
        is_full = (
            len(batches) >= MAX_RECENT_BATCHES
            or self._size_bytes + batch.size_bytes > MAX_RECENT_BYTES
        )
        if not is_next or is_full:
            self.clear()
        batches.append(batch)
        self._size_bytes += batch.size_bytes

    def take_below(self, end_offset: int) -> Iterator[CommittedBatch]:
        """Those that are committed now that everything below `end_offset` is."""
        batches = self._batches
        while batches and batches[0].last_offset < end_offset:
            batch = batches.popleft()
            self._size_bytes -= batch.size_bytes
            yield batch

    def truncate_to(self, end_offset: int) -> None:
        """The log was cut at `end_offset`."""
        batches = self._batches
        while batches and batches[-1].last_offset >= end_offset:
            self._size_bytes -= batches.pop().size_bytes

    def clear(self) -> None:
        """Forget all."""
        self._batches.clear()
        self._size_bytes = 0
