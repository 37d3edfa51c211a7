"""SegmentSeals: what the files beside a log held when they were whole.

Owns: the seals of one partition's closed segments and the file `segment-seals` (docs/adr/0019).
Must not: read or judge the files that a seal speaks of.
Invariant: a seal in the file speaks of a segment that was on stable storage with its indexes before
the seal was written. A segment without a seal, or that differs from its seal, promises nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping

from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    SEGMENT_SEALS,
    SegmentSeal,
    read_segment_seals,
    write_segment_seals,
)


class SegmentSeals:
    """Seals by base offset."""

    __slots__ = ("_filesystem", "_path", "_write_lock", "entries", "is_closed", "is_dirty")

    def __init__(self, filesystem: Filesystem, directory: str) -> None:
        self._filesystem = filesystem
        self._path = os.path.join(directory, SEGMENT_SEALS)
        self._write_lock = threading.Lock()
        self.entries: Mapping[int, SegmentSeal] = {}
        self.is_dirty = False
        """Whether the file lags behind `entries`."""
        self.is_closed = False
        """Nothing is written any more: the directory may belong to another log."""

    def load(self) -> None:
        """Read the file. Raises: OSError, CorruptFile."""
        self.entries = read_segment_seals(self._filesystem, self._path)

    def put(self, seals: Iterable[SegmentSeal], base_offsets: Collection[int]) -> None:
        """Add or replace seals; those of other segments than `base_offsets` are forgotten."""
        changed = [seal for seal in seals if self.entries.get(seal.base_offset) != seal]
        if changed:
            entries = {each.base_offset: each for each in [*self.entries.values(), *changed]}
            self.entries = {base: entries[base] for base in base_offsets if base in entries}
            self.is_dirty = True

    def forget_from(self, base_offset: int) -> None:
        """Forget the seals of the segment with this base offset and of those behind it: the files
        beside them are made again, and may hold other entries, as good as those before.
        """
        kept = {base: seal for base, seal in self.entries.items() if base < base_offset}
        self.is_dirty |= len(kept) < len(self.entries)
        self.entries = kept

    def write(self) -> None:
        """Bring the file up to date, durably. Raises: OSError.

        May run in a disk thread while the loop adds seals: `entries` is replaced, never changed in
        place, and a change after the flag was cleared sets it again.
        """
        with self._write_lock:
            if self.is_dirty and not self.is_closed:
                self.is_dirty = False
                try:
                    write_segment_seals(self._filesystem, self._path, self.entries.values())
                except OSError:
                    self.is_dirty = True
                    raise

    def close(self) -> None:
        """Write nothing from now on; a running write in a disk thread is over on return."""
        with self._write_lock:
            self.is_closed = True
