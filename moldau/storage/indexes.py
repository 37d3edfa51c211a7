"""The indexes of a segment: `.index` (positions), `.timeindex` (timestamps), `.txnindex` (aborts).

Owns: the files' formats, mapping, preallocation and trimming.
Must not: read the log file, or know which transactions are still open.
Invariant: entries [0, entry_count) of offset and time index are written and sorted; what follows
them in the file is preallocated space without meaning. A file that is not open for appending is
exactly as long as its entries. Source: Kafka's log segment format, KIP-33, KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, NamedTuple

from moldau.protocol.records.header import crc32c
from moldau.runtime.files import MappedFile
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import is_out_of_room

POPULATE_BYTES = 64 * 1024
"""How much of the preallocated file gets pages and disk blocks at a time."""

MIN_ENTRY_COUNT = 2
"""Entries an index has room for however small `segment.index.bytes` is."""


def ends_checksum(entry: Struct, entry_count: int, ends: Iterable[tuple[int, int]]) -> int:
    """A CRC-32C over the entry count and the first and last entry of an index."""
    return crc32c(entry_count.to_bytes(4, "big") + b"".join(entry.pack(*each) for each in ends))


@dataclass(slots=True, eq=False)
class SparseIndex:
    """A file of fixed-width sorted entries, mapped on demand.

    `open_for_append` (active segment) -> entries are added -> `trim` (roll, close). The first
    lookup maps a trimmed index again, `unmap` lets it go.
    """

    ENTRY: ClassVar[Struct]
    OFFSET_COLUMN: ClassVar[int]

    _filesystem: Filesystem
    path: str
    base_offset: int
    capacity: int = 0
    """How many entries fit; 0 while the index is not open for appending."""
    entry_count: int = -1
    """Valid entries; -1 before the first look at the file."""
    _mapped: MappedFile | None = None
    _populated_bytes: int = 0

    def open_for_append(self, max_size_bytes: int) -> None:
        """Map the file at its full preallocated size, keeping its entries. Raises: OSError."""
        self.load()
        capacity = max(max_size_bytes // self.ENTRY.size, MIN_ENTRY_COUNT, self.entry_count)
        if self.capacity == capacity:
            return
        self._unmap()
        self._mapped = self._filesystem.map(self.path, capacity * self.ENTRY.size, create=True)
        self.capacity = capacity
        self._populated_bytes = self.entry_count * self.ENTRY.size

    def load(self) -> None:
        """Count the entries of the (trimmed) file, once. Raises: OSError."""
        if self.entry_count < 0:
            size = self._filesystem.size_bytes(self.path) if self.exists() else 0
            self.entry_count = size // self.ENTRY.size

    def exists(self) -> bool:
        return self._filesystem.exists(self.path)

    def has_whole_entries(self) -> bool:
        return self._filesystem.size_bytes(self.path) % self.ENTRY.size == 0

    def trim(self) -> None:
        """Cut the file to its entries and unmap it; it stays readable. Raises: OSError."""
        if self.capacity:
            self._map().resize(self.entry_count * self.ENTRY.size)
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
        self._filesystem.map(self.path, 0, create=True).close()

    def _unmap(self) -> None:
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            mapped.close()

    @property
    def is_full(self) -> bool:
        return 0 < self.capacity <= self.entry_count

    def _map(self) -> MappedFile:
        mapped = self._mapped
        if mapped is None:
            self.load()
            size = self.entry_count * self.ENTRY.size
            mapped = self._mapped = self._filesystem.map(self.path, size)
        return mapped

    def entry(self, index: int) -> tuple[int, int]:
        return self.ENTRY.unpack_from(self._map().buffer, index * self.ENTRY.size)

    def last_raw(self) -> tuple[int, int] | None:
        self.load()
        return self.entry(self.entry_count - 1) if self.entry_count else None

    def checksum(self) -> int:
        """See `ends_checksum`: a look, not a read. Raises: OSError."""
        last = self.last_raw()
        return ends_checksum(self.ENTRY, self.entry_count, [self.entry(0), last] if last else [])

    def count_at_most(self, target: int, column: int = 0) -> int:
        """How many entries have `column` <= target (entries are sorted by every column)."""
        self.load()
        count = self.entry_count
        if not count:
            return 0
        unpack, size, buffer = self.ENTRY.unpack_from, self.ENTRY.size, self._map().buffer
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
        with closing(self._filesystem.open(self.path)) as file:
            file.pwrite(bytes(end - position), position)
        self._populated_bytes = end

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`. Raises: OSError."""
        entry_count = self.count_at_most(offset - 1 - self.base_offset, self.OFFSET_COLUMN)
        if entry_count < self.entry_count:
            self.entry_count = entry_count
            if not self.capacity:
                self._map().resize(entry_count * self.ENTRY.size)


class OffsetIndex(SparseIndex):
    """Finds a byte position at or before the batch that holds an offset.

    Entries (int32 relative offset, int32 position) strictly ascend in both columns; an entry names
    the last offset of the batch that begins at its position.
    """

    ENTRY = Struct(">ii")
    OFFSET_COLUMN = 0
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

    def is_sane(self, log_size_bytes: int) -> bool:
        """Whether first and last entry can be true (a cheap look, done on every open)."""
        if not self.has_whole_entries():
            return False
        last = self.last_raw()
        if last is None:
            return True
        first = self.entry(0)
        ordered = self.entry_count == 1 or (first[0] < last[0] and first[1] < last[1])
        return ordered and min(first) >= 0 and last[1] < max(log_size_bytes, 1)


