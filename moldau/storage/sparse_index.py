"""SparseIndex: what offset index and time index share: a file of fixed-width sorted entries.

Owns: mapping the file, the count of valid entries, preallocation and trimming.
Must not: know what an entry means, or touch the log file.
Invariant: entries [0, entry_count) are written and sorted; what lies behind them in the file is
preallocated space that means nothing. A file not open for appending is exactly its entries long.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, ClassVar

from moldau.runtime.filesystem import Filesystem, MappedFile
from moldau.storage.faults import is_out_of_room

POPULATE_BYTES = 64 * 1024
"""How much of the preallocated file gets pages and disk blocks at a time."""

MIN_ENTRY_COUNT = 2
"""Entries an index has room for however small `segment.index.bytes` is."""


class SparseIndex:
    """One index file, mapped on demand.

    `open_for_append` (active segment) -> entries are added -> `trim` (roll, close). A trimmed index
    is mapped again by the first lookup and let go by `unmap`.
    """

    ENTRY: ClassVar[Struct]

    __slots__ = (
        "_filesystem",
        "_mapped",
        "_populated_bytes",
        "base_offset",
        "capacity",
        "entry_count",
        "path",
    )

    def __init__(self, filesystem: Filesystem, path: str, base_offset: int) -> None:
        self._filesystem = filesystem
        self._mapped: MappedFile | None = None
        self._populated_bytes = 0
        self.path = path
        self.base_offset = base_offset
        self.capacity = 0
        """How many entries fit; 0 while the index is not open for appending."""
        self.entry_count = -1
        """Valid entries; -1 as long as nobody looked at the file."""

    # -- life ------------------------------------------------------------------------------------

    def open_for_append(self, max_size_bytes: int) -> None:
        """Map the file at its full preallocated size, keeping its entries.

        Raises: OSError.
        """
        self.load()
        capacity = max(max_size_bytes // self.ENTRY.size, MIN_ENTRY_COUNT, self.entry_count)
        if self.capacity == capacity:
            return
        self._unmap()
        self._mapped = self._filesystem.map(self.path, capacity * self.ENTRY.size, create=True)
        self.capacity = capacity
        self._populated_bytes = self.entry_count * self.ENTRY.size

    def load(self) -> None:
        """Learn how many entries the file has (all of it, once trimmed). Raises: OSError."""
        if self.entry_count < 0:
            size = self._filesystem.size_bytes(self.path) if self.exists() else 0
            self.entry_count = size // self.ENTRY.size

    def exists(self) -> bool:
        """Whether there is a file."""
        return self._filesystem.exists(self.path)

    def has_whole_entries(self) -> bool:
        """Whether the file's length is a multiple of an entry's."""
        return self._filesystem.size_bytes(self.path) % self.ENTRY.size == 0

    def trim(self) -> None:
        """Cut the file to its entries and unmap it; it stays readable. Raises: OSError."""
        if self.capacity:
            self._buffer_owner().resize(self.entry_count * self.ENTRY.size)
            self.capacity = 0
        self._unmap()

    def unmap(self) -> None:
        """Give back memory and descriptor of a trimmed index (idempotent)."""
        if not self.capacity:
            self._unmap()

    def abandon(self) -> None:
        """Unmap without trimming or writing: the file may be failing or about to be removed."""
        self.capacity = 0
        self._unmap()

    def reset(self) -> None:
        """Drop all entries and begin an empty trimmed file. Raises: OSError."""
        self.abandon()
        self.entry_count = 0
        mapped = self._filesystem.map(self.path, 0, create=True)
        mapped.close()

    def renamed(self, path: str) -> None:
        """The file has another name now."""
        self.path = path
        if self._mapped is not None:
            self._mapped.name = path

    def flush(self) -> None:
        """Mapped changes are on stable storage. Raises: OSError."""
        if self._mapped is not None:
            self._mapped.flush()

    def _unmap(self) -> None:
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()

    # -- entries ---------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll before the next entry."""
        return 0 < self.capacity <= self.entry_count

    def buffer(self) -> memoryview:
        """The mapped entries; do not keep slices."""
        return self._buffer_owner().buffer

    def _buffer_owner(self) -> MappedFile:
        mapped = self._mapped
        if mapped is None:
            self.load()
            size = self.entry_count * self.ENTRY.size
            mapped = self._mapped = self._filesystem.map(self.path, size)
        return mapped

    def entry(self, index: int) -> tuple[Any, ...]:
        """The raw entry number `index`."""
        return self.ENTRY.unpack_from(self.buffer(), index * self.ENTRY.size)

    def last_raw(self) -> tuple[Any, ...] | None:
        """The raw last entry, or None."""
        self.load()
        return self.entry(self.entry_count - 1) if self.entry_count else None

    def count_at_most(self, target: int, column: int = 0) -> int:
        """How many entries have `column` <= target (entries are sorted by every column)."""
        self.load()
        count = self.entry_count
        if not count:
            return 0
        unpack, size, buffer = self.ENTRY.unpack_from, self.ENTRY.size, self.buffer()
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if unpack(buffer, middle * size)[column] <= target:
                low = middle + 1
            else:
                high = middle
        return low

    def put(self, *values: int) -> bool:
        """Add an entry; False when there is no room for it (the index stays just sparser).

        Raises: OSError for anything else.
        """
        count = self.entry_count
        assert count < self.capacity, "an index entry without room for it"
        mapped = self._mapped
        assert mapped is not None
        position = count * self.ENTRY.size
        if position + self.ENTRY.size > self._populated_bytes:
            try:
                self._populate(position)
            except OSError as error:
                if is_out_of_room(error):
                    return False
                raise
        self.ENTRY.pack_into(mapped.buffer, position, *values)
        self.entry_count = count + 1
        return True

    def _populate(self, position: int) -> None:
        """Write zeros from `position` on through a descriptor, before entries go in by the mapping.

        A mapped write into a hole kills the process (SIGBUS) when the disk is full, and costs a
        page fault of 1.8 ms on ext4 with large folios where this costs 20 us. Raises: OSError.
        """
        next_boundary = (position // POPULATE_BYTES + 1) * POPULATE_BYTES
        end = min(next_boundary + self.ENTRY.size, self.capacity * self.ENTRY.size)
        file = self._filesystem.open(self.path)
        try:
            file.pwrite(bytes(end - position), position)
        finally:
            file.close()
        self._populated_bytes = end

    def keep(self, entry_count: int) -> None:
        """Drop the entries from number `entry_count` on. Raises: OSError."""
        self.load()
        if entry_count >= self.entry_count:
            return
        self.entry_count = entry_count
        if not self.capacity:
            self._buffer_owner().resize(entry_count * self.ENTRY.size)
