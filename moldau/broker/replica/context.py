"""What every partition of a broker shares: the clock, the lag limit, when followers fetched last,
and which brokers may be in an in-sync set.

Owns `last_fetch_ms`. Invariant: eligibility is judged by the newest image alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.broker.replica.core.partition_core import UNKNOWN_BROKER_EPOCH

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataImage
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Registry

METRIC_PREFIX: Final = "kafka.server:type=ReplicaManager,name="


@dataclass(eq=False, repr=False, kw_only=True)
class ReplicationContext:
    """The cluster around the partitions of one broker (a `ClusterView`). Belongs to the data loop.

    `max_lag_ms` is `replica.lag.time.max.ms`; `broker_epoch` is -1 before this broker registered.
    `last_fetch_ms` is written when a follower's Fetch arrives; it has at most one entry for each
    registered broker.
    """

    max_lag_ms: int
    clock: InitVar[Clock]
    broker_epoch: Callable[[], int]
    image: Callable[[], MetadataImage]
    registry: InitVar[Registry]
    last_fetch_ms: dict[int, float] = field(default_factory=dict)

    def __post_init__(self, clock: Clock, registry: Registry) -> None:
        self.now_ms = clock.monotonic_ms
        self.isr_expands = registry.meter(METRIC_PREFIX + "IsrExpandsPerSec")
        self.isr_shrinks = registry.meter(METRIC_PREFIX + "IsrShrinksPerSec")
        self.failed_isr_updates = registry.meter(METRIC_PREFIX + "FailedIsrUpdatesPerSec")

    def is_isr_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """As `ClusterView` says; a broker in controlled shutdown is on its way out."""
        registration = self.image().cluster.brokers.get(broker_id)
        return (
            registration is not None
            and not registration.fenced
            and not registration.in_controlled_shutdown
            and broker_epoch in (UNKNOWN_BROKER_EPOCH, registration.broker_epoch)
        )

    def brokers_left(self, image: MetadataImage) -> None:
        for broker_id in self.last_fetch_ms.keys() - image.cluster.brokers.keys():
            del self.last_fetch_ms[broker_id]