_NEVER_WRITTEN = (0, 0)
"""What a page lost in a power failure shows. A true entry of 1970 costs a rebuild at each open."""


class TimestampOffset(NamedTuple):
    """A timestamp and the last offset of the batch that first reached it."""

    timestamp_ms: int
    offset: int


class TimeIndex(SparseIndex):
    """Finds the offset from which on a timestamp can occur.

    Entries (int64 timestamp in ms, int32 relative offset) strictly ascend in timestamp and ascend
    in offset: no record at or before an entry's offset has a larger timestamp than the entry.
    """

    ENTRY = Struct(">qi")
    OFFSET_COLUMN = 1
    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """One entry is kept free for the roll or close of the segment."""
        return 0 < self.capacity <= self.entry_count + 1

    def maybe_append(self, timestamp_ms: int, record_offset: int) -> bool:
        """Add an entry if its timestamp is larger than the last; False when the disk is full.

        Raises: OSError.
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


TXN_ENTRY = Struct(">hqqqq")
_TXN_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One aborted transaction: offsets [first_offset, last_offset] of its first record and its
    marker; `last_stable_offset` is what the last stable offset became when it ended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(TXN_ENTRY.pack(_TXN_VERSION, *entry) for entry in entries)


@dataclass(slots=True, eq=False, repr=False)
class TransactionIndex:
    """The aborted transactions of one segment, cached; no descriptor is kept between uses.

    Entries are in the order of their markers, so `last_offset` ascends. A segment in which nothing
    was aborted has no file. So a file that is lost or cut looks like one with fewer entries: what
    was neither written by this process nor agrees with a seal has to be proved from the markers
    (`transaction_proof`) before a reader learns of it.
    """

    _filesystem: Filesystem
    path: str
    is_proved: bool = True
    """Whether the entries are those of the segment's markers."""
    settled_below: int = 0
    """Transactions that begin below it have ended by the end of the segment, as far as known: no
    later segment names them."""
    _entries: list[AbortedTransaction] | None = None
    _rebuilding: bool = False

    def entries(self) -> list[AbortedTransaction]:
        """The entries in file order. Raises: OSError; ValueError when the file is damaged."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def _read(self) -> list[AbortedTransaction]:
        data = self._filesystem.read_bytes(self.path) if self.exists() else b""
        if len(data) % TXN_ENTRY.size:
            raise ValueError(f"{self.path}: {len(data)} bytes are no whole entries")
        entries: list[AbortedTransaction] = []
        previous_last_offset = -1
        for version, *rest in TXN_ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*rest)
            if version != _TXN_VERSION or not previous_last_offset < entry.last_offset:
                raise ValueError(f"{self.path}: entry {len(entries)} is not valid")
            previous_last_offset = entry.last_offset
            entries.append(entry)
        return entries

    def exists(self) -> bool:
        """Whether anything was aborted in the segment, so that there is a file."""
        return self._filesystem.exists(self.path)

    def is_sane(self) -> bool:
        """Whether the file can be read as whole, ordered entries."""
        try:
            self.entries()
        except ValueError:
            return False
        return True

    def checksum(self) -> int:
        """A CRC-32C over all entries. Raises: OSError; ValueError when the file is damaged."""
        return crc32c(encode_entries(self.entries()))

    def distrust(self, end_offset: int) -> None:
        """The entries must be proved before they count; those that cannot be true go at once.

        `end_offset`: where the segment ends. Raises: OSError.
        """
        self.is_proved = False
        if self.is_sane():
            self.truncate_to(end_offset)
        else:
            self._filesystem.unlink(self.path)
            self._entries = []

    def adopt(self, proved: list[AbortedTransaction], end_offset: int) -> bool:
        """`proved` are the entries below `end_offset`; returns whether others were in the file.

        Raises: OSError, with the entries right and the file as it was.
        """
        entries = self.entries()
        whole = proved + [each for each in entries if each.last_offset >= end_offset]
        self.is_proved, self._entries = True, whole
        if whole != entries:
            self._store()
        return whole != entries

    def append(self, aborted: AbortedTransaction) -> None:
        """Add an entry at the end. Raises: OSError with the file as it was."""
        entries = self.entries()
        if self._rebuilding:
            entries.append(aborted)
            return
        with closing(self._filesystem.open(self.path, create=True)) as file:
            file.append(TXN_ENTRY.pack(_TXN_VERSION, *aborted))
        entries.append(aborted)

    def truncate_to(self, offset: int) -> None:
        """Keep what ended below `offset`. Raises: OSError."""
        self.settled_below = 0
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) < len(entries):
            with closing(self._filesystem.open(self.path)) as file:
                file.truncate(len(kept) * TXN_ENTRY.size)
            self._entries = kept

    def begin_rebuild(self) -> None:
        """From now on collect entries; `finish_rebuild` replaces those of the file by them."""
        self._entries = []
        self._rebuilding = True

    def finish_rebuild(self) -> None:
        """Write what was collected, durably: no later check notices a missing entry.

        Raises: OSError.
        """
        self._rebuilding = False
        self._store()

    def _store(self) -> None:
        data = encode_entries(self.entries())
        exists = self.exists()
        if not data and exists:
            self._filesystem.unlink(self.path)
        elif data and not (exists and self._filesystem.read_bytes(self.path) == data):
            self._filesystem.write_atomically(self.path, data)

    def collect(
        self, fetch_offset: int, upper_bound_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that a reader of [fetch_offset, upper_bound_offset) must skip, and
        whether no later segment can have more of them.
        """
        found = []
        for entry in self.entries():
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, self.settled_below >= upper_bound_offset
