"""SegmentSeals: what the files beside a log held when they were whole.

Owns: the seals of one partition's closed segments and the file `segment-seals` (docs/adr/0019).
Must not: read or judge the files that a seal speaks of.
Invariant: a seal in the file speaks of a segment that was on stable storage with its indexes before
the seal was written. A segment without a seal, or that differs from its seal, promises nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from moldau.storage.checkpoints import SEGMENT_SEALS, RowsFile, SegmentSeal, read_segment_seals


@dataclass(slots=True, eq=False, repr=False)
class SegmentSeals(RowsFile):
    """Seals by base offset."""

    NAME = SEGMENT_SEALS

    entries: Mapping[int, SegmentSeal] = field(default_factory=dict)

    def _rows(self) -> Iterable[SegmentSeal]:
        return self.entries.values()

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
