"""What all partitions of a broker share: the rest of the cluster, as far as replication needs it.

Owns the port, and the implementation for a broker without others. Must not hold any state of a
partition. Invariant: all of it belongs to the data loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.replica.core.values import ClusterView

if TYPE_CHECKING:
    from moldau.broker.replica.core.values import IsrChange
    from moldau.broker.replica.partition import Partition

DEFAULT_MAX_LAG_MS = 30_000


class IsrCounts:
    """How often ISRs changed as their leaders proposed, or the controller refused."""

    __slots__ = ("expands", "failed_updates", "shrinks")

    def __init__(self) -> None:
        self.expands = 0
        self.shrinks = 0
        self.failed_updates = 0


class ReplicationContext(ClusterView, Protocol):
    """The cluster around a partition.

    Attributes:
        max_lag_ms: `replica.lag.time.max.ms`.
        last_fetch_ms: written when a follower's Fetch arrives; at most one entry for each
            registered broker.
        isr_counts: of all partitions together.
    """

    max_lag_ms: int
    last_fetch_ms: dict[int, float]
    isr_counts: IsrCounts

    def submit_isr_change(self, partition: Partition, change: IsrChange) -> None:
        """Bring a proposal to the controller; `isr_change_answered` hears of the answer."""


class SingleReplicaContext:
    """A broker that has heard of no others: nobody is refused, and no proposal goes anywhere."""

    __slots__ = ("_now_ms", "isr_counts", "last_fetch_ms", "max_lag_ms")

    def __init__(self, now_ms: Callable[[], float], max_lag_ms: int = DEFAULT_MAX_LAG_MS) -> None:
        self._now_ms = now_ms
        self.max_lag_ms = max_lag_ms
        self.last_fetch_ms: dict[int, float] = {}
        self.isr_counts = IsrCounts()

    def now_ms(self) -> float:
        """The monotonic clock."""
        return self._now_ms()

    def broker_epoch(self) -> int:
        """Not registered, so unknown."""
        return -1

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Everybody is."""
        return True

    def submit_isr_change(self, partition: Partition, change: IsrChange) -> None:
        """There is no controller to ask: the proposal stays without an answer."""
