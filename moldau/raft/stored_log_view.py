"""What the quorum core sees of the log on disk.

Owns: the answers of the LogView port, out of the log's leader epochs and the list of snapshots.
Must not: read a disk or change anything. Invariant: an epoch that only the snapshot at the log's
start has counts as the epoch before the first record.
"""

from __future__ import annotations

from bisect import bisect_right

from moldau.raft.core.values import EpochEnd, SnapshotId
from moldau.raft.log_files import LogFiles


class StoredLogView:
    """LogView over `LogFiles`."""

    __slots__ = ("_files",)

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._files.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will get."""
        return self._files.log.log_end_offset

    @property
    def last_leader_epoch(self) -> int:
        """The epoch of the last record, else of the latest snapshot, else 0."""
        log = self._files.log
        if log.log_end_offset > log.log_start_offset:
            epoch = log.leader_epoch_cache.epoch_for_offset(log.log_end_offset - 1)
            assert epoch >= 0, "every record's epoch is known"
            return epoch
        latest = self.latest_snapshot
        return latest.leader_epoch if latest is not None else 0

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """The largest epoch at or below `leader_epoch` that is held, and where it ends."""
        log = self._files.log
        entries = log.leader_epoch_cache.entries
        index = bisect_right(entries, leader_epoch, key=lambda entry: entry.leader_epoch)
        if index > 0:
            ends_at = entries[index].start_offset if index < len(entries) else log.log_end_offset
            return EpochEnd(entries[index - 1].leader_epoch, ends_at)
        for snapshot in reversed(self._files.snapshots):
            is_at_start = snapshot.end_offset == log.log_start_offset
            if is_at_start and snapshot.leader_epoch <= leader_epoch:
                return EpochEnd(snapshot.leader_epoch, log.log_start_offset)
        return EpochEnd(0, log.log_start_offset)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest finished snapshot."""
        return self._files.snapshots[-1] if self._files.snapshots else None

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The oldest one that is still there."""
        return self._files.snapshots[0] if self._files.snapshots else None

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Whether exactly this snapshot can be read."""
        return snapshot_id in self._files.snapshots
