"""What goes in and out of the partition's state machine.

Owns the shapes alone. Must not decide anything. Invariant: nothing here changes after it was made,
so that a proposal on its way to the controller stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

UNKNOWN_OFFSET: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
RECOVERED: Final = 0
RECOVERING: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the controller decided about a partition, as this broker heard of it.

    `leader_recovery_state` is RECOVERING after an unclean election, until the leader says that it
    has dealt with it (KIP-704).
    """

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, eq=False)
class IsrChange:
    """A proposal of the leader to the controller (AlterPartition, KIP-497).

    Two with the same content are still two. `broker_epochs` holds one for every member of `isr`, -1
    where it is unknown (KIP-903); `reason` is for the log.
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    leader_recovery_state: int
    reason: str


class FollowerFetch(NamedTuple):
    """One partition of a follower's Fetch, which says how far the follower's log reaches.

    `broker_epoch` is the follower's, -1 when it does not say; `now_ms` when the request arrived, by
    the monotonic clock.
    """

    replica_id: int
    fetch_offset: int
    log_start_offset: int
    broker_epoch: int
    now_ms: float


class ReplicaFigures(NamedTuple):
    """How one replica stands, as its leader sees it.

    Offsets and `lag` (records) are -1 while unknown; `caught_up_age_ms` is how long ago the replica
    was last known to have everything: 0 when it has, -1 when it never had in this leader epoch.
    """

    replica_id: int
    log_start_offset: int
    log_end_offset: int
    lag: int
    is_in_sync: bool
    caught_up_age_ms: float


class ClusterView(Protocol):
    """What a leader has to know beyond its partition.

    Attributes:
        max_lag_ms: who has not caught up for longer leaves the ISR.
        last_fetch_ms: when the last Fetch of each follower arrived, of whichever partitions.
    """

    max_lag_ms: int
    last_fetch_ms: dict[int, float]

    def now_ms(self) -> float:
        """The monotonic clock."""

    def broker_epoch(self) -> int:
        """Of this broker."""

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker may join an ISR by the newest metadata: registered under this epoch
        (-1: any), not fenced, not in controlled shutdown.
        """
