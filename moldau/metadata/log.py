"""What the metadata log hands to its listeners: committed batches, snapshots, news of the leader.

All values are immutable: they cross threads.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from moldau.metadata.image.values import Provenance
from moldau.protocol.schema import Message


class CommittedBatch(NamedTuple):
    """A committed batch of metadata records. Control batches are delivered too, without records, so
    that offsets stay gapless.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    append_timestamp_ms: int
    size_bytes: int
    records: tuple[Message, ...]

    @property
    def provenance(self) -> Provenance:
        """The provenance of the image with this batch."""
        return Provenance(self.last_offset, self.leader_epoch, self.append_timestamp_ms)


class LoadedSnapshot(NamedTuple):
    """A snapshot's records, but for control records: all that is below `end_offset`."""

    end_offset: int
    leader_epoch: int
    last_contained_log_time_ms: int
    size_bytes: int
    records: tuple[Message, ...]

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.end_offset - 1, self.leader_epoch, self.last_contained_log_time_ms)


class MetadataLogListener(Protocol):
    """Hears of what happens in the log, on the log's own event loop.

    Invariant: a listener gets every committed batch once, in order, possibly after a snapshot
    that stands for all batches before it; and of a leader only after everything before that
    leader's epoch.
    """

    def handle_snapshot(self, snapshot: LoadedSnapshot) -> None:
        """Replace everything by the snapshot's content."""

    def handle_commit(self, batch: CommittedBatch) -> None:
        """Apply one batch."""

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        """`leader_id` leads from here on; -1 when no leader is known."""
