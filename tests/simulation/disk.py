"""A replica's disk in memory: what is in the page cache, and what would survive a power loss.

Owns: the log's batches, the election state, the snapshots, and of each what is durable. Must not:
know the algorithm. Invariant: the log is its durable image plus the changes since, in order; a
process kill keeps everything, a power loss keeps the image and any part of the changes from the
first on, where an append may be torn (then recovery drops that batch).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from moldau.raft.core.values import ElectionState, EpochEnd, SnapshotId
from moldau.raft.core.voters import VoterSet
from tests.simulation.ledger import Entry


class DiskFailure(Exception):
    """The disk refuses: the replica has to stop."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of the log. `voters` is the set its last record carries; a damaged batch has a wrong
    checksum, which the follower that appends it notices.
    """

    base_offset: int
    leader_epoch: int
    payloads: tuple[Any, ...]
    voters: VoterSet | None = None
    is_control: bool = False
    is_damaged: bool = False

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.base_offset + len(self.payloads)


class Snapshot(NamedTuple):
    """What a snapshot holds: the state machine and the voters as of its end."""

    snapshot_id: SnapshotId
    applied_count: int
    state_digest: int
    voters: VoterSet


@dataclass(slots=True)
class LogImage:
    """A log: its batches, and where it starts."""

    start: int = 0
    batches: list[Batch] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.batches[-1].end_offset if self.batches else self.start

    def copy(self) -> LogImage:
        """An image that does not change with this one."""
        return LogImage(self.start, list(self.batches))

    def append(self, batch: Batch) -> None:
        """Adds a batch at the end."""
        assert batch.base_offset == self.end
        self.batches.append(batch)

    def truncate(self, end_offset: int) -> None:
        """Removes everything from `end_offset` on; a batch is removed whole."""
        while self.batches and self.batches[-1].end_offset > end_offset:
            self.batches.pop()
        assert self.end == max(end_offset, self.start)

    def trim(self, start_offset: int) -> None:
        """Lets the log begin at `start_offset`."""
        self.batches = [each for each in self.batches if each.base_offset >= start_offset]
        assert not self.batches or self.batches[0].base_offset == start_offset
        self.start = start_offset

    def restart(self, start_offset: int) -> None:
        """An empty log that begins at `start_offset`."""
        self.batches = []
        self.start = start_offset

    def batch_at(self, offset: int) -> Batch | None:
        """The batch that holds an offset."""
        index = bisect_right(self.batches, offset, key=_base_of) - 1
        if index < 0 or offset >= self.batches[index].end_offset:
            return None
        return self.batches[index]


def _base_of(batch: Batch) -> int:
    return batch.base_offset


class Disk:
    """What one directory holds. Survives the processes that use it."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Distinguishes directories, also those that were wiped."""
        self.log = LogImage()
        self.durable_log = LogImage()
        self.changes: list[tuple[str, Any]] = []
        self.election = ElectionState()
        self.durable_election = ElectionState()
        self.snapshots: dict[SnapshotId, Snapshot] = {}
        self.flush_latency_ms = 1.0
        self.slow_until_ms = 0.0
        self.slow_factor = 1.0
        self.fails_after: int | None = None
        """How many operations still succeed; None for a healthy disk."""
        self.is_broken = False
        """Whether no operation succeeds."""
        self.keeps_cache = False
        """Whether a broken disk has lost nothing: it has only become read-only."""
        self.is_full = False

    # Operations that may fail and take time

    def latency_ms(self, now_ms: float, random: Random) -> float:
        """How long the operation that begins now takes.

        Raises:
            DiskFailure: the disk refuses it.
        """
        if self.is_broken:
            raise DiskFailure
        if self.fails_after is not None:
            if self.fails_after <= 0:
                raise DiskFailure
            self.fails_after -= 1
        latency = self.flush_latency_ms * (0.5 + random.random())
        return latency * self.slow_factor if now_ms < self.slow_until_ms else latency

    # The log

    def change_log(self, operation: str, argument: Any) -> None:
        """Does it in the page cache."""
        getattr(self.log, operation)(argument)
        self.changes.append((operation, argument))

    def sync_log(self, change_count: int) -> None:
        """The first `change_count` changes have become durable."""
        for operation, argument in self.changes[:change_count]:
            getattr(self.durable_log, operation)(argument)
        del self.changes[:change_count]

    def holds_durably(self, offset: int, leader_epoch: int) -> bool:
        """Whether the record would survive a power loss, in the log or below a snapshot."""
        if any(offset < each.end_offset for each in self.snapshots):
            return True
        batch = self.durable_log.batch_at(offset)
        return batch is not None and batch.leader_epoch == leader_epoch

    # Crashes

    def lose_power(self, random: Random) -> None:
        """What is not durable is lost, from somewhere on; the last surviving append may be torn."""
        kept = random.randint(0, len(self.changes))
        self.sync_log(kept)
        self.changes.clear()
        self.log = self.durable_log.copy()
        self.election = self.durable_election

    def recover(self) -> None:
        """What a starting process does: snapshots and log are aligned, and everything that was
        found is flushed, because the page cache of a killed process may hold more than the disk.
        """
        latest = max(self.snapshots, default=None)
        if latest is not None and not self._continues(latest):
            self.change_log("restart", latest.end_offset)
        elif self.log.start not in (0, *(each.end_offset for each in self.snapshots)):
            # A trim was lost with the power: the voters as of there are not known any more.
            self.change_log("trim", min(self.snapshots).end_offset)
        self.sync_log(len(self.changes))
        self.durable_election = self.election

    def _continues(self, snapshot_id: SnapshotId) -> bool:
        """Whether the log holds the snapshot's last record, or starts right behind it."""
        if self.log.start == snapshot_id.end_offset:
            return True
        last = self.log.batch_at(snapshot_id.end_offset - 1)
        return last is not None and last.leader_epoch == snapshot_id.leader_epoch


class DiskLog:
    """The LogView and LogReader of a replica on its disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @property
    def log_start_offset(self) -> int:
        return self._disk.log.start

    @property
    def log_end_offset(self) -> int:
        return self._disk.log.end

    @property
    def last_leader_epoch(self) -> int:
        log = self._disk.log
        return log.batches[-1].leader_epoch if log.batches else self._epoch_at_start()

    def _epoch_at_start(self) -> int:
        start = self._disk.log.start
        for snapshot_id in self._disk.snapshots:
            if snapshot_id.end_offset == start:
                return snapshot_id.leader_epoch
        return 0

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        log = self._disk.log
        found = self._epoch_at_start()
        if found > leader_epoch:
            return EpochEnd(0, log.start)
        for batch in log.batches:
            if batch.leader_epoch > leader_epoch:
                return EpochEnd(found, batch.base_offset)
            found = batch.leader_epoch
        return EpochEnd(found, log.end)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return max(self._disk.snapshots, default=None)

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return min(self._disk.snapshots, default=None)

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        return snapshot_id in self._disk.snapshots

    # LogReader

    def start(self) -> int:
        return self._disk.log.start

    def end(self) -> int:
        return self._disk.log.end

    def entry_at(self, offset: int) -> Entry | None:
        batch = self._disk.log.batch_at(offset)
        if batch is None:
            return None
        return batch.leader_epoch, batch.payloads[offset - batch.base_offset]
