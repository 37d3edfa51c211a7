"""The `.txnindex` of a segment: the transactions that were aborted inside it.

Owns: the file's 34-byte entries and their cached list.
Must not: know which transactions are still open (producer_state does).
Invariant: entries are in the order of their markers, so `last_offset` ascends. A segment in which
nothing was aborted has no file. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from moldau.runtime.filesystem import Filesystem

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One aborted transaction: offsets [first_offset, last_offset] of its first record and its
    marker; `last_stable_offset` is what the last stable offset became when it ended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """The contents of a `.txnindex` with these entries."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


class TransactionIndex:
    """The aborted transactions of one segment; no descriptor is kept between uses."""

    __slots__ = ("_entries", "_filesystem", "_rebuilding", "path")

    def __init__(self, filesystem: Filesystem, path: str) -> None:
        self._filesystem = filesystem
        self._entries: list[AbortedTransaction] | None = None
        self._rebuilding = False
        self.path = path

    def entries(self) -> list[AbortedTransaction]:
        """All of them, in file order. Raises: OSError; ValueError when the file is damaged."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def _read(self) -> list[AbortedTransaction]:
        if not self._filesystem.exists(self.path):
            return []
        data = self._filesystem.read_bytes(self.path)
        if len(data) % _ENTRY.size:
            raise ValueError(f"{self.path}: {len(data)} bytes are no whole entries")
        entries: list[AbortedTransaction] = []
        previous_last_offset = -1
        for version, *rest in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*rest)
            if version != _VERSION or not previous_last_offset < entry.last_offset:
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

    def append(self, aborted: AbortedTransaction) -> None:
        """Add one at the end. Raises: OSError with the file as it was."""
        entries = self.entries()
        if self._rebuilding:
            entries.append(aborted)
            return
        file = self._filesystem.open(self.path, create=True)
        try:
            file.append(_ENTRY.pack(_VERSION, *aborted))
        finally:
            file.close()
        entries.append(aborted)

    def truncate_to(self, offset: int) -> None:
        """Keep what ended below `offset`. Raises: OSError."""
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) < len(entries):
            file = self._filesystem.open(self.path)
            try:
                file.truncate(len(kept) * _ENTRY.size)
            finally:
                file.close()
            self._entries = kept

    def begin_rebuild(self) -> None:
        """Entries added from now on replace the file's, at `finish_rebuild`."""
        self._entries = []
        self._rebuilding = True

    def finish_rebuild(self) -> None:
        """Bring the file up to what was added, durably: nothing tells later that an entry misses.

        Raises: OSError.
        """
        self._rebuilding = False
        data = encode_entries(self.entries())
        exists = self._filesystem.exists(self.path)
        if not data and exists:
            self._filesystem.unlink(self.path)
        elif data and not (exists and self._filesystem.read_bytes(self.path) == data):
            self._filesystem.write_atomically(self.path, data)

    def collect(
        self, fetch_offset: int, upper_bound_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those a reader of [fetch_offset, upper_bound_offset) must skip, and whether no later
        segment can have more of them.
        """
        found = []
        for entry in self.entries():
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, False
