"""A partition in a fetch: what the client wants of it, and what it has for the client.

Must not read logs, or know requests and responses. Invariant: a `FetchPartition` is among the
watchers of the partition it names, and of no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.replica.partition import Partition
    from moldau.protocol.types import RecordsSource

NO_OFFSET: Final = -1
NO_REPLICA: Final = -1
EMPTY_RECORDS: Final = b""

PartitionKey = tuple["str | UUID", int]


class FetchOwner(Protocol):
    """A session, or a fetch without one: it is told when a fetched partition has changed."""

    def partition_changed(self, fetched: FetchPartition) -> None:
        """New data, another leader, another log start offset, or the partition is gone."""

    def high_watermark_moved(self, fetched: FetchPartition) -> None:
        """Only the high watermark is new: data for a consumer, not for a follower."""


@dataclass(slots=True, eq=False)
class FetchPartition:
    """One partition in a fetch: from where, how much, and what the client was told last.

    `partition` is the local replica while it is known; a partition that changes tells `owner`.
    `is_follower`: the client reads past the high watermark, to the end of the log; `replica_id` is
    its broker, `log_start_offset` its own. `is_position_news`: the client has named the partition
    in its latest request, and the leader has not noted that yet.
    """

    owner: FetchOwner
    topic: str
    topic_id: UUID
    partition_index: int
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    partition: Partition | None = None
    is_follower: bool = False
    is_position_news: bool = True
    replica_id: int = NO_REPLICA
    reported_high_watermark: int = -1
    reported_log_start_offset: int = -1

    @property
    def key(self) -> PartitionKey:
        """The topic id (from v13 on) or name, and the partition index."""
        if self.topic_id is ZERO_UUID or self.topic:
            return (self.topic, self.partition_index)
        return (self.topic_id, self.partition_index)

    def watch(self, partition: Partition) -> None:
        if self.partition is not partition:
            self.unwatch()
            self.partition = partition
            partition.fetch_watchers[self] = None

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.fetch_watchers.pop(self, None)
            self.partition = None


@dataclass(slots=True, eq=False)
class FetchRead:
    """What one partition has for one fetch.

    `records` are whole batches, possibly none. `pending`: there are records that have to be
    verified off the loop first; the partition reports a change when they are. `is_starved`: there
    are records that the byte limits left out. `preferred_read_replica` is a nearer replica that the
    consumer should read from instead, -1 without one.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: bytes | RecordsSource = EMPTY_RECORDS
    size_bytes: int = 0
    aborted_transactions: list[tuple[int, int]] | None = None
    diverging_epoch: int = -1
    diverging_end_offset: int = NO_OFFSET
    pending: bool = False
    is_starved: bool = False
    preferred_read_replica: int = -1

    @property
    def is_diverging(self) -> bool:
        """Whether the client's log and this one part before its fetch offset (KIP-595)."""
        return self.diverging_end_offset >= 0 or self.diverging_epoch >= 0
