"""The sparse `.timeindex` of a segment: the largest timestamp seen up to an offset.

Owns: the meaning of its entries (int64 timestamp in ms, int32 relative offset).
Must not: read the log file.
Invariant: strictly ascending in timestamp, ascending in offset: no record at or before an entry's
offset has a larger timestamp than the entry. Source: KIP-33.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from moldau.storage.sparse_index import SparseIndex

_NEVER_WRITTEN = (0, 0)
"""What a page lost in a power failure shows. A true entry of 1970 costs a rebuild at each open."""


class TimestampOffset(NamedTuple):
    """A timestamp and the last offset of the batch that first reached it."""

    timestamp_ms: int
    offset: int


class TimeIndex(SparseIndex):
    """Finds the offset from which on a timestamp can occur."""

    ENTRY = Struct(">qi")
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """One entry is kept free for the segment's last word when it rolls or closes."""
        return 0 < self.capacity <= self.entry_count + 1

    def maybe_append(self, timestamp_ms: int, record_offset: int) -> bool:
        """Add an entry if it is news: a larger timestamp than the last. Raises: OSError.

        Returns False when the disk has no room for it.
        """
        last = self.last_raw()
        if last is not None and (
            timestamp_ms <= last[0] or record_offset - self.base_offset < last[1]
        ):
            return True
        if timestamp_ms < 0:
            return True
        if self.entry_count >= self.capacity:
            return False
        return self.put(timestamp_ms, record_offset - self.base_offset)

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry with a timestamp <= the given; (-1, base offset) when there is none."""
        count = self.count_at_most(timestamp_ms)
        return self._at(count - 1) if count else TimestampOffset(-1, self.base_offset)

    @property
    def last_entry(self) -> TimestampOffset:
        """The segment's largest indexed timestamp; (-1, base offset) when empty."""
        self.load()
        count = self.entry_count
        return self._at(count - 1) if count else TimestampOffset(-1, self.base_offset)

    def _at(self, index: int) -> TimestampOffset:
        timestamp_ms, relative = self.entry(index)
        return TimestampOffset(timestamp_ms, self.base_offset + relative)

    def is_sane(self) -> bool:
        """Whether first and last entry can be true (a cheap look, done on every open)."""
        if not self.has_whole_entries():
            return False
        last = self.last_raw()
        if last is None:
            return True
        if last[0] < 0 or last[1] < 0 or last == _NEVER_WRITTEN:
            return False
        first = self.entry(0)
        return self.entry_count == 1 or (first[0] < last[0] and first[1] <= last[1])

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`. Raises: OSError."""
        self.keep(self.count_at_most(offset - 1 - self.base_offset, column=1))
