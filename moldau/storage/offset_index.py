"""The sparse `.index` of a segment: which batch lies at which byte position.

Owns: the meaning of its entries (int32 offset relative to the segment's base, int32 position).
Must not: read the log file.
Invariant: strictly ascending in both columns; an entry names the last offset of the batch that
begins at its position. Source: Kafka's log segment format.
"""

from __future__ import annotations

from struct import Struct

from moldau.storage.sparse_index import SparseIndex


class OffsetIndex(SparseIndex):
    """Finds a byte position at or before the batch that holds an offset."""

    ENTRY = Struct(">ii")
    __slots__ = ()

    def append(self, last_offset: int, position: int) -> bool:
        """Note that the batch ending in `last_offset` begins at `position`.

        Returns whether there was room on the disk. Raises: OSError.
        """
        return self.put(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> tuple[int, int]:
        """`(last offset, position)` of the last entry at or before `offset`; the segment's begin
        when there is none.
        """
        count = self.count_at_most(offset - self.base_offset)
        if not count:
            return self.base_offset, 0
        relative, position = self.entry(count - 1)
        return self.base_offset + relative, position

    def position_at_most(self, position: int) -> int:
        """The largest indexed batch start that is <= position (0 when there is none)."""
        count = self.count_at_most(position, column=1)
        return self.entry(count - 1)[1] if count else 0

    @property
    def last_offset(self) -> int:
        """The last indexed offset, the base offset when empty."""
        last = self.last_raw()
        return self.base_offset + (last[0] if last else 0)

    def is_sane(self, log_size_bytes: int) -> bool:
        """Whether first and last entry can be true (a cheap look, done on every open)."""
        if not self.has_whole_entries():
            return False
        last = self.last_raw()
        if last is None:
            return True
        first = self.entry(0)
        ordered = first < last and first[1] < last[1] if self.entry_count > 1 else True
        return ordered and last[0] >= 0 and first[1] >= 0 and last[1] < max(log_size_bytes, 1)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`. Raises: OSError."""
        self.keep(self.count_at_most(offset - 1 - self.base_offset))
