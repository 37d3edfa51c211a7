"""What the quorum core may ask about its replica's log.

Owns: the port. Must not: be answered by reading a disk: everything here is in memory. Invariant:
the answers change only by effects the core has asked for, by `on_appended` of a leader's own
batches, and by snapshots, and the core is told of each.
"""

from __future__ import annotations

from typing import Protocol

from moldau.raft.core.values import EpochEnd, SnapshotId


class LogView(Protocol):
    """The log as its driver knows it."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will get."""

    @property
    def last_leader_epoch(self) -> int:
        """The epoch of the last record, or of the latest snapshot when there is none after it; 0 in
        an empty log.
        """

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """The largest epoch at or below `leader_epoch` that the log or the snapshot at its start
        has, and where it ends; EpochEnd(0, log start) when there is none.
        """

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest finished snapshot."""

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        """The oldest one that is still there."""

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Whether exactly this snapshot can be read."""
