"""What every partition of a broker shares: the lag limit, the followers' last signs of life, who
may be in an in-sync set, and the way of proposals to the controller.

Owns: `last_fetch_ms`. Must not know partitions. Invariant: who is eligible is judged by the newest
image alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from moldau.broker.replica.context import IsrCounts

if TYPE_CHECKING:
    from moldau.broker.replica import Partition
    from moldau.broker.replica.core.values import IsrChange
    from moldau.metadata.image import MetadataImage
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Meter, Registry

UNKNOWN_BROKER_EPOCH: Final = -1
METRIC_PREFIX: Final = "kafka.server:type=ReplicaManager,name="


class IsrMeters(IsrCounts):
    """The counts of what became of proposals, as Kafka's meters."""

    __slots__ = ("_expands", "_failed_updates", "_shrinks")

    def __init__(self, registry: Registry) -> None:
        self._expands: Meter = registry.meter(METRIC_PREFIX + "IsrExpandsPerSec")
        self._shrinks: Meter = registry.meter(METRIC_PREFIX + "IsrShrinksPerSec")
        self._failed_updates: Meter = registry.meter(METRIC_PREFIX + "FailedIsrUpdatesPerSec")

    @property
    def expands(self) -> int:
        """ISRs that grew."""
        return self._expands.count

    @expands.setter
    def expands(self, count: int) -> None:
        self._expands.count = count

    @property
    def shrinks(self) -> int:
        """ISRs that shrank."""
        return self._shrinks.count

    @shrinks.setter
    def shrinks(self, count: int) -> None:
        self._shrinks.count = count

    @property
    def failed_updates(self) -> int:
        """Proposals that the controller refused."""
        return self._failed_updates.count

    @failed_updates.setter
    def failed_updates(self, count: int) -> None:
        self._failed_updates.count = count


class IsrChanges(Protocol):
    """Where proposals go; AlterPartitionSender is one."""

    def submit(self, partition: Partition, change: IsrChange) -> None:
        """Propose it to the controller; `partition` hears of the answer."""


class BrokerReplicationContext:
    """Implements the partitions' `ReplicationContext` (see `broker.partition`).

    Args:
        max_lag_ms: `replica.lag.time.max.ms`.
        broker_epoch: of this broker, -1 before it registered.
        image: the newest metadata.
    """

    def __init__(
        self,
        *,
        max_lag_ms: int,
        clock: Clock,
        broker_epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        isr_changes: IsrChanges,
        isr_counts: IsrCounts,
    ) -> None:
        self.isr_counts = isr_counts
        self.max_lag_ms = max_lag_ms
        self.last_fetch_ms: dict[int, float] = {}
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._image = image
        self._isr_changes = isr_changes

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return self._clock.monotonic_ms()

    def broker_epoch(self) -> int:
        """Of this broker."""
        return self._broker_epoch()

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the controller would take that broker into an in-sync set (KIP-841, KIP-903):
        registered, neither fenced nor on its way out, and in the incarnation that fetched.
        """
        registration = self._image().cluster.brokers.get(broker_id)
        return (
            registration is not None
            and not registration.fenced
            and not registration.in_controlled_shutdown
            and broker_epoch in (UNKNOWN_BROKER_EPOCH, registration.broker_epoch)
        )

    def submit_isr_change(self, partition: Partition, change: IsrChange) -> None:
        """Hand a proposal on."""
        self._isr_changes.submit(partition, change)

    def brokers_left(self, image: MetadataImage) -> None:
        """Forget when those fetched last who are registered no more."""
        for broker_id in self.last_fetch_ms.keys() - image.cluster.brokers.keys():
            del self.last_fetch_ms[broker_id]
