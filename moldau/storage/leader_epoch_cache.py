"""LeaderEpochCache: which leader epoch wrote which offsets of one partition.

Owns: the ascending list of (leader epoch, start offset) and its checkpoint file; which of both is
wrong where the file and the batches differ (`EpochComparison`).
Must not: read the log.
Invariant: epochs strictly ascend and start offsets never descend. The file may lag behind memory
only above the recovery point: recovery assigns those epochs again from the batches.
Source: KIP-101, KIP-279.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from moldau.protocol.records import BatchHeader
from moldau.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    EpochStartOffset,
    RowsFile,
    SegmentSeal,
    read_leader_epoch_checkpoint,
)

UNDEFINED_EPOCH = -1


@dataclass(slots=True, eq=False, repr=False)
class LeaderEpochCache(RowsFile):
    """Leader epochs by start offset, for fencing and for finding where replicas diverge."""

    NAME = LEADER_EPOCH_CHECKPOINT

    entries: list[EpochStartOffset] = field(default_factory=list)
    latest_epoch: int = UNDEFINED_EPOCH
    """The newest epoch, -1 when there is none."""

    def _rows(self) -> list[EpochStartOffset]:
        return self.entries

    def load(self) -> None:
        """Read the checkpoint file. Raises: OSError, CorruptFile."""
        self._replace(read_leader_epoch_checkpoint(self._filesystem, self._path))
        self.is_dirty = not self._filesystem.exists(self._path)

    def clear(self) -> None:
        """Forget all epochs (a damaged file is rebuilt from the log)."""
        self._replace([])
        self.is_dirty = True

    def assign(self, leader_epoch: int, start_offset: int) -> None:
        """Records from `start_offset` on carry `leader_epoch`.

        Entries with later starts are dropped: the log was cut there. A lower epoch than the latest
        is ignored: a leader that has it has not seen its own latest metadata, and appends nothing.
        """
        if leader_epoch <= self.latest_epoch:
            return
        kept = [each for each in self.entries if each.start_offset < start_offset]
        self._replace([*kept, EpochStartOffset(leader_epoch, start_offset)])
        self.is_dirty = True

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        kept = [e for e in self.entries if e.start_offset < end_offset]
        if len(kept) < len(self.entries):
            self._replace(kept)
            self.is_dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end before `start_offset`; the one that holds it begins there."""
        index = bisect_right(self.entries, start_offset, key=lambda e: e.start_offset) - 1
        if index < 0 or (index == 0 and self.entries[0].start_offset == start_offset):
            return
        first = EpochStartOffset(self.entries[index].leader_epoch, start_offset)
        self._replace([first, *self.entries[index + 1 :]])
        self.is_dirty = True

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch `offset` was written under, -1 when that is not known."""
        return _epoch_at(self.entries, offset)

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """`(epoch, end offset)`: the largest epoch <= `leader_epoch` and where it ends (exclusive).

        (-1, -1) for an undefined epoch, or one newer than all in the log.
        """
        entries = self.entries
        if leader_epoch == self.latest_epoch != UNDEFINED_EPOCH:
            return leader_epoch, log_end_offset
        index = bisect_right(entries, leader_epoch, key=lambda e: e.leader_epoch)
        if leader_epoch == UNDEFINED_EPOCH or index == len(entries):
            return UNDEFINED_EPOCH, -1
        if index == 0:
            # Older than everything kept: it ends where the first known epoch begins.
            return leader_epoch, entries[0].start_offset
        return entries[index - 1].leader_epoch, entries[index].start_offset

    def _replace(self, entries: list[EpochStartOffset]) -> None:
        self.entries = entries
        self.latest_epoch = entries[-1].leader_epoch if entries else UNDEFINED_EPOCH


def _epoch_at(entries: Sequence[EpochStartOffset], offset: int) -> int:
    index = bisect_right(entries, offset, key=lambda e: e.start_offset) - 1
    return entries[index].leader_epoch if index >= 0 else UNDEFINED_EPOCH


def epochs_checksum(entries: Sequence[EpochStartOffset], start_offset: int, end_offset: int) -> int:
    """CRC-32 of the leader epochs of the offsets [start_offset, end_offset)."""
    index = bisect_right(entries, start_offset, key=lambda e: e.start_offset) - 1
    lines = [
        f"{each.leader_epoch} {max(each.start_offset, start_offset)}"
        for each in entries[max(index, 0) :]
        if each.start_offset < end_offset
    ]
    return zlib.crc32("\n".join(lines).encode())


@dataclass(slots=True, eq=False)
class EpochComparison:
    """The leader epochs that the checkpoint file had, beside those of flushed batches.

    No CRC covers either. Where they differ, and a segment's seal has the file's epochs of that
    segment, the batch is damaged; without such a seal the file is not that of these batches.
    """

    entries: Sequence[EpochStartOffset] = ()
    """What the file holds."""
    start_offset: int = 0
    """The file may say nothing of batches that begin below it."""
    end_offset: int = 0
    """Batches that begin at or above it are not compared: the file may lag behind them."""
    is_wrong: bool = False
    """Whether the file was found to be wrong."""

    def difference(self, header: BatchHeader) -> str:
        """How the file's epochs differ from a batch's; "" where they agree. The first epoch may
        begin within a batch, where the log's start lies; no other does.
        """
        offset, found = header.base_offset, header.partition_leader_epoch
        if offset >= self.end_offset:
            return ""
        count = bisect_right(self.entries, offset, key=lambda e: e.start_offset)
        named = self.entries[count - 1].leader_epoch if count else UNDEFINED_EPOCH
        if named != found and (count or offset >= self.start_offset):
            return f"leader epoch {found} where the log has {named}"
        following = self.entries[count] if 0 < count < len(self.entries) else None
        if following is not None and following.start_offset < header.next_offset:
            return f"leader epoch {following.leader_epoch} begins within the batch"
        return ""

    def begun_in_gap(self, header: BatchHeader, previous_end: int) -> list[EpochStartOffset]:
        """The epochs up to a batch's own that begin, by the file, in the gap between the end of the
        batch before it and itself: compaction has removed what was written there.
        """
        return [
            each
            for each in self.entries
            if previous_end <= each.start_offset <= header.base_offset
            and each.leader_epoch <= header.partition_leader_epoch
        ]

    def is_as_sealed(self, seal: SegmentSeal | None, end_offset: int) -> bool:
        """Whether the file has the epochs of the sealed segment, which ends at `end_offset`, from
        its first offset on: when the log's start moves, older ones go.
        """
        if seal is None or _epoch_at(self.entries, seal.base_offset) == UNDEFINED_EPOCH:
            return False
        return seal.epochs_crc == epochs_checksum(self.entries, seal.base_offset, end_offset)
